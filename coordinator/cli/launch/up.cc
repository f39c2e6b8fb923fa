// SPDX-License-Identifier: Apache-2.0
#include "coordinator/cli/launch/up.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "cluster/config/config.h"
#include "cluster/process/status.h"
#include "cluster/process/status_macros.h"
#include "cluster/rpc/host_address.h"
#include "coordinator/cli/fleet_choice.h"
#include "coordinator/cli/fleet_json.h"
#include "coordinator/cli/interrupt.h"
#include "coordinator/cli/launch/config_change.h"
#include "coordinator/cli/launch/fleet_command.h"
#include "coordinator/cli/launcher.h"
#include "coordinator/cli/load_progress.h"
#include "coordinator/cli/progress.h"
#include "coordinator/cli/session.h"
#include "protos/cluster.grpc.pb.h"

namespace ringfleet::coordinator::cli {
namespace {

constexpr char kUpFooter[] = R"(
Starts the coordinator and the workers of the cluster file, over ssh or on this
machine (see cluster/launch/README.md), and returns when the fleet can generate.
Running processes are kept. A host without the model's files fetches its part
from hosts that have them, and a warning names it.

Examples:
  ringfleet up --cluster cluster.yaml
  ringfleet up --cluster cluster.yaml --hosts 0-3 -o json
)";

// Time for a running coordinator to answer.
constexpr absl::Duration kSilentTime = absl::Seconds(5);

void ShowProgress(const v1::ClusterState& state, Progress& progress) {
  if (state.state() == v1::FLEET_STATE_LOADING &&
      state.load_bytes_total() > 0) {
    ShowLoading(state, progress);
  } else {
    progress.Phase(absl::StrCat(FleetStateName(state.state()), ", ",
                                state.workers_size(), " of ",
                                state.world_size(), " workers"));
  }
}

// Waits until the fleet is ready or has failed. A failure of `failed_epoch`,
// which is an earlier one, does not end the wait.
absl::StatusOr<v1::ClusterState> WaitReady(
    const std::string& address, double timeout_s,
    std::optional<uint64_t> failed_epoch) {
  const auto stub = v1::Membership::NewStub(ConnectChannel(address));
  InterruptibleCall call;
  call.context()->set_wait_for_ready(true);
  call.context()->set_deadline(
      std::chrono::system_clock::now() +
      std::chrono::milliseconds(static_cast<int64_t>(timeout_s * 1e3)));
  const std::unique_ptr<grpc::ClientReader<v1::ClusterState>> reader =
      stub->Watch(call.context(), v1::WatchRequest());
  Progress progress;
  v1::ClusterState state;
  while (reader->Read(&state)) {
    if (state.state() == v1::FLEET_STATE_READY) {
      call.context()->TryCancel();
      v1::ClusterState ignored;
      while (reader->Read(&ignored)) {
      }
      reader->Finish();
      return state;
    }
    if (state.state() == v1::FLEET_STATE_FAILED &&
        state.epoch() != failed_epoch) {
      call.context()->TryCancel();
      v1::ClusterState ignored;
      while (reader->Read(&ignored)) {
      }
      reader->Finish();
      return absl::Status(static_cast<absl::StatusCode>(state.error_code()),
                          state.error());
    }
    ShowProgress(state, progress);
  }
  RF_RETURN_IF_ERROR(Interrupt::Get().status());
  const absl::Status status = cluster::FromGrpc(reader->Finish());
  if (!status.ok() && !absl::IsDeadlineExceeded(status)) {
    return Annotate(status, absl::StrCat("coordinator ", address));
  }
  return absl::DeadlineExceededError(absl::StrCat(
      "coordinator ", address, ": not ready after ", timeout_s,
      " s: ", state.workers_size(), " of ", state.world_size(),
      " workers registered", state.error().empty() ? "" : ", ", state.error(),
      status.ok() ? "" : absl::StrCat(" (", status.message(), ")")));
}

// Checks that the running fleet is as the file describes it.
absl::Status CheckRunsAsFile(const v1::ClusterState& state,
                             const cluster::ClusterConfig& config,
                             const FleetCommand& options) {
  RF_RETURN_IF_ERROR(CheckFleetName(state, config));
  const std::string down = absl::StrCat("`ringfleet down --cluster ",
                                        options.cluster, "` ends it first");
  const absl::Status same = CheckIsOfFile(state, config);
  if (!same.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(same.message(), "; ", down));
  }
  const std::string change = ConfigChange(state, config);
  if (change.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "up: fleet ", config.name, " runs with ", change, "; ", down));
}

bool RanAlready(const LaunchLine& line) {
  return absl::StartsWith(line.text, "already running");
}

// Checks a coordinator that did not answer before, but that the launch script
// found running: it may be slow, or listen elsewhere.
absl::Status CheckSilentCoordinator(const std::vector<LaunchLine>& lines,
                                    const std::string& address,
                                    const cluster::ClusterConfig& config,
                                    const FleetCommand& options) {
  const auto found =
      std::find_if(lines.begin(), lines.end(), [](const LaunchLine& line) {
        return line.label == kCoordinatorLabel && RanAlready(line);
      });
  if (found == lines.end()) return absl::OkStatus();
  const cluster::Deadline deadline = cluster::Deadline::After(kSilentTime);
  absl::StatusOr<v1::ClusterState> state = absl::UnknownError("not asked");
  while (!state.ok() && !deadline.Expired()) {
    state = DescribeFleet(address);
    RF_RETURN_IF_ERROR(Interrupt::Get().status());
    if (!state.ok()) std::this_thread::sleep_for(kNoticeInterval);
  }
  if (state.ok()) return CheckRunsAsFile(*state, config, options);
  return absl::FailedPreconditionError(absl::StrCat(
      "up: the coordinator of fleet ", config.name, " runs (pid ", found->pid,
      "), but nothing answers at ", address,
      ": it hangs, or the file named another address when it was started; "
      "`ringfleet down --cluster ",
      options.cluster, "` ends it first"));
}

