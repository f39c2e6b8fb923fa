// SPDX-License-Identifier: Apache-2.0
#include "worker/measuring/measure_collectives.h"

#include <xxhash.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cluster/collectives/group_communicator.h"
#include "cluster/collectives/tile_table.h"
#include "cluster/model/dtype_names.h"
#include "cluster/process/process_limits.h"
#include "cluster/process/status_macros.h"
#include "cluster/wire/frame.h"
#include "cluster/wire/op_descriptor.h"
#include "kernels/thread_pool.h"
#include "worker/loading/host.h"
#include "worker/measuring/collectives_bench.h"

namespace ringfleet::worker {
namespace {

using cluster::Algorithm;
using cluster::AlgorithmTable;
using cluster::Operation;
using cluster::Wire;

constexpr int kMaxCases = 4096;
constexpr uint32_t kMaxThreads = 1024;
constexpr int kMaxIterations = 1'000'000;
// Largest vector. Ranks would wait too long for each other's generation of a
// larger one.
constexpr uint64_t kMaxBytes = uint64_t{4} << 30;
constexpr uint64_t kMaxProductSize = uint64_t{1} << 20;
// Share of the available memory. The rest is for frames under way.
constexpr double kMemoryShare = 0.8;

// Protocol numbers are those of a frame's op_descriptor (types.proto).
absl::StatusOr<Operation> OperationFromProto(v1::CollectiveOperation value) {
  if (value == v1::COLLECTIVE_OPERATION_UNSPECIFIED ||
      !v1::CollectiveOperation_IsValid(value)) {
    return absl::InvalidArgumentError(
        absl::StrCat("operation ", static_cast<int>(value), ", want 1 to ",
                     static_cast<int>(v1::CollectiveOperation_MAX)));
  }
  return static_cast<Operation>(value);
}

std::optional<cluster::Spin> SpinFor(v1::PollMode poll) {
  switch (poll) {
    case v1::POLL_MODE_AUTO:
      return cluster::Spin::kAuto;
    case v1::POLL_MODE_SPIN:
      return cluster::Spin::kAlways;
    case v1::POLL_MODE_BLOCK:
      return cluster::Spin::kNever;
    default:
      return std::nullopt;
  }
}

// Returns the name of the transport that carries this rank's frames.
std::string TransportName(const v1::MeasureCollectivesRequest& request,
                          int shared_lanes) {
  if (shared_lanes == 0) return "grpc";
  const bool one_host = request.ranks_on_host() ==
                        static_cast<uint32_t>(request.addresses_size());
  return one_host ? "shm" : "grpc+shm";
}

absl::StatusOr<kernels::WeightForm> FormFromProto(v1::Dtype dtype) {
  switch (dtype) {
    case v1::DTYPE_F32:
      return kernels::WeightForm::kF32;
    case v1::DTYPE_BF16:
      return kernels::WeightForm::kBf16;
    case v1::DTYPE_INT8:
      return kernels::WeightForm::kInt8;
    case v1::DTYPE_INT4:
      return kernels::WeightForm::kInt4;
    default:
      return absl::InvalidArgumentError(absl::StrCat(
          "dtype ", static_cast<int>(dtype), ", want F32, BF16, INT8 or INT4"));
  }
}

// Returns the fused case with the tiles of the request, or of its table for
// this processor.
absl::StatusOr<FusedCase::Spec> PlanFused(const v1::CollectiveCase& asked,
                                          const CollectiveCase::Spec& spec,
                                          const AlgorithmTable& table,
                                          const cluster::TileTable& tiles,
                                          int world_size) {
  const v1::FusedProduct& product = asked.product();
  FusedCase::Spec fused = {.operation = spec.operation, .wire = spec.wire};
  for (const uint64_t size :
       {product.rows(), product.inputs(), product.outputs()}) {
    if (size < 1 || size > kMaxProductSize) {
      return absl::InvalidArgumentError(absl::StrCat(
          "product: a size of ", size, ", want 1 to ", kMaxProductSize));
    }
  }
  fused.rows = product.rows();
  fused.inputs = product.inputs();
  fused.outputs = product.outputs();
  RF_ASSIGN_OR_RETURN(fused.form, FormFromProto(product.dtype()));
  FusedTiles cut = FusedTiles::Default(
      fused.form, spec.operation == Operation::kAllGatherMatmul
                      ? fused.inputs
                      : fused.inputs / static_cast<size_t>(world_size));
  if (product.has_tiles()) {
    for (const uint64_t part :
         {product.tiles().tile_columns(), product.tiles().segment_bytes(),
          product.tiles().piece_rows()}) {
      if (part < 1 || part > cluster::TileTable::kMaxCut) {
        return absl::InvalidArgumentError(
            absl::StrCat("product: a cut of ", part, ", want 1 to ",
                         cluster::TileTable::kMaxCut));
      }
    }
    cut.tile_columns = product.tiles().tile_columns();
    cut.segment_bytes = product.tiles().segment_bytes();
    cut.piece_rows = product.tiles().piece_rows();
  } else {
    cut.Take(tiles.Nearest(
        {.cpu = CpuModel(),
         .operation = spec.operation,
         .rows = fused.rows,
         .inputs = fused.inputs,
         .outputs = fused.outputs,
         .dtype = std::string(cluster::WeightDtypeName(product.dtype())),
         .world = world_size}));
  }
  fused.algorithm = asked.algorithm() == v1::COLLECTIVE_ALGORITHM_UNSPECIFIED
                        ? table.Choose(spec.operation,
                                       FusedCase::WireBytes(fused), world_size)
                        : spec.algorithm;
  if (cut.segment_bytes == 0) {
    const size_t row_bytes = FusedCase::WireBytes(fused) / fused.rows;
    cut.segment_bytes =
        spec.operation == Operation::kAllGatherMatmul
            ? cluster::DefaultRowSegmentBytes(fused.rows, world_size, row_bytes)
            : cluster::DefaultSumSegmentBytes(fused.rows, world_size,
                                              row_bytes);
  }
  fused.tiles = cut;
  return fused;
}

absl::StatusOr<CollectivesPlan::Case> PlanCase(const v1::CollectiveCase& asked,
                                               const AlgorithmTable& table,
                                               const cluster::TileTable& tiles,
                                               int world_size) {
  CollectivesPlan::Case planned;
  CollectiveCase::Spec& spec = planned.spec;
  RF_ASSIGN_OR_RETURN(spec.operation, OperationFromProto(asked.operation()));
  RF_ASSIGN_OR_RETURN(spec.wire, cluster::WireFromProto(asked.wire()));
  const uint64_t bytes =
      spec.operation == Operation::kBarrier ? 0 : asked.bytes();
  if (bytes % sizeof(float) != 0 || bytes > kMaxBytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        bytes, " bytes, want a multiple of 4, at most ", kMaxBytes));
  }
  spec.count = bytes / sizeof(float);
  planned.by_table = asked.algorithm() == v1::COLLECTIVE_ALGORITHM_UNSPECIFIED;
  spec.algorithm =
      planned.by_table
          ? table.Choose(spec.operation, WireBytes(spec.wire, spec.count),
                         world_size)
          : static_cast<Algorithm>(asked.algorithm());
  if (!v1::CollectiveAlgorithm_IsValid(asked.algorithm()) ||
      !cluster::Supports(spec.operation, spec.algorithm)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "algorithm ", static_cast<int>(asked.algorithm()), " of ",
        cluster::OperationText(spec.operation), ", want one that there is"));
  }
  if (cluster::IsFused(spec.operation)) {
    RF_ASSIGN_OR_RETURN(planned.fused,
                        PlanFused(asked, spec, table, tiles, world_size));
    spec.algorithm = planned.fused->algorithm;
  }
  return planned;
}

