// SPDX-License-Identifier: Apache-2.0
#include "coordinator/cli/launch/down.h"

#include <algorithm>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "cluster/config/config.h"
#include "cluster/process/deadline.h"
#include "cluster/process/status_macros.h"
#include "cluster/rpc/host_address.h"
#include "coordinator/cli/fleet_choice.h"
#include "coordinator/cli/fleet_json.h"
#include "coordinator/cli/interrupt.h"
#include "coordinator/cli/launch/fleet_command.h"
#include "coordinator/cli/launcher.h"
#include "coordinator/cli/session.h"

namespace ringfleet::coordinator::cli {
namespace {

constexpr char kDownFooter[] = R"(
Stops the whole fleet, including workers since removed from the file. Running
jobs fail. Batches and detached jobs, which the state folder keeps, go on after
the next `ringfleet up`. --hosts stops only these workers: the coordinator and
the others run on. The coordinator's view of the fleet is printed then; the state
is "unknown" if no coordinator answers.

Only processes that were started from this file are stopped: a file of another
folder may have the same name. --force stops those, too.

Examples:
  ringfleet down --cluster cluster.yaml
  ringfleet down --cluster cluster.yaml --hosts 2
)";

// Time for a coordinator to notice that workers were stopped. A connection
// breaks at once; the lease of a worker that hangs is 10 s.
constexpr absl::Duration kNoticeTime = absl::Seconds(11);

// A worker of the cluster file that no coordinator reports.
Json AbsentWorker(const cluster::ClusterConfig& config, size_t rank,
                  const char* state) {
  const cluster::WorkerConfig& worker = config.workers[rank];
  return {{"rank", rank},
          {"address", cluster::FormatAddress({worker.address, worker.port})},
          {"state", state},
          {"pid", 0}};
}

// Returns the fleet's state once its coordinator has noticed that the ranks
// `stopped`, both ends included, are gone, or after kNoticeTime.
absl::StatusOr<v1::ClusterState> DescribeWithout(const std::string& address,
                                                 std::pair<int, int> stopped) {
  const auto counts = [stopped](const v1::WorkerState& worker) {
    const auto rank = static_cast<int>(worker.rank());
    return rank >= stopped.first && rank <= stopped.second &&
           worker.state() != v1::MEMBER_STATE_LOST;
  };
  const cluster::Deadline deadline = cluster::Deadline::After(kNoticeTime);
  while (true) {
    absl::StatusOr<v1::ClusterState> state = DescribeFleet(address);
    RF_RETURN_IF_ERROR(Interrupt::Get().status());
    if (!state.ok() || deadline.Expired() ||
        std::none_of(state->workers().begin(), state->workers().end(),
                     counts)) {
      return state;
    }
    std::this_thread::sleep_for(kNoticeInterval);
  }
}

// Prints the rest of a fleet after `down --hosts`.
absl::Status ReportRest(const cluster::ClusterConfig& config,
                        const std::string& address,
                        const FleetCommand& options) {
  std::pair<int, int> stopped = {0, -1};
  if (options.hosts != kCoordinatorLabel) {
    RF_ASSIGN_OR_RETURN(
        stopped, cluster::ParseHostRange(
                     options.hosts, static_cast<int>(config.workers.size())));
  }
  const absl::StatusOr<v1::ClusterState> state =
      DescribeWithout(address, stopped);
  RF_RETURN_IF_ERROR(Interrupt::Get().status());
  Json summary = state.ok() ? FleetSummary(*state)
                            : Json{{"epoch", 0}, {"state", "unknown"}};
  Json workers = Json::array();
  for (size_t rank = 0; rank < config.workers.size(); ++rank) {
    const auto worker = static_cast<int>(rank);
    const bool was_stopped =
        worker >= stopped.first && worker <= stopped.second;
    workers.push_back(
        AbsentWorker(config, rank, was_stopped ? "stopped" : "unknown"));
    if (was_stopped || !state.ok()) continue;
    for (const Json& known : summary["workers"]) {
      if (known["rank"] == rank) workers.back() = known;
    }
  }
  summary["workers"] = std::move(workers);
  return PrintFleet(summary, options);
}

// Checks that the fleet's coordinator, which answered before, is gone.
absl::Status CheckGone(const std::string& address) {
  const absl::StatusOr<v1::ClusterState> after = DescribeFleet(address);
  RF_RETURN_IF_ERROR(Interrupt::Get().status());
  if (!after.ok()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "down: the coordinator of fleet ", after->name(), " still answers at ",
      address, " (pid ", after->pid(),
      "): it was started by hand or by another user, want it stopped there"));
}

absl::Status Down(const FleetCommand& options) {
  RF_ASSIGN_OR_RETURN(cluster::ClusterConfig config,
                      cluster::LoadClusterConfig(options.cluster));
  if (options.force) config.path.clear();
  RF_ASSIGN_OR_RETURN(const FleetLock lock, LockFleet(config, options));
  const std::string address = CoordinatorAddressOf(config);
  const absl::StatusOr<v1::ClusterState> before = DescribeFleet(address);
  absl::Status stopped =
      RunLaunchScript("stop", config, options.hosts, nullptr);
  // The address may have gone to another fleet.
  if (before.ok()) stopped.Update(CheckFleetName(*before, config));
  if (stopped.ok() && !options.hosts.empty()) {
    return ReportRest(config, address, options);
  }
  if (before.ok() && options.hosts.empty()) {
    stopped.Update(StopWhatFileLacks(config, *before));
    if (stopped.ok()) stopped = CheckGone(address);
  }
  RF_RETURN_IF_ERROR(stopped);
  Json workers = Json::array();
  for (size_t rank = 0; rank < config.workers.size(); ++rank) {
    workers.push_back(AbsentWorker(config, rank, "stopped"));
  }
  return PrintFleet({{"epoch", before.ok() ? before->epoch() : 0},
                     {"state", "down"},
                     {"workers", workers}},
                    options);
}

}  // namespace

void RegisterDown(CLI::App& app, Invocation& invocation) {
  RegisterFleetCommand(app, invocation, "down", "Stop a fleet", kDownFooter,
                       Down, [](CLI::App& verb, FleetCommand& options) {
                         verb.add_flag(
                             "--force", options.force,
                             "Also processes of a fleet of this name that was "
                             "started from another file");
                       });
}

}  // namespace ringfleet::coordinator::cli
