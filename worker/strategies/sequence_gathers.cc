// SPDX-License-Identifier: Apache-2.0
#include "worker/strategies/sequence_gathers.h"

#include <array>
#include <cstring>
#include <optional>

#include "cluster/process/status_macros.h"
#include "kernels/products/matmul.h"
#include "worker/model/route_records.h"
#include "worker/model/row_gather.h"
#include "worker/strategies/cache_rows.h"

namespace ringfleet::worker {
namespace {

// The routes of rows in the workspace: this rank's at first, then those of all.
class Routes final : public RowAttachment {
 public:
  // Requires routes of `own` rows; makes room for those of `all`.
  Routes(LayerContext& context, size_t own, size_t all)
      : records_(context, all),
        own_(Grow(context.workspace.own_routes, own * records_.bytes())) {
    // Routes of other ranks arrive where the own ones lie.
    for (size_t i = 0; i < own; ++i) {
      records_.Store(i, own_ + i * records_.bytes());
    }
  }

  size_t bytes() const { return records_.bytes(); }

  void Store(size_t i, char* bytes) const override {
    std::memcpy(bytes, own_ + i * records_.bytes(), records_.bytes());
  }
  void Load(size_t row, const char* bytes) override {
    records_.Load(row, bytes);
  }

 private:
  RouteRecords records_;
  char* const own_;
};

// Returns the network of a layer that all rows of the step go through on this
// rank. Null: the layer has none.
const MlpWeights* NetworkOfAll(const LayerContext& context,
                               const LayerWeights& weights) {
  if (!weights.is_moe) return &weights.dense;
  // Rows of other data groups come later, and share the products.
  if (context.data_axis != nullptr || context.spec.n_shared_experts == 0) {
    return nullptr;
  }
  return &weights.moe.shared;
}

}  // namespace

bool Fuses(const LayerContext& context, const RowSplit& split) {
  return split.rows() / static_cast<size_t>(context.communicator.size()) >=
         context.fuse_rows;
}

absl::Status GatherQueries(LayerContext& context,
                           const kernels::WeightMatrix& q_b, const Batch& batch,
                           const RowSplit& split, int layer,
                           const kernels::Activations& query_x) {
  Workspace& workspace = context.workspace;
  CacheRows cache_rows(context, batch, layer);
  float* q = Grow(workspace.q, split.rows() * q_b.rows());
  if (Fuses(context, split)) {
    const FusedOutput product = {.w = &q_b, .y = q, .y_stride = q_b.rows()};
    return context.communicator.AllGatherMatmul(
        {.rows = split.rows(),
         .attached_bytes = cache_rows.bytes(),
         .tiles = context.tiles.Of(
             {.operation = cluster::Operation::kAllGatherMatmul,
              .rows = split.rows(),
              .inputs = query_x.columns(),
              .outputs = context.spec.num_attention_heads *
                         static_cast<size_t>(context.spec.qk_head_dim()),
              .world = context.communicator.size()},
             q_b),
         .x = &query_x,
         .products = {&product, 1},
         .attachment = &cache_rows},
        context.pool);
  }
  kernels::Activations& all = workspace.gathered_x;
  all.Reshape(query_x.form(), split.rows(), query_x.columns());
  const size_t query_bytes = all.StoredRowBytes();
  RF_RETURN_IF_ERROR(GatherRows(
      context, split, query_bytes + cache_rows.bytes(),
      [&](size_t i, char* record) {
        query_x.StoreRow(i, record);
        cache_rows.Store(i, record + query_bytes);
      },
      [&](size_t row, const char* record) {
        all.LoadRow(row, record);
        cache_rows.Load(row, record + query_bytes);
      }));
  kernels::MatMul(q_b, all, q, context.pool);
  return absl::OkStatus();
}

absl::StatusOr<GatheredNormed> GatherNormed(LayerContext& context,
                                            const LayerWeights& weights,
                                            const RowSplit& split) {
  Workspace& workspace = context.workspace;
  const cluster::ModelSpec& spec = context.spec;
  const kernels::Activations& own = workspace.x;
  std::optional<Routes> routes;
  if (weights.is_moe) routes.emplace(context, split.size(), split.rows());
  const size_t route_bytes = routes.has_value() ? routes->bytes() : 0;
  const MlpWeights* const network = NetworkOfAll(context, weights);
  if (network != nullptr && Fuses(context, split)) {
    const size_t width = network->gate.rows();
    const size_t size = split.rows() * width;
    float* const gate = Grow(workspace.gate_up, 2 * size);
    const std::array<FusedOutput, 2> products = {
        FusedOutput{.w = &network->gate, .y = gate, .y_stride = width},
        FusedOutput{.w = &network->up, .y = gate + size, .y_stride = width}};
    const auto intermediate =
        weights.is_moe ? static_cast<size_t>(spec.n_shared_experts) *
                             static_cast<size_t>(spec.moe_intermediate_size)
                       : static_cast<size_t>(spec.intermediate_size);
    RF_RETURN_IF_ERROR(context.communicator.AllGatherMatmul(
        {.rows = split.rows(),
         .attached_bytes = route_bytes,
         .tiles = context.tiles.Of(
             {.operation = cluster::Operation::kAllGatherMatmul,
              .rows = split.rows(),
              .inputs = own.columns(),
              .outputs = 2 * intermediate,
              .world = context.communicator.size()},
             network->gate),
         .x = &own,
         // A rank may have no columns of the network.
         .products =
             absl::MakeConstSpan(products).subspan(0, width > 0 ? 2 : 0),
         .attachment = routes.has_value() ? &*routes : nullptr},
        context.pool));
    if (weights.is_moe) RF_RETURN_IF_ERROR(CheckRoutes(context, split.rows()));
    return GatheredNormed{
        .x = &context.communicator.gathered_x(),
        .early = {.gate = products[0].y, .up = products[1].y}};
  }
  kernels::Activations& all = workspace.gathered_x;
  all.Reshape(own.form(), split.rows(), own.columns());
  const size_t x_bytes = all.StoredRowBytes();
  RF_RETURN_IF_ERROR(GatherRows(
      context, split, x_bytes + route_bytes,
      [&](size_t i, char* record) {
        own.StoreRow(i, record);
        if (routes.has_value()) routes->Store(i, record + x_bytes);
      },
      [&](size_t row, const char* record) {
        all.LoadRow(row, record);
        if (routes.has_value()) routes->Load(row, record + x_bytes);
      }));
  if (weights.is_moe) RF_RETURN_IF_ERROR(CheckRoutes(context, split.rows()));
  return GatheredNormed{.x = &all, .early = {}};
}

}  // namespace ringfleet::worker