// Stops processes that a call to the launch script has started or was about to
// start. Keeps those that ran already according to `lines`.
void TakeBackStarted(const cluster::ClusterConfig& config,
                     const FleetCommand& options,
                     const std::vector<LaunchLine>& lines) {
  if (std::none_of(lines.begin(), lines.end(), RanAlready)) {
    return TakeBack(config, options.hosts.empty()
                                ? std::vector<std::string>{""}
                                : std::vector<std::string>{options.hosts,
                                                           kCoordinatorLabel});
  }
  const int world = static_cast<int>(config.workers.size());
  const std::pair<int, int> ranks =  // None for "coordinator".
      cluster::ParseHostRange(options.hosts, world).value_or(std::pair(0, -1));
  std::vector<std::string> labels = {kCoordinatorLabel};
  for (int rank = ranks.first; rank <= ranks.second; ++rank) {
    labels.push_back(absl::StrCat(rank));
  }
  std::erase_if(labels, [&](const std::string& label) {
    return std::any_of(lines.begin(), lines.end(), [&](const LaunchLine& line) {
      return line.label == label && RanAlready(line);
    });
  });
  TakeBack(config, labels);
}

// Checks the addresses of the workers against the file: a worker that ran
// before may have another one.
absl::Status CheckAddresses(const v1::ClusterState& state,
                            const cluster::ClusterConfig& config,
                            const FleetCommand& options) {
  for (const v1::WorkerState& worker : state.workers()) {
    if (worker.rank() >= config.workers.size()) continue;
    const cluster::WorkerConfig& worker_config = config.workers[worker.rank()];
    const std::string wanted =
        cluster::FormatAddress({worker_config.address, worker_config.port});
    if (worker_config.port == 0 || worker.state() == v1::MEMBER_STATE_LOST ||
        worker.address() == wanted) {
      continue;
    }
    return absl::FailedPreconditionError(absl::StrCat(
        "up: worker ", worker.rank(), " of fleet ", config.name, " runs at ",
        worker.address(), ", want ", wanted, "; `ringfleet down --cluster ",
        options.cluster, "` ends it first"));
  }
  return absl::OkStatus();
}

absl::Status Up(const FleetCommand& options) {
  RF_ASSIGN_OR_RETURN(const cluster::ClusterConfig config,
                      cluster::LoadClusterConfig(options.cluster));
  if (!options.hosts.empty() && options.hosts != kCoordinatorLabel) {
    RF_RETURN_IF_ERROR(
        cluster::ParseHostRange(options.hosts,
                                static_cast<int>(config.workers.size()))
            .status());
  }
  RF_ASSIGN_OR_RETURN(const FleetLock lock, LockFleet(config, options));
  const std::string address = CoordinatorAddressOf(config);
  const absl::StatusOr<v1::ClusterState> before = DescribeFleet(address);
  RF_RETURN_IF_ERROR(Interrupt::Get().status());
  const bool failed = before.ok() && before->state() == v1::FLEET_STATE_FAILED;
  // Workers that have all failed try again only after a restart. A fleet that
  // lacks some workers forms again once those are started.
  const bool restart = failed && IsWhole(*before);
  if (restart) {
    RF_RETURN_IF_ERROR(CheckFleetName(*before, config));
    RF_RETURN_IF_ERROR(StopWhatFileLacks(config, *before));
  } else if (before.ok()) {
    RF_RETURN_IF_ERROR(CheckRunsAsFile(*before, config, options));
  }
  std::string output;
  const auto launch = [&](const std::string& hosts) {
    std::string some;
    const absl::Status status =
        RunLaunchScript(restart ? "restart" : "start", config, hosts, &some);
    output += some;
    return status;
  };
  absl::Status status;
  if (!options.hosts.empty()) {
    // A range of ranks leaves out the coordinator, without which none is used.
    status = launch(kCoordinatorLabel);
  }
  if (options.hosts != kCoordinatorLabel) status.Update(launch(options.hosts));
  const std::vector<LaunchLine> lines = ParseLaunchOutput(output);
  if (status.ok() && !before.ok()) {
    status = CheckSilentCoordinator(lines, address, config, options);
  }
  const std::optional<uint64_t> failed_epoch =
      failed && !restart ? std::optional(before->epoch()) : std::nullopt;
  const absl::StatusOr<v1::ClusterState> state =
      status.ok() ? WaitReady(address, options.timeout_s, failed_epoch)
                  : absl::StatusOr<v1::ClusterState>(status);
  if (!state.ok()) {
    // Half of a fleet must not stay behind.
    if (!before.ok()) TakeBackStarted(config, options, lines);
    RF_RETURN_IF_ERROR(Interrupt::Get().status());
    return state.status();
  }
  RF_RETURN_IF_ERROR(CheckAddresses(*state, config, options));
  ShowLoadWarnings(*state);
  return PrintFleet(FleetSummary(*state), options);
}

}  // namespace

void RegisterUp(CLI::App& app, Invocation& invocation) {
  RegisterFleetCommand(app, invocation, "up", "Start a fleet on its hosts",
                       kUpFooter, Up, /*add_more=*/nullptr);
}

}  // namespace ringfleet::coordinator::cli
