// SPDX-License-Identifier: Apache-2.0
#include "coordinator/cli/collectives.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cluster/algorithm_table.h"
#include "cluster/config.h"
#include "cluster/status.h"
#include "cluster/status_macros.h"
#include "coordinator/cli/calibration.h"
#include "coordinator/cli/collectives_report.h"
#include "coordinator/cli/collectives_request.h"
#include "coordinator/cli/collectives_run.h"
#include "coordinator/cli/interrupt.h"
#include "coordinator/cli/json_output.h"
#include "coordinator/cli/local_workers.h"
#include "coordinator/cli/progress.h"
#include "coordinator/cli/session.h"

namespace ringfleet::coordinator::cli {
namespace {

constexpr int kDefaultWorld = 2;
constexpr std::chrono::seconds kDescribeTimeout{2};

constexpr char kCollectivesFooter[] = R"(
Starts workers on this machine (or uses idle ones of a cluster file) and times
the exchanges a model makes between them, over vectors of generated numbers.

Each line is one operation over one vector by one algorithm:
  bytes         of the whole vector as float32 in memory: the sum, what is
                gathered, what is scattered, what one rank sends to all; with
                --wire bf16 or int8 fewer travel (wire_bytes, in JSON)
  p50, p99 us   over the timed iterations, 1000 up to 64 KiB and 100 above, as
                far as --seconds allows; a barrier comes before each; the time
                of one is the mean over the ranks, each by its own clock
  algbw, busbw  bytes / p50 in GB/s of 1e9 bytes, and the same times what each
                rank must send: 2(n-1)/n for all_reduce, (n-1)/n for all_gather,
                reduce_scatter and all_to_all, 1 for broadcast (as nccl-tests)
  CPU s/GB      of one worker process, spinning included
  wrong         elements that are not what each rank computed by itself: bit for
                bit, but for a ring's sums, whose order depends on the segment,
                within the rounding of that many additions; and 1 for each rank
                whose result is not rank 0's. Anything but 0 ends with exit 4
  hash          of the result; one_shot and two_shot must agree

Algorithms: one_shot sends everything to everybody, two_shot the segments to
their owners and the sums back, ring both ways round. auto is what a model's
exchange of that size takes; --calibrate measures where the borders between them
lie here and writes them as a table, for --collectives of other commands and for
`collectives:` of a cluster file.

Examples:
  ringfleet collectives --world 2 --op all_reduce --bytes 4,28k,1.8m
  ringfleet collectives --world 4 --op all --bytes 100000 --json
  ringfleet collectives --world 4 --algo one_shot,two_shot,ring --bytes 64k,1m
  ringfleet collectives --world 2 --wire bf16 --poll spin
  ringfleet collectives --world 4 --calibrate --output collectives.json
  ringfleet collectives --cluster cluster.yaml
      between hosts: workers that run without their coordinator, as
      `cluster/launch/ssh/fleet.sh start --cluster cluster.yaml --hosts 0-3`
      starts them

Sizes: k, m, g are powers of 1024, kB, MB, GB powers of 1000; a size with a
fraction is rounded down to whole elements. Two workers that spin need two
cores; with more workers than cores expect times of the scheduler's.
)";

struct CollectivesVerb {
  CollectivesOptions what;
  int world = 0;  // 0: 2, or that of the cluster file.
  std::string cluster;
  std::string output;  // Of a calibration: where its table goes.
  std::string format = "md";
};

// The workers of a cluster file, which must not belong to a running fleet: its
// coordinator would take them back in the middle.
absl::StatusOr<BenchWorkers> WorkersOf(const CollectivesVerb& options) {
  RF_ASSIGN_OR_RETURN(const cluster::ClusterConfig config,
                      cluster::LoadClusterConfig(options.cluster));
  const size_t world = config.workers.size();
  if (options.world != 0 && static_cast<size_t>(options.world) != world) {
    return absl::InvalidArgumentError(
        absl::StrCat("usage: --world ", options.world, ", but ",
                     options.cluster, " has ", world, " workers"));
  }
  BenchWorkers workers;
  for (const cluster::WorkerConfig& worker : config.workers) {
    if (worker.port == 0) {
      return absl::InvalidArgumentError(
          absl::StrCat(options.cluster, ": workers[", workers.addresses.size(),
                       "].port is 0, want the port it listens on"));
    }
    workers.addresses.push_back(
        cluster::FormatAddress({worker.address, worker.port}));
    workers.hosts.push_back(worker.host);
  }
  const std::string coordinator = cluster::FormatAddress(
      {config.coordinator.host, config.coordinator.port});
  InterruptibleCall call;
  call.context()->set_deadline(std::chrono::system_clock::now() +
                               kDescribeTimeout);
  v1::ClusterState state;
  const grpc::Status status =
      v1::Coordinator::NewStub(ConnectChannel(coordinator))
          ->DescribeCluster(call.context(), v1::DescribeClusterRequest(),
                            &state);
  RF_RETURN_IF_ERROR(Interrupt::Get().status());
  if (status.ok()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "collectives: the coordinator of fleet ", state.name(), " runs at ",
        coordinator,
        ", want workers without one: stop it with `fleet.sh stop "
        "--hosts coordinator`, or measure with --world N on this machine"));
  }
  return workers;
}