uint64_t ConfigHash(v1::MeasureCollectivesRequest request,
                    const AlgorithmTable& table) {
  request.clear_rank();
  request.clear_ranks_on_host();
  request.clear_rank_on_host();
  request.clear_algorithm_table();
  request.clear_threads();
  const std::string text = absl::StrCat("collectives ", table.Hash(), " ",
                                        request.SerializeAsString());
  return XXH64(text.data(), text.size(), /*seed=*/0);
}

// Returns the group of all ranks under another id, for a second communicator.
cluster::Group World(uint32_t id, int world_size) {
  cluster::Group group = cluster::WorldGroup(world_size);
  group.id = id;
  return group;
}

// Communicators of all ranks: one for control, which follows the table, and one
// for each case. A communicator keeps memory for the largest vector that it has
// sent, so a case's communicator is freed when the next case begins.
class Communicators {
 public:
  Communicators(cluster::Transport* transport, const AlgorithmTable& table,
                cluster::FlightRecorder* recorder)
      : transport_(transport),
        table_(table),
        recorder_(recorder),
        by_table_(transport, World(0, transport->world_size()), table,
                  recorder) {}

  cluster::Communicator& by_table() { return by_table_; }
  cluster::Communicator& For(const CollectivesPlan::Case& planned) {
    measured_.emplace(transport_, World(++cases_, transport_->world_size()),
                      planned.by_table
                          ? table_
                          : AlgorithmTable::Only(planned.spec.algorithm,
                                                 table_.ring_slice_bytes()),
                      recorder_);
    return *measured_;
  }

