// SPDX-License-Identifier: Apache-2.0
#include "coordinator/cli/doctor/doctor.h"

#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cluster/checkpoint/open_model.h"
#include "cluster/config/config.h"
#include "cluster/config/settings.h"
#include "cluster/model/shard_plan.h"
#include "cluster/model/shard_sizes.h"
#include "cluster/process/status_macros.h"
#include "cluster/rpc/host_address.h"
#include "cluster/synthetic/synthetic_model.h"
#include "coordinator/cli/doctor/doctor_coordinator.h"
#include "coordinator/cli/doctor/doctor_report.h"
#include "coordinator/cli/doctor/doctor_run.h"
#include "coordinator/cli/fleet_choice.h"
#include "coordinator/cli/host_workers.h"
#include "coordinator/cli/interrupt.h"
#include "coordinator/cli/json_output.h"
#include "coordinator/cli/local_workers.h"
#include "coordinator/cli/output.h"
#include "coordinator/cli/session.h"
#include "coordinator/cli/value_checks.h"
#include "coordinator/service/setting_flags.h"
#include "coordinator/service/state_folder.h"

namespace ringfleet::coordinator::cli {
namespace {

constexpr char kDoctorFooter[] = R"(
Measures the rates that `ringfleet plan` otherwise assumes, and says what to change:
products (int8 weights with 1 to 512 rows, other forms with 128), attention and
memory reads with all workers at work, and exchanges between every two workers.
Also checks the disk that holds --model, the space in the folders of logs, packed
weights and state, free memory, clocks, builds, instruction sets and NUMA nodes.
`ringfleet plan --fleet FILE.json` reads the output of -o json.

--local N starts N workers on this machine for this command. --cluster examines the
running workers of a cluster file, --coordinator those of a running fleet. A worker
that does not answer is left out and named; the exit code is 3 then. Workers that
serve a model are slowed down for
six times --time-ms and more, need some hundred MiB more, and skip the links; their
free memory excludes the model. To feed `plan`, run it before a model is loaded.
Other programs that run meanwhile lower the rates, and the plan.

--quick takes seconds: builds, instruction sets, disk, memory, clocks, and one
exchange over all workers, but no rates. Before `up`, --quick --cluster starts the
workers of the file on their hosts, ports and all, and stops them again. It also
looks on the coordinator's host for its ports, the model and the state folder. The
exit code is 3 if a port is in use, and 2 if the model's files are missing.

Examples:
  ringfleet doctor
  ringfleet doctor --quick --cluster cluster.yaml
  ringfleet doctor --local 2 --model DIR -o json
  ringfleet doctor --cluster cluster.yaml
)";

struct DoctorVerb {
  FleetChoice fleet;
  int local = 1;
  int threads = 0;
  std::string model;
  SettingFlags settings;  // transport; else the cluster file's, or auto.
  std::string format = "md";
  DoctorOptions what;
};

BenchWorkers WorkersOfFile(const cluster::ClusterConfig& config) {
  BenchWorkers workers;
  for (const cluster::WorkerConfig& worker : config.workers) {
    workers.addresses.push_back(cluster::FormatAddress(
        {worker.address.empty() ? worker.host : worker.address, worker.port}));
    workers.machines.push_back(worker.host);
  }
  return workers;
}

// A rank that no worker has held has no address.
BenchWorkers WorkersOfFleet(const v1::ClusterState& state) {
  BenchWorkers workers;
  workers.addresses.resize(state.world_size());
  workers.machines.resize(state.world_size());
  for (const v1::WorkerState& worker : state.workers()) {
    if (worker.rank() >= state.world_size()) continue;
    workers.addresses[worker.rank()] = worker.address();
    workers.machines[worker.rank()] = worker.host();
  }
  return workers;
}

bool IsOnCoordinatorsHost(const cluster::ClusterConfig& config,
                          const cluster::WorkerConfig& worker) {
  const std::string& host = config.coordinator.host;
  return worker.host == host || worker.address == host ||
         (cluster::IsLoopback(worker.host) && cluster::IsLoopback(host));
}

// Returns the folder of the coordinator's state. Empty: unknown here, or the
// folder of the logs, of which every worker tells.
std::string StateDirOf(const cluster::ClusterConfig& config) {
  const v1::FleetSettings& settings = config.settings;
  if (settings.has_state_dir()) return settings.state_dir();
  if (!settings.has_log_dir()) return "";
  // Only this machine's environment is known.
  if (!cluster::IsLoopback(config.coordinator.host)) return "";
  return StateFolder(config.name).value_or("");
}

// Sets the folders that the fleet writes to, but for the logs', which workers
// know.
void SetFolders(const cluster::ClusterConfig& config,
                const BenchWorkers& workers, DoctorOptions* what) {
  const v1::FleetSettings& settings = config.settings;
  if (settings.has_cache_dir()) what->folders.push_back(settings.cache_dir());
  for (size_t rank = 0; rank < config.workers.size(); ++rank) {
    if (!IsOnCoordinatorsHost(config, config.workers[rank])) continue;
    what->state_dir = StateDirOf(config);
    what->state_address = workers.addresses[rank];
    return;
  }
}

// Sets each rank's packed bytes, if this host has the model's config.json.
void SetShardBytes(v1::FleetSettings settings, DoctorFindings* findings) {
  cluster::FillDefaults(&settings);
  const auto spec = cluster::LoadModelSpec(settings.model());
  if (!spec.ok()) return;
  for (WorkerFindings& worker : findings->workers) {
    const auto plan =
        cluster::PlanShard(*spec, cluster::MeshOf(settings), worker.rank);
    if (!plan.ok()) return;
    worker.shard_bytes =
        cluster::ShardSizesOf(*spec, *plan,
                              cluster::FormsOf(settings.dtype(), *spec),
                              /*layout=*/nullptr, !settings.without_mtp())
            .total();
  }
}

absl::StatusOr<DoctorFindings> ExamineFleet(const DoctorVerb& options,
                                            const FleetPlace& place,
                                            std::string* model) {
  const absl::StatusOr<v1::ClusterState> state = DescribeFleet(place.address);
  RF_RETURN_IF_ERROR(Interrupt::Get().status());
  DoctorOptions what = options.what;
  BenchWorkers workers;
  if (place.config.has_value()) {
    // Workers can be examined before their coordinator starts.
    if (state.ok()) RF_RETURN_IF_ERROR(CheckIsOfFile(*state, *place.config));
    workers = WorkersOfFile(*place.config);
    if (model->empty()) *model = place.config->settings.model();
    if (options.settings.Given("transport").empty()) {
      what.transport = place.config->settings.transport();
    }
  } else {
    RF_RETURN_IF_ERROR(
        Annotate(state.status(), absl::StrCat("coordinator ", place.address)));
    workers = WorkersOfFleet(*state);
    if (model->empty()) *model = state->model();
  }
  what.disk_path = *model;
  if (!place.config.has_value()) return ExamineWorkers(workers, what);
  const v1::FleetSettings& settings = place.config->settings;
  SetFolders(*place.config, workers, &what);
  std::unique_ptr<HostWorkers> hosts;
  std::optional<CoordinatorFindings> coordinator;
  if (what.quick && !state.ok()) {
    RF_ASSIGN_OR_RETURN(
        hosts, HostWorkers::Start(options.fleet.cluster, *place.config));
    RF_ASSIGN_OR_RETURN(coordinator,
                        ExamineCoordinatorHost(*place.config, *model));
  }
  absl::StatusOr<DoctorFindings> findings = ExamineWorkers(workers, what);
  if (hosts != nullptr) {
    RF_RETURN_IF_ERROR(hosts->Stop());
  }
  if (!findings.ok()) return findings;
  findings->coordinator = std::move(coordinator);
  findings->cache_dir = settings.cache_dir();
  SetShardBytes(settings, &*findings);
  return findings;
}

absl::StatusOr<DoctorFindings> ExamineLocally(const DoctorVerb& options) {
  RF_ASSIGN_OR_RETURN(const std::unique_ptr<LocalWorkers> local,
                      LocalWorkers::Create(options.local, options.threads));
  absl::StatusOr<DoctorFindings> findings;
  absl::Status status = local->Spawn({"--coordinator", "none"});
  if (status.ok()) {
    const auto addresses = local->WaitAddresses();
    status = addresses.status();
    if (status.ok()) {
      DoctorOptions what = options.what;
      what.disk_path = options.model;
      findings = ExamineWorkers(
          {*addresses,
           std::vector<std::string>(addresses->size(), "this machine")},
          what);
      status = findings.status();
    }
  }
  if (status.ok()) status = local->Stop();
  if (status.ok()) return findings;
  local->Explain(status);
  return status;
}

// Errors: UNAVAILABLE: a worker did not answer. Those of StartProblems.
absl::Status CheckFitForStart(const DoctorFindings& findings) {
  if (findings.absent.empty()) {
    const std::vector<absl::Status> problems = StartProblems(findings);
    return problems.empty() ? absl::OkStatus()
                            : Annotate(problems.front(), "doctor");
  }
  return absl::UnavailableError(absl::StrCat(
      "doctor: ", AbsentText(findings.absent.front()), " does not answer",
      findings.absent.size() > 1
          ? absl::StrCat(", nor do ", findings.absent.size() - 1, " more")
          : ""));
}

absl::Status RunDoctor(DoctorVerb options, Invocation& invocation) {
  RF_ASSIGN_OR_RETURN(v1::FleetSettings settings, options.settings.Read());
  cluster::FillDefaults(&settings);
  options.what.transport = settings.transport();
  std::string model =
      options.model.empty() ? "" : cluster::AbsoluteModel(options.model);
  std::error_code error;
  if (!options.fleet.given() && !model.empty() &&
      !cluster::IsSyntheticModel(model) &&
      !std::filesystem::exists(model, error)) {
    return absl::NotFoundError(
        absl::StrCat("doctor: --model ", model, ": no such file or folder"));
  }
  absl::StatusOr<DoctorFindings> findings;
  if (options.fleet.given()) {
    RF_ASSIGN_OR_RETURN(const FleetPlace place, FindFleet(options.fleet));
    findings = ExamineFleet(options, place, &model);
  } else {
    findings = ExamineLocally(options);
  }
  if (!findings.ok()) return Annotate(findings.status(), "doctor");
  findings->model = model;
  RF_RETURN_IF_ERROR(options.format == "json"
                         ? PrintJson(DoctorJson(*findings))
                         : PrintText(DoctorMarkdown(*findings)));
  invocation.json = false;
  return CheckFitForStart(*findings);
}

}  // namespace

