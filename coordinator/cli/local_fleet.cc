// SPDX-License-Identifier: Apache-2.0
#include "coordinator/cli/local_fleet.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cluster/process/status_macros.h"
#include "coordinator/cli/interrupt.h"
#include "coordinator/cli/load_progress.h"
#include "coordinator/cli/progress.h"

namespace ringfleet::coordinator::cli {
namespace {

constexpr std::chrono::milliseconds kFormingPoll{10};

void ShowNotices(const std::vector<std::string>& notices) {
  for (const std::string& notice : notices) {
    std::fprintf(stderr, "note: %s\n", notice.c_str());
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<LocalFleet>> LocalFleet::Start(
    FleetOptions options, std::optional<HttpOptions> http, StateOptions state) {
  const int world = options.mesh.world_size();
  if (options.settings.threads() == 0) {
    options.settings.set_threads(LocalWorkers::ThreadsOfEach(world));
  }
  const auto threads = static_cast<int>(options.settings.threads());
  options.start_once = true;
  std::unique_ptr<LocalFleet> fleet(new LocalFleet());
  RF_ASSIGN_OR_RETURN(fleet->workers_, LocalWorkers::Create(world, threads));
  RF_ASSIGN_OR_RETURN(fleet->coordinator_,
                      CoordinatorServer::Start({.fleet = std::move(options),
                                                .http = std::move(http),
                                                .state = std::move(state)}));
  ShowNotices(fleet->coordinator_->notices());
  absl::Status status =
      fleet->workers_->Spawn({"--coordinator", fleet->address()});
  if (status.ok()) status = fleet->WaitReady();
  if (status.ok()) ShowLoadWarnings(fleet->coordinator_->state());
  if (!status.ok()) {
    fleet->Explain(status);
    return status;
  }
  fleet->workers_->KeepRunning(
      [coordinator = fleet->coordinator_.get()](const absl::Status& cause) {
        coordinator->EndFleet(cause);
      });
  return fleet;
}

LocalFleet::~LocalFleet() {
  if (coordinator_ != nullptr) coordinator_->Shutdown();
  workers_.reset();  // May end the fleet of the coordinator until then.
}

absl::Status LocalFleet::Stop() {
  coordinator_->Shutdown();
  return workers_->Stop();
}

std::string LocalFleet::address() const {
  return absl::StrCat("127.0.0.1:", coordinator_->port());
}

absl::Status LocalFleet::WaitReady() {
  Progress progress;
  while (true) {
    RF_RETURN_IF_ERROR(Interrupt::Get().status());
    const v1::ClusterState state = coordinator_->state();
    if (state.state() == v1::FLEET_STATE_READY) return absl::OkStatus();
    if (state.state() == v1::FLEET_STATE_FAILED) {
      return absl::Status(static_cast<absl::StatusCode>(state.error_code()),
                          state.error());
    }
    RF_RETURN_IF_ERROR(workers_->CheckRunning());
    ShowLoading(state, progress);
    std::this_thread::sleep_for(kFormingPoll);
  }
}

}  // namespace ringfleet::coordinator::cli