std::string Describe(const v1::CollectiveCase& asked) {
  return absl::StrCat(cluster::OperationText(
                          static_cast<cluster::Operation>(asked.operation())),
                      " ",
                      cluster::AlgorithmText(
                          static_cast<cluster::Algorithm>(asked.algorithm())),
                      " ", asked.bytes(), " bytes");
}

absl::StatusOr<std::vector<v1::CollectiveFigures>> Measure(
    const BenchWorkers& workers, const v1::MeasureCollectivesRequest& request) {
  Progress progress;
  int done = 0;
  const auto show = [&] {
    if (done == request.cases_size()) return;
    progress.Phase(absl::StrFormat("%d of %d: %s", done + 1,
                                   request.cases_size(),
                                   Describe(request.cases(done))));
  };
  show();
  return RunCollectives(workers, request, [&](const v1::CollectiveFigures&) {
    ++done;
    show();
  });
}

absl::StatusOr<std::vector<v1::CollectiveFigures>> MeasureLocally(
    int world, const v1::MeasureCollectivesRequest& request) {
  RF_ASSIGN_OR_RETURN(const std::unique_ptr<LocalWorkers> local,
                      LocalWorkers::Create(world));
  absl::StatusOr<std::vector<v1::CollectiveFigures>> figures;
  absl::Status status = local->Spawn({"--coordinator", "none"});
  if (status.ok()) {
    const absl::StatusOr<std::vector<std::string>> addresses =
        local->WaitAddresses();
    status = addresses.status();
    if (status.ok()) {
      figures =
          Measure({*addresses, std::vector<std::string>(world, "this machine")},
                  request);
      status = figures.status();
    }
  }
  if (status.ok()) status = local->Stop();
  if (status.ok()) return figures;
  // A worker that has ended explains more than what its peers report.
  if (absl::IsUnavailable(status) || absl::IsAborted(status)) {
    const absl::Status ended = local->CheckRunning();
    if (!ended.ok()) status = ended;
  }
  local->Explain(status);
  return status;
}

absl::Status CheckRight(const std::vector<v1::CollectiveFigures>& all) {
  for (const v1::CollectiveFigures& figures : all) {
    if (figures.wrong() == 0) continue;
    return absl::DataLossError(
        absl::StrCat("collectives: ", Describe(figures.measured()), ": ",
                     figures.wrong(), " wrong elements, want 0"));
  }
  return absl::OkStatus();
}

// The table of the request with the rows that were measured.
absl::StatusOr<cluster::AlgorithmTable> Calibrate(
    const v1::MeasureCollectivesRequest& request,
    const std::vector<v1::CollectiveFigures>& all, int world) {
  std::vector<CollectiveTiming> timings;
  for (const v1::CollectiveFigures& figures : all) {
    const v1::CollectiveCase& measured = figures.measured();
    timings.push_back({static_cast<cluster::Operation>(measured.operation()),
                       static_cast<cluster::Algorithm>(measured.algorithm()),
                       figures.wire_bytes(), figures.p50_us()});
  }
  RF_ASSIGN_OR_RETURN(
      const cluster::AlgorithmTable base,
      cluster::AlgorithmTable::FromJson(request.algorithm_table()));
  std::vector<cluster::AlgorithmTable::Row> rows = base.rows();
  for (cluster::AlgorithmTable::Row& row : rows) {
    const bool measured =
        row.size == world &&
        std::any_of(timings.begin(), timings.end(),
                    [&](const CollectiveTiming& timing) {
                      return timing.operation == row.operation;
                    });
    if (measured) row = FitRow(row.operation, world, timings);
  }
  return cluster::AlgorithmTable::FromRows(rows);
}

absl::Status WriteFile(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  return file ? absl::OkStatus()
              : absl::InvalidArgumentError(absl::StrCat(
                    "collectives: --output ", path, " cannot be written"));
}

absl::Status PrintRows(const CollectivesVerb& options, int world,
                       const std::vector<v1::CollectiveFigures>& all) {
  return options.format == "json" ? PrintJson(CollectivesJson(all, world))
                                  : PrintText(CollectivesTable(all, world));
}

