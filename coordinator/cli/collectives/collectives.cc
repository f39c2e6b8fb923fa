// SPDX-License-Identifier: Apache-2.0
#include "coordinator/cli/collectives/collectives.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cluster/collectives/algorithm_table.h"
#include "cluster/collectives/tile_table.h"
#include "cluster/config/config.h"
#include "cluster/model/dtype_names.h"
#include "cluster/process/status_macros.h"
#include "coordinator/cli/collectives/calibration.h"
#include "coordinator/cli/collectives/collectives_report.h"
#include "coordinator/cli/collectives/collectives_request.h"
#include "coordinator/cli/collectives/collectives_run.h"
#include "coordinator/cli/interrupt.h"
#include "coordinator/cli/json_output.h"
#include "coordinator/cli/local_workers.h"
#include "coordinator/cli/output_file.h"
#include "coordinator/cli/progress.h"
#include "coordinator/cli/session.h"
#include "coordinator/cli/value_checks.h"

namespace ringfleet::coordinator::cli {
namespace {

constexpr int kDefaultWorld = 2;

constexpr char kCollectivesFooter[] = R"(
Starts workers on this machine, or uses idle ones of a cluster file, and times
a model's exchanges between them on vectors of generated numbers.

Each line is one operation over one vector by one algorithm:
  bytes         size of the whole vector as float32 in memory; with --wire bf16
                or int8 fewer bytes travel (wire_bytes, in JSON)
  p50, p99 us   over the timed iterations: 1000 up to 64 KiB and 100 above, as
                far as --seconds allows. A barrier comes before each. The time
                of an iteration is the mean over the ranks' own clocks
  algbw, busbw  bytes / p50 in GB/s of 1e9 bytes, and algbw times the part that
                each rank must send: 2(n-1)/n for all_reduce, (n-1)/n for
                all_gather, reduce_scatter and all_to_all, 1 for broadcast (as
                nccl-tests)
  CPU s/GB      CPU time of one worker process, spinning included, measured in
                iterations of their own
  wrong         elements that differ from the result that each rank computed
                alone, bit for bit; sums of a ring, whose order depends on the
                share, may differ by the rounding of their additions. Plus 1 for
                each rank whose result is not rank 0's. Anything but 0 exits
                with 4
  hash          hash of the result; one_shot and two_shot must agree

all_gather_matmul and matmul_reduce_scatter multiply [m, k] by [k, n] while they
exchange. The first gathers the rows of [m, k] for each worker's columns of the
weights. The second adds up [m, n] over workers that have a share of k each, and
scatters its rows. For these
  bytes         size of the exchanged matrix as float32, [m, k] or [m, n]; --bytes
                may give m in place of --m (rounded down, at least one row)
  p50, p99      of the fused operation. Printed beside it, and measured between
                its iterations: product and exchange in turn (unfused), product
                alone (compute), exchange alone (comm), each until the last
                worker is done
  overlap       1 - (fused - compute) / comm: the part of the exchange that the
                product hides (as OSU's); at most compute / comm if that is
                below 1
  wire          encoding of summands; float32 round a ring. [m, k] travels as the
                product reads it, whatever --wire says: float32, or 8-bit codes
                for integer weights

Algorithms: one_shot sends everything to every rank. two_shot sends shares to their
owners and the sums back. ring goes both ways round. For matmul_reduce_scatter,
one_shot sends summands to their owners, and ring sends float32 sums both ways.
auto takes a model's choice for the size.

--calibrate measures the size borders between algorithms and, with vectors of 4 MiB
and more, the best slices of a ring. Its table is for --collectives of other
commands and for `collectives:` of a cluster file. --tune tries the cuts of fused
products and writes the best by processor and shape, for --tiles of other commands
and `tiles:` of a cluster file. No cut changes a result. Tune with the model's
--wire (default bf16).

Examples:
  ringfleet collectives --world 2 --op all_reduce --bytes 4,28k,1.8m
  ringfleet collectives --world 4 --op all --bytes 100000 --json
  ringfleet collectives --world 4 --algo one_shot,two_shot,ring --bytes 64k,1m
  ringfleet collectives --world 2 --wire bf16 --poll spin
  ringfleet collectives --world 4 --calibrate --output collectives.json
  ringfleet collectives --world 2 --op all_gather_matmul --m 128,512
  ringfleet collectives --tune --m 512 --wire bf16 --output tiles.json
  ringfleet collectives --cluster cluster.yaml
      between hosts: workers that run without their coordinator, as
      `cluster/launch/ssh/fleet.sh start --cluster cluster.yaml --hosts 0-3`
      starts them

Sizes: k, m, g are powers of 1024, kB, MB, GB powers of 1000; a size with a
fraction is rounded down to whole elements. Two workers that spin need two
cores; with more workers than cores, times are the scheduler's.
)";

struct CollectivesVerb {
  CollectivesOptions what;
  int world = 0;  // 0: 2, or that of the cluster file.
  std::string cluster;
  std::string output;  // File for the table of a calibration or tuning.
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
    workers.machines.push_back(worker.host);
  }
  const std::string coordinator = CoordinatorAddressOf(config);
  const absl::StatusOr<v1::ClusterState> state = DescribeFleet(coordinator);
  RF_RETURN_IF_ERROR(Interrupt::Get().status());
  if (state.ok()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "collectives: the coordinator of fleet ", state->name(), " runs at ",
        coordinator,
        ", want workers without one: stop it with `fleet.sh stop "
        "--hosts coordinator`, or measure with --world N on this machine"));
  }
  RF_RETURN_IF_ERROR(FindMachines(&workers));
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
    if (done >= request.cases_size()) return;
    progress.Phase(absl::StrFormat("%d of %d: %s", done + 1,
                                   request.cases_size(),
                                   Describe(request.cases(done))));
  };
  show();
  absl::StatusOr<std::vector<v1::CollectiveFigures>> figures =
      RunCollectives(workers, request, [&](const v1::CollectiveFigures&) {
        ++done;
        show();
      });
  if (figures.ok() &&
      figures->size() != static_cast<size_t>(request.cases_size())) {
    return absl::InternalError(absl::StrCat("collectives: ", figures->size(),
                                            " results from worker 0, want ",
                                            request.cases_size()));
  }
  return figures;
}