 private:
  cluster::Transport* const transport_;
  const AlgorithmTable table_;
  cluster::FlightRecorder* const recorder_;
  cluster::GroupCommunicator by_table_;
  uint32_t cases_ = 0;
  std::optional<cluster::GroupCommunicator> measured_;
};

void DescribeFused(const FusedCase::Spec& spec, const v1::Dtype dtype,
                   const CollectiveFigures& figures,
                   v1::CollectiveFigures* proto) {
  v1::FusedProduct* product = proto->mutable_measured()->mutable_product();
  product->set_rows(spec.rows);
  product->set_inputs(spec.inputs);
  product->set_outputs(spec.outputs);
  product->set_dtype(dtype);
  product->mutable_tiles()->set_tile_columns(spec.tiles->tile_columns);
  product->mutable_tiles()->set_segment_bytes(spec.tiles->segment_bytes);
  product->mutable_tiles()->set_piece_rows(spec.tiles->piece_rows);
  proto->mutable_measured()->set_bytes(FusedCase::MatrixBytes(spec));
  proto->set_wire_bytes(FusedCase::WireBytes(spec));
  proto->set_unfused_us(figures.way_p50_us[FusedCase::kUnfused]);
  proto->set_compute_us(figures.way_p50_us[FusedCase::kCompute]);
  proto->set_communicate_us(figures.way_p50_us[FusedCase::kCommunicate]);
  proto->set_cpu(CpuModel());
}

v1::CollectiveFigures ToProto(const CollectiveCase::Spec& spec,
                              const CollectiveFigures& figures) {
  v1::CollectiveFigures proto;
  v1::CollectiveCase* measured = proto.mutable_measured();
  measured->set_operation(static_cast<v1::CollectiveOperation>(spec.operation));
  measured->set_algorithm(static_cast<v1::CollectiveAlgorithm>(spec.algorithm));
  measured->set_wire(cluster::WireToProto(spec.wire));
  measured->set_bytes(sizeof(float) * spec.count);
  proto.set_wire_bytes(WireBytes(spec.wire, spec.count));
  proto.set_iterations(figures.iterations);
  proto.set_p50_us(figures.p50_us);
  proto.set_p99_us(figures.p99_us);
  proto.set_cpu_seconds_per_gb(figures.cpu_seconds_per_gb);
  proto.set_wrong(figures.wrong);
  proto.set_hash(figures.hash);
  return proto;
}

}  // namespace

absl::StatusOr<CollectivesPlan> PlanCollectives(
    const v1::MeasureCollectivesRequest& request, uint64_t available_bytes) {
  const int world_size = request.addresses_size();
  if (world_size < 1 || world_size > cluster::kMaxGroupSize) {
    return absl::InvalidArgumentError(absl::StrCat("collectives: ", world_size,
                                                   " addresses, want 1 to ",
                                                   cluster::kMaxGroupSize));
  }
  if (request.rank() >= static_cast<uint32_t>(world_size)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "collectives: rank ", request.rank(), ", want 0 to ", world_size - 1));
  }
  if (request.epoch() < 1 || request.epoch() > cluster::kMaxEpoch) {
    return absl::InvalidArgumentError(
        absl::StrCat("collectives: epoch ", request.epoch(), ", want 1 to ",
                     cluster::kMaxEpoch));
  }
  if (request.cases_size() < 1 || request.cases_size() > kMaxCases) {
    return absl::InvalidArgumentError(
        absl::StrCat("collectives: ", request.cases_size(),
                     " cases, want 1 to ", kMaxCases));
  }
  if (request.iterations() > kMaxIterations) {
    return absl::InvalidArgumentError(
        absl::StrCat("collectives: ", request.iterations(),
                     " iterations, want at most ", kMaxIterations));
  }
  CollectivesPlan plan;
  if (!request.algorithm_table().empty()) {
    RF_ASSIGN_OR_RETURN(plan.table,
                        AlgorithmTable::FromJson(request.algorithm_table()));
  }
  cluster::TileTable tiles;
  if (!request.tile_table().empty()) {
    RF_ASSIGN_OR_RETURN(tiles,
                        cluster::TileTable::FromJson(request.tile_table()));
  }
  const double ranks = std::max(1u, request.ranks_on_host());
  for (const v1::CollectiveCase& asked : request.cases()) {
    absl::StatusOr<CollectivesPlan::Case> planned =
        PlanCase(asked, plan.table, tiles, world_size);
    if (!planned.ok()) {
      return absl::Status(planned.status().code(),
                          absl::StrCat("collectives: case ", plan.cases.size(),
                                       ": ", planned.status().message()));
    }
    const uint64_t bytes =
        planned->fused.has_value()
            ? FusedCase::MemoryBytes(*planned->fused, world_size)
            : CollectiveCase::MemoryBytes(planned->spec, world_size);
    const auto needed = static_cast<double>(bytes) * ranks;
    if (needed > kMemoryShare * static_cast<double>(available_bytes)) {
      return absl::ResourceExhaustedError(
          absl::StrCat("collectives: ", asked.bytes(), " bytes need ",
                       needed / 1e9, " GB on this host, of which ",
                       available_bytes / 1e9, " GB are available"));
    }
    plan.cases.push_back(*std::move(planned));
  }
  plan.config_hash = ConfigHash(request, plan.table);
  return plan;
}