absl::Status Run(const CollectivesVerb& options, Invocation& invocation) {
  RF_ASSIGN_OR_RETURN(const v1::MeasureCollectivesRequest request,
                      CollectivesRequest(options.what));
  absl::StatusOr<std::vector<v1::CollectiveFigures>> all;
  int world = options.world == 0 ? kDefaultWorld : options.world;
  BenchWorkers remote;
  if (!options.cluster.empty()) {
    RF_ASSIGN_OR_RETURN(remote, WorkersOf(options));
    world = static_cast<int>(remote.addresses.size());
  }
  if (options.what.calibrate && world < 2) {
    return absl::InvalidArgumentError(
        "usage: --calibrate --world 1, want 2 or more");
  }
  // Found out before minutes of measuring.
  if (!options.output.empty() &&
      !std::ofstream(options.output, std::ios::app)) {
    return absl::InvalidArgumentError(
        absl::StrCat("usage: --output ", options.output, " cannot be written"));
  }
  all = remote.addresses.empty() ? MeasureLocally(world, request)
                                 : Measure(remote, request);
  RF_RETURN_IF_ERROR(all.status());
  const absl::Status right = CheckRight(*all);
  if (!options.what.calibrate) {
    RF_RETURN_IF_ERROR(PrintRows(options, world, *all));
    // The rows are the one document of this command, also when they show an
    // error.
    invocation.json = false;
    return right;
  }
  RF_RETURN_IF_ERROR(right);
  RF_ASSIGN_OR_RETURN(const cluster::AlgorithmTable table,
                      Calibrate(request, *all, world));
  if (options.output.empty()) {
    std::fputs(CollectivesTable(*all, world).c_str(), stderr);
    return PrintText(table.ToJson());
  }
  RF_RETURN_IF_ERROR(PrintRows(options, world, *all));
  invocation.json = false;
  return WriteFile(options.output, table.ToJson());
}

}  // namespace

void RegisterCollectives(CLI::App& app, Invocation& invocation) {
  CLI::App* verb = app.add_subcommand(
      "collectives", "Measure and check the exchanges between workers");
  verb->group("Tools");
  verb->footer(kCollectivesFooter);
  auto options = std::make_shared<CollectivesVerb>();
  CollectivesOptions& what = options->what;
  verb->add_option("--world", options->world,
                   "Workers to start on this machine [2]")
      ->check(CLI::Range(1, cluster::kMaxGroupSize));
  verb->add_option("--cluster", options->cluster,
                   "Cluster file of idle workers, which run already");
  verb->add_option("--op", what.ops,
                   "all_reduce, all_gather, reduce_scatter, all_to_all, "
                   "broadcast, barrier; several, or all [all_reduce]");
  verb->add_option("--bytes", what.bytes,
                   "Sizes of the vector, as in 4,28k,1.8m,1GiB "
                   "[4,14k,28k,1792k,7m]");
  verb->add_option("--algo", what.algos,
                   "auto, one_shot, two_shot, ring; or several")
      ->capture_default_str();
  verb->add_option("--wire", what.wires,
                   "Elements between workers: f32, bf16, int8; or several")
      ->capture_default_str();
  verb->add_option("--transport", what.transport,
                   "grpc, or auto: what workers of one host agree on")
      ->capture_default_str();
  verb->add_option("--poll", what.poll,
                   "How a worker waits: spin, block, or auto: spin where every "
                   "worker of a host has a core")
      ->capture_default_str();
  verb->add_flag("--no-pin", what.no_pin,
                 "Let workers move between cores; else each keeps one while "
                 "there are enough, as mpirun does it");
  verb->add_option("--table", what.table,
                   "What auto follows, and what --calibrate starts from: a "
                   "file that --calibrate wrote");
  verb->add_option("--iterations", what.iterations,
                   "Timed ones of each line; 0: by size and time")
      ->check(CLI::Range(0, 1'000'000))
      ->capture_default_str();
  verb->add_option("--seconds", what.seconds,
                   "About what one line may take [2; 0.3 of --calibrate]")
      ->check(CLI::Range(0.001, 3600.0));
  what.timeout_s = 30;
  verb->add_option("--timeout", what.timeout_s,
                   "Seconds after which a collective has failed")
      ->check(CLI::Range(0.1, 3600.0))
      ->capture_default_str();
  auto* calibrate = verb->add_flag(
      "--calibrate", what.calibrate,
      "Find the borders between the algorithms and write them as a table");
  // Hidden: known only to say that it is not in this version.
  verb->add_flag("--tune", what.tune)->group("")->excludes(calibrate);
  verb->add_option("--output", options->output,
                   "File for the table of --calibrate [stdout]")
      ->needs(calibrate);
  auto* format = verb->add_option("-o", options->format, "md or json")
                     ->check(CLI::IsMember({"md", "json"}))
                     ->capture_default_str();
  verb->add_flag_callback(
          "--json", [options] { options->format = "json"; }, "As -o json")
      ->excludes(format);
  verb->callback([options, &invocation] {
    invocation.json = options->format == "json";
    invocation.run = [options, &invocation] {
      return Run(*options, invocation);
    };
  });
}

}  // namespace ringfleet::coordinator::cli