void RegisterDoctor(CLI::App& app, Invocation& invocation) {
  CLI::App* verb = app.add_subcommand(
      "doctor", "Measure a fleet's hosts and links, and say what to change");
  verb->group("Fleet");
  verb->footer(kDoctorFooter);
  auto options = std::make_shared<DoctorVerb>();
  const FleetFlags fleet = AddFleetChoice(*verb, options->fleet);
  verb->add_option("--local", options->local,
                   "Start this many workers on this machine")
      ->check(CLI::Range(1, 16))
      ->excludes(fleet.cluster)
      ->excludes(fleet.coordinator)
      ->capture_default_str();
  verb->add_option("-t,--threads", options->threads,
                   "Threads per local worker; 0: the cores divided by --local")
      ->check(CLI::Range(0, 1024))
      ->excludes(fleet.cluster)
      ->excludes(fleet.coordinator)
      ->capture_default_str();
  verb->add_option(
          "-m,--model", options->model,
          "Checkpoint whose disk is measured, and that the plan is for")
      ->check(Utf8Path());
  options->settings.Add(*verb, "transport");
  verb->add_flag("--quick", options->what.quick,
                 "Seconds: no rates, one exchange over all workers");
  verb->add_option("--time-ms", options->what.time_ms,
                   "Milliseconds for each measurement")
      ->check(CLI::Range(1, 10000))
      ->capture_default_str();
  AddFormatOptions(*verb, {"md", "json"}, &options->format);
  verb->callback([options, &invocation] {
    invocation.json = options->format == "json";
    invocation.run = [options, &invocation] {
      return RunDoctor(*options, invocation);
    };
  });
}

}  // namespace ringfleet::coordinator::cli
