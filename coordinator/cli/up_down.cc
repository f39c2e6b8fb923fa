// SPDX-License-Identifier: Apache-2.0
#include "coordinator/cli/up_down.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "cluster/config.h"
#include "cluster/server.h"
#include "cluster/status.h"
#include "cluster/status_macros.h"
#include "coordinator/cli/config_change.h"
#include "coordinator/cli/fleet_json.h"
#include "coordinator/cli/interrupt.h"
#include "coordinator/cli/launcher.h"
#include "coordinator/cli/load_progress.h"
#include "coordinator/cli/progress.h"
#include "coordinator/cli/session.h"
#include "protos/cluster.grpc.pb.h"
#include "protos/coordinator.grpc.pb.h"

namespace ringfleet::coordinator::cli {
namespace {

struct FleetOptions {
  std::string cluster;
  std::string hosts;
  std::string output = "text";
  double timeout_s = 1800;  // A large checkpoint from a slow disk.
};

// How long to wait until a coordinator notices that workers have been stopped:
// their connections break at once, and a lease, for those that hang, is 10 s.
constexpr absl::Duration kNoticeTime = absl::Seconds(11);
constexpr std::chrono::milliseconds kNoticeInterval{50};

constexpr char kUpFooter[] = R"(
Starts the coordinator and the workers of the cluster file where they do not
run yet, over ssh or directly (see cluster/launch/README.md), and returns when
the fleet can generate. Hosts without the model's files fetch what they need
from those that have them, and a warning says which.

Examples:
  ringfleet up --cluster cluster.yaml
  ringfleet up --cluster cluster.yaml --hosts 0-3 -o json
)";

constexpr char kDownFooter[] = R"(
Stops what `up` started: running jobs end with an error. With --hosts the
coordinator and the other workers run on, and the state that is printed is what
the coordinator says then; it is unknown where no coordinator answers.

Examples:
  ringfleet down --cluster cluster.yaml
  ringfleet down --cluster cluster.yaml --hosts 2
)";

// The fleet's state, if its coordinator answers.
absl::StatusOr<v1::ClusterState> Describe(const std::string& address) {
  const auto stub = v1::Coordinator::NewStub(ConnectChannel(address));
  InterruptibleCall call;
  call.context()->set_deadline(std::chrono::system_clock::now() +
                               std::chrono::seconds(2));
  v1::ClusterState state;
  RF_RETURN_IF_ERROR(cluster::FromGrpc(stub->DescribeCluster(
      call.context(), v1::DescribeClusterRequest(), &state)));
  return state;
}

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