absl::Status MeasureCollectives(
    const v1::MeasureCollectivesRequest& request, uint64_t available_bytes,
    cluster::CollectiveEndpoint& endpoint,
    absl::FunctionRef<absl::Status(const v1::MeasureCollectivesProgress&)>
        report,
    absl::FunctionRef<void()> await_end) {
  RF_ASSIGN_OR_RETURN(const CollectivesPlan plan,
                      PlanCollectives(request, available_bytes));
  const int threads =
      request.threads() > 0
          ? static_cast<int>(std::min(request.threads(), kMaxThreads))
          : std::max(
                1, cluster::AvailableCpus() /
                       static_cast<int>(std::max(1u, request.ranks_on_host())));
  // Several threads of a product need cores of their own.
  kernels::ThreadPool pool(threads);
  // Declared before the transport, which may refer to its buffers until it
  // ends.
  CollectivesBench bench(
      {.iterations = static_cast<int>(request.iterations()),
       .case_time = absl::Milliseconds(request.case_ms()),
       .timeout = absl::Milliseconds(request.collective_timeout_ms())});
  std::optional<ScopedCpuPin> pin;
  if (request.pin() && threads == 1 &&
      request.ranks_on_host() <=
          static_cast<uint32_t>(cluster::AvailableCpus())) {
    pin.emplace(static_cast<int>(request.rank_on_host() % CPU_SETSIZE));
  }
  endpoint.SetRanksOnHost(static_cast<int>(request.ranks_on_host()),
                          SpinFor(request.poll()));
  RF_ASSIGN_OR_RETURN(
      const std::unique_ptr<cluster::Transport> transport,
      endpoint.Connect(
          request.epoch(), static_cast<int>(request.rank()),
          {.addresses = {request.addresses().begin(),
                         request.addresses().end()},
           .rings = {cluster::WorldGroup(request.addresses_size()).ranks},
           .transport = cluster::TransportFromProto(request.transport()),
           .config_hash = plan.config_hash},
          cluster::Deadline::After(absl::Milliseconds(request.timeout_ms()))));
  Communicators communicators(transport.get(), plan.table, endpoint.recorder());
  const std::string carrier = TransportName(request, endpoint.shared_lanes());
  v1::MeasureCollectivesProgress progress;
  progress.set_total(request.cases_size());
  for (const CollectivesPlan::Case& planned : plan.cases) {
    cluster::Communicator& measured = communicators.For(planned);
    RF_ASSIGN_OR_RETURN(
        const CollectiveFigures figures,
        planned.fused.has_value()
            ? bench.Measure(
                  communicators.by_table(),
                  std::make_unique<FusedCase>(&measured, &pool, *planned.fused))
            : bench.Measure(communicators.by_table(), measured, planned.spec));
    progress.set_done(progress.done() + 1);
    if (request.rank() == 0) {
      *progress.mutable_figures() = ToProto(planned.spec, figures);
      if (planned.fused.has_value()) {
        const v1::CollectiveCase& asked =
            request.cases(static_cast<int>(progress.done()) - 1);
        DescribeFused(*planned.fused, asked.product().dtype(), figures,
                      progress.mutable_figures());
      }
      progress.mutable_figures()->set_transport(carrier);
    }
    RF_RETURN_IF_ERROR(report(progress));
  }
  await_end();
  return absl::OkStatus();
}

}  // namespace ringfleet::worker