absl::StatusOr<std::vector<v1::CollectiveFigures>> MeasureLocally(
    int world, const v1::MeasureCollectivesRequest& request) {
  RF_ASSIGN_OR_RETURN(
      const std::unique_ptr<LocalWorkers> local,
      LocalWorkers::Create(world, static_cast<int>(request.threads())));
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

using MeasureFunction =
    absl::FunctionRef<absl::StatusOr<std::vector<v1::CollectiveFigures>>(
        const v1::MeasureCollectivesRequest&)>;

// Returns true if a case is measured that a ring of two cuts into slices.
bool AnyInSlices(const v1::MeasureCollectivesRequest& request) {
  return std::any_of(
      request.cases().begin(), request.cases().end(),
      [](const v1::CollectiveCase& measured) {
        return measured.operation() != v1::COLLECTIVE_OPERATION_BROADCAST &&
               measured.bytes() >= 4 * cluster::kDefaultRingSliceBytes;
      });
}

// The slices with which a ring sums a long vector soonest.
absl::StatusOr<uint64_t> FitSlices(CollectivesOptions options,
                                   MeasureFunction measure) {
  constexpr uint64_t kVectorBytes = uint64_t{64} << 20;
  constexpr uint64_t kSliceBytes[] = {cluster::kDefaultRingSliceBytes,
                                      uint64_t{4} << 20, uint64_t{16} << 20, 0};
  options.calibrate = false;
  options.ops = "all_reduce";
  options.bytes = absl::StrCat(kVectorBytes);
  options.algos = "ring";
  options.wires = "f32";
  if (options.seconds == 0) options.seconds = 1;
  RF_ASSIGN_OR_RETURN(v1::MeasureCollectivesRequest request,
                      CollectivesRequest(options));
  uint64_t best = 0;
  double best_us = std::numeric_limits<double>::infinity();
  for (const uint64_t slice_bytes : kSliceBytes) {
    RF_ASSIGN_OR_RETURN(const cluster::AlgorithmTable table,
                        cluster::AlgorithmTable::FromRows({}, slice_bytes));
    request.set_algorithm_table(table.ToJson());
    RF_ASSIGN_OR_RETURN(const std::vector<v1::CollectiveFigures> figures,
                        measure(request));
    RF_RETURN_IF_ERROR(CheckRight(figures));
    const double us = figures.at(0).p50_us();
    std::fprintf(stderr, "ring_slice_bytes %llu: %.1f ms\n",
                 static_cast<unsigned long long>(slice_bytes), us / 1e3);
    if (us < best_us) std::tie(best, best_us) = std::pair(slice_bytes, us);
  }
  return best;
}

// `base` with the rows that were measured.
absl::StatusOr<cluster::AlgorithmTable> Calibrate(
    const cluster::AlgorithmTable& base,
    const std::vector<v1::CollectiveFigures>& all, int world,
    uint64_t ring_slice_bytes) {
  std::vector<CollectiveTiming> timings;
  for (const v1::CollectiveFigures& figures : all) {
    const v1::CollectiveCase& measured = figures.measured();
    timings.push_back({static_cast<cluster::Operation>(measured.operation()),
                       static_cast<cluster::Algorithm>(measured.algorithm()),
                       figures.wire_bytes(), figures.p50_us()});
  }
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
  return cluster::AlgorithmTable::FromRows(rows, ring_slice_bytes);
}

// The table of the request with the best cut of each shape that was measured.
absl::StatusOr<cluster::TileTable> Tune(
    const v1::MeasureCollectivesRequest& request,
    const std::vector<v1::CollectiveFigures>& all, int world) {
  cluster::TileTable table;
  if (!request.tile_table().empty()) {
    RF_ASSIGN_OR_RETURN(table,
                        cluster::TileTable::FromJson(request.tile_table()));
  }
  std::vector<std::pair<cluster::TileTable::Row, double>> best;
  for (const v1::CollectiveFigures& figures : all) {
    const v1::FusedProduct& product = figures.measured().product();
    const cluster::TileTable::Row row = {
        .key = {.cpu = figures.cpu(),
                .operation = static_cast<cluster::Operation>(
                    figures.measured().operation()),
                .rows = product.rows(),
                .inputs = product.inputs(),
                .outputs = product.outputs(),
                .dtype = std::string(cluster::WeightDtypeName(product.dtype())),
                .world = world},
        .tile_columns = product.tiles().tile_columns(),
        .segment_bytes = product.tiles().segment_bytes(),
        .piece_rows = product.tiles().piece_rows()};
    const auto same = std::find_if(
        best.begin(), best.end(),
        [&](const auto& other) { return other.first.key == row.key; });
    if (same == best.end()) {
      best.emplace_back(row, figures.p50_us());
    } else if (figures.p50_us() < same->second) {
      *same = {row, figures.p50_us()};
    }
  }
  for (const auto& [row, time] : best) table.Set(row);
  return table;
}

absl::Status WriteTable(const std::string& path, const std::string& text) {
  const absl::Status written = WriteOutputFile(path, text);
  if (written.ok()) return written;
  // When the command began it could be: this is no usage error.
  return absl::ResourceExhaustedError(
      absl::StrCat("collectives: --output ", written.message()));
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
  if (!options.output.empty() && !options.what.calibrate &&
      !options.what.tune) {
    return absl::InvalidArgumentError(
        "usage: --output is for --calibrate or --tune");
  }
  // Found out before minutes of measuring.
  if (!options.output.empty()) {
    const absl::Status writable = OutputFile::Check(options.output);
    if (!writable.ok()) {
      return absl::Status(writable.code(),
                          absl::StrCat("usage: --output ", writable.message()));
    }
  }
  const auto measure = [&](const v1::MeasureCollectivesRequest& wanted) {
    return remote.addresses.empty() ? MeasureLocally(world, wanted)
                                    : Measure(remote, wanted);
  };
  all = measure(request);
  RF_RETURN_IF_ERROR(all.status());
  const absl::Status right = CheckRight(*all);
  if (!options.what.calibrate && !options.what.tune) {
    RF_RETURN_IF_ERROR(PrintRows(options, world, *all));
    // The rows are the one document of this command, also when they show an
    // error.
    invocation.json = false;
    return right;
  }
  RF_RETURN_IF_ERROR(right);
  std::string text;
  if (options.what.tune) {
    RF_ASSIGN_OR_RETURN(const cluster::TileTable table,
                        Tune(request, *all, world));
    text = table.ToJson();
  } else {
    RF_ASSIGN_OR_RETURN(
        const cluster::AlgorithmTable base,
        cluster::AlgorithmTable::FromJson(request.algorithm_table()));
    uint64_t slice_bytes = base.ring_slice_bytes();
    if (AnyInSlices(request)) {
      RF_ASSIGN_OR_RETURN(slice_bytes, FitSlices(options.what, measure));
    }
    RF_ASSIGN_OR_RETURN(const cluster::AlgorithmTable table,
                        Calibrate(base, *all, world, slice_bytes));
    text = table.ToJson();
  }
  if (options.output.empty()) {
    std::fputs(CollectivesTable(*all, world).c_str(), stderr);
    return PrintText(text);
  }
  RF_RETURN_IF_ERROR(PrintRows(options, world, *all));
  invocation.json = false;
  return WriteTable(options.output, text);
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
                   "broadcast, barrier; several, or all of these; or "
                   "all_gather_matmul, matmul_reduce_scatter [all_reduce]");
  verb->add_option("--bytes", what.bytes,
                   "Sizes of the vector, as in 4,28k,1.8m,1GiB "
                   "[4,14k,28k,1792k,7m]")
      ->check(NotEmpty());
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
                   "How a worker waits: spin, block, or auto: spin, and yield "
                   "between looks if workers share cores")
      ->capture_default_str();
  verb->add_flag("--no-pin", what.no_pin,
                 "Let workers move between cores; else each keeps one while "
                 "there are enough, as mpirun does it");
  verb->add_option("--table", what.table,
                   "Table for auto and start of --calibrate: a file that "
                   "--calibrate wrote");
  verb->add_option("--iterations", what.iterations,
                   "Timed iterations of each line; 0: by size and time")
      ->check(CLI::Range(0, 1'000'000))
      ->capture_default_str();
  verb->add_option("--seconds", what.seconds,
                   "Rough time limit of one line [2; 0.3 with --calibrate and "
                   "--tune]")
      ->check(CLI::Range(0.001, 3600.0));
  what.timeout_s = 30;
  verb->add_option("--timeout", what.timeout_s,
                   "Seconds after which a collective has failed")
      ->check(CLI::Range(0.1, 3600.0))
      ->capture_default_str();
  auto* calibrate = verb->add_flag(
      "--calibrate", what.calibrate,
      "Find the borders between the algorithms and write them as a table");
  verb->add_flag("--tune", what.tune,
                 "Find the best cuts of fused products and write them as a "
                 "table")
      ->excludes(calibrate);
  verb->add_option("--output", options->output,
                   "File for the table of --calibrate or --tune [stdout]");
  verb->add_option("--m", what.m,
                   "Rows of fused products, several [512, or by --bytes]")
      ->check(NotEmpty());
  verb->add_option("--n", what.n,
                   "Outputs of fused products [24576; a scatter: 7168]")
      ->check(CLI::Range(1, 1 << 20));
  verb->add_option("--k", what.k,
                   "Inputs of fused products [1536; a scatter: 16384]")
      ->check(CLI::Range(1, 1 << 20));
  verb->add_option("--dtype", what.dtype,
                   "Weights of fused products: f32, bf16, int8 or int4 [int8]");
  verb->add_option(
      "--tiles", what.tiles,
      "Cuts of fused products: a file that --tune wrote [by caches "
      "and instructions]");
  verb->add_option(
          "-t,--threads", what.threads,
          "Threads of each worker for products [its part of the cores]")
      ->check(CLI::Range(1, 1024));
  AddFormatOptions(*verb, {"md", "json"}, &options->format, "-o");
  verb->callback([options, &invocation] {
    invocation.json = options->format == "json";
    invocation.run = [options, &invocation] {
      return Run(*options, invocation);
    };
  });
}

}  // namespace ringfleet::coordinator::cli