// Waits until the fleet is ready or has failed.
absl::StatusOr<v1::ClusterState> WaitReady(const std::string& address,
                                           double timeout_s) {
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
    if (state.state() == v1::FLEET_STATE_FAILED) {
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

absl::Status PrintSummary(const Json& summary, const FleetOptions& options) {
  if (options.output == "json") return PrintJson(summary);
  std::string text =
      absl::StrFormat("%s, epoch %u\n", summary["state"].get<std::string>(),
                      summary["epoch"].get<uint64_t>());
  for (const Json& worker : summary["workers"]) {
    absl::StrAppendFormat(
        &text, "rank %d  %s  %s  pid %d\n", worker["rank"].get<int>(),
        worker["address"].get<std::string>(),
        worker["state"].get<std::string>(), worker["pid"].get<int64_t>());
  }
  return PrintText(text);
}

absl::Status Up(const FleetOptions& options) {
  RF_ASSIGN_OR_RETURN(const cluster::ClusterConfig config,
                      cluster::LoadClusterConfig(options.cluster));
  RF_ASSIGN_OR_RETURN(
      const FleetLock lock,
      FleetLock::Acquire(config.name, cluster::Deadline::After(
                                          absl::Seconds(options.timeout_s))));
  const std::string address = cluster::FormatAddress(
      {config.coordinator.host, config.coordinator.port});
  const absl::StatusOr<v1::ClusterState> before = Describe(address);
  RF_RETURN_IF_ERROR(Interrupt::Get().status());
  if (before.ok() && before->name() != config.name) {
    return absl::FailedPreconditionError(
        absl::StrCat("up: ", address, " belongs to fleet ", before->name(),
                     ", want ", config.name));
  }
  const bool failed = before.ok() && before->state() == v1::FLEET_STATE_FAILED;
  if (before.ok() && !failed) {
    const std::string change = ConfigChange(*before, config);
    if (!change.empty()) {
      return absl::FailedPreconditionError(absl::StrCat(
          "up: fleet ", config.name, " runs with ", change,
          "; `ringfleet down --cluster ", options.cluster, "` ends it first"));
    }
  }
  const char* verb = failed ? "restart" : "start";
  absl::Status status;
  if (!options.hosts.empty()) {
    // A range of ranks leaves out the coordinator, without which none is used.
    status = RunLaunchScript(verb, options.cluster, "coordinator", nullptr);
  }
  status.Update(RunLaunchScript(verb, options.cluster, options.hosts, nullptr));
  absl::StatusOr<v1::ClusterState> state =
      status.ok() ? WaitReady(address, options.timeout_s)
                  : absl::StatusOr<v1::ClusterState>(status);
  if (!state.ok()) {
    // What this call started does not stay behind half done.
    if (!before.ok()) {
      TakeBack(options.cluster,
               options.hosts.empty()
                   ? std::vector<std::string>{""}
                   : std::vector<std::string>{options.hosts, "coordinator"});
    }
    RF_RETURN_IF_ERROR(Interrupt::Get().status());
    return state.status();
  }
  ShowLoadWarnings(*state);
  return PrintSummary(FleetSummary(*state), options);
}

// A worker of the cluster file that no coordinator tells of.
Json AbsentWorker(const cluster::ClusterConfig& config, size_t rank,
                  const char* state) {
  const cluster::WorkerConfig& worker = config.workers[rank];
  return {{"rank", rank},
          {"address", cluster::FormatAddress({worker.address, worker.port})},
          {"state", state},
          {"pid", 0}};
}

// The fleet's state once its coordinator has noticed that these ranks, both
// included, have been stopped, or has not within kNoticeTime.
absl::StatusOr<v1::ClusterState> DescribeWithout(const std::string& address,
                                                 std::pair<int, int> stopped) {
  const auto counts = [stopped](const v1::WorkerState& worker) {
    const auto rank = static_cast<int>(worker.rank());
    return rank >= stopped.first && rank <= stopped.second &&
           worker.state() != v1::MEMBER_STATE_LOST;
  };
  const cluster::Deadline deadline = cluster::Deadline::After(kNoticeTime);
  while (true) {
    absl::StatusOr<v1::ClusterState> state = Describe(address);
    RF_RETURN_IF_ERROR(Interrupt::Get().status());
    if (!state.ok() || deadline.Expired() ||
        std::none_of(state->workers().begin(), state->workers().end(),
                     counts)) {
      return state;
    }
    std::this_thread::sleep_for(kNoticeInterval);
  }
}

// Prints what is left of a fleet after `down --hosts`.
absl::Status ReportRest(const cluster::ClusterConfig& config,
                        const std::string& address,
                        const FleetOptions& options) {
  std::pair<int, int> stopped = {0, -1};
  if (options.hosts != "coordinator") {
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
    const auto place = static_cast<int>(rank);
    const bool was_stopped = place >= stopped.first && place <= stopped.second;
    workers.push_back(
        AbsentWorker(config, rank, was_stopped ? "stopped" : "unknown"));
    if (was_stopped || !state.ok()) continue;
    for (const Json& known : summary["workers"]) {
      if (known["rank"] == rank) workers.back() = known;
    }
  }
  summary["workers"] = std::move(workers);
  return PrintSummary(summary, options);
}

// Stops what a fleet that ran was started with and its file has no longer.
absl::Status StopWhatFileLacks(const cluster::ClusterConfig& config,
                               const v1::ClusterState& before) {
  if (before.name() != config.name || ConfigChange(before, config).empty()) {
    return absl::OkStatus();
  }
  RF_ASSIGN_OR_RETURN(
      cluster::ClusterConfig started,
      cluster::ParseClusterConfig(before.cluster_file(), config.name, "/"));
  started.ssh = config.ssh;  // How hosts are reached, the file knows best.
  RF_ASSIGN_OR_RETURN(const std::string folder, StateDir(config.name));
  const std::string file = absl::StrCat(folder, "/started.yaml");
  std::ofstream out(file);
  out << cluster::FormatClusterConfig(started);
  out.close();
  if (!out) {
    return absl::InvalidArgumentError(
        absl::StrCat("down: ", file, " cannot be written"));
  }
  const absl::Status status = RunLaunchScript("stop", file, "", nullptr);
  std::remove(file.c_str());
  return status;
}

absl::Status Down(const FleetOptions& options) {
  RF_ASSIGN_OR_RETURN(const cluster::ClusterConfig config,
                      cluster::LoadClusterConfig(options.cluster));
  RF_ASSIGN_OR_RETURN(
      const FleetLock lock,
      FleetLock::Acquire(config.name, cluster::Deadline::After(
                                          absl::Seconds(options.timeout_s))));
  const std::string address = cluster::FormatAddress(
      {config.coordinator.host, config.coordinator.port});
  const absl::StatusOr<v1::ClusterState> before = Describe(address);
  absl::Status stopped =
      RunLaunchScript("stop", options.cluster, options.hosts, nullptr);
  if (stopped.ok() && !options.hosts.empty()) {
    return ReportRest(config, address, options);
  }
  if (before.ok() && options.hosts.empty()) {
    stopped.Update(StopWhatFileLacks(config, *before));
  }
  RF_RETURN_IF_ERROR(stopped);
  Json workers = Json::array();
  for (size_t rank = 0; rank < config.workers.size(); ++rank) {
    workers.push_back(AbsentWorker(config, rank, "stopped"));
  }
  return PrintSummary({{"epoch", before.ok() ? before->epoch() : 0},
                       {"state", "down"},
                       {"workers", workers}},
                      options);
}

void AddFleetOptions(CLI::App& verb, FleetOptions& options) {
  verb.add_option("--cluster", options.cluster, "Cluster file of the fleet")
      ->required();
  verb.add_option("--hosts", options.hosts,
                  "Inclusive range of ranks, 0-3 or 2 [all]");
  AddFormatOptions(verb, {"text", "json"}, &options.output);
  verb.add_option("--timeout", options.timeout_s, "Seconds to wait")
      ->check(CLI::Range(0.1, 1e6))
      ->capture_default_str();
}

void Register(CLI::App& app, Invocation& invocation, const char* name,
              const char* description, const char* footer,
              absl::Status (*run)(const FleetOptions&)) {
  CLI::App* verb = app.add_subcommand(name, description);
  verb->group("Fleet");
  verb->footer(footer);
  auto options = std::make_shared<FleetOptions>();
  AddFleetOptions(*verb, *options);
  verb->callback([options, run, &invocation] {
    invocation.json = options->output == "json";
    invocation.run = [options, run] { return run(*options); };
  });
}

}  // namespace

void RegisterUp(CLI::App& app, Invocation& invocation) {
  Register(app, invocation, "up", "Start a fleet on its hosts", kUpFooter, Up);
}

void RegisterDown(CLI::App& app, Invocation& invocation) {
  Register(app, invocation, "down", "Stop a fleet", kDownFooter, Down);
}

}  // namespace ringfleet::coordinator::cli
