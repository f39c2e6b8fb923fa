// SPDX-License-Identifier: Apache-2.0
#include "worker/sequence_parallel.h"

#include <cstring>

#include "absl/strings/str_cat.h"
#include "cluster/prefill_strategy.h"
#include "cluster/status_macros.h"
#include "cluster/wire_format.h"
#include "kernels/elementwise.h"
#include "kernels/matmul.h"
#include "kernels/rms_norm.h"
#include "worker/expert_exchange.h"
#include "worker/mla_layer.h"
#include "worker/moe_layer.h"
#include "worker/row_gather.h"

namespace ringfleet::worker {
namespace {

// Whether this step's exchanges run beside products. With fewer rows a rank
// would read its weights once more for each piece, for too few of them.
bool Fuses(const LayerContext& context, const RowSplit& split) {
  return split.rows() / static_cast<size_t>(context.communicator.size()) >=
         context.fuse_rows;
}

// The same for the sums of the feed-forward part: a piece reads the last
// weights of all experts that it has tokens for, which pays where these have
// enough of them.
bool FusesFeedForward(const LayerContext& context, const LayerWeights& weights,
                      const RowSplit& split) {
  if (!Fuses(context, split)) return false;
  if (!weights.is_moe) return true;
  return cluster::ExpertsHaveRows(
      context.spec,
      split.rows() / static_cast<size_t>(context.communicator.size()),
      context.fuse_rows);
}

// Rows of one layer's cache: from workspace.kv to every rank's cache.
class CacheRows final : public RowAttachment {
 public:
  CacheRows(LayerContext& context, const Batch& batch, int layer)
      : context_(context), batch_(batch), layer_(layer) {}

  size_t bytes() const { return context_.cache.format().bytes(); }

  void Store(size_t i, char* bytes) const override {
    kernels::StoreLatentRow(
        context_.cache.format(),
        context_.workspace.kv.data() + i * context_.spec.cache_row(), bytes);
  }
  void Load(size_t row, const char* bytes) override {
    ForEachRow(batch_, row, row + 1, [&](size_t, int slot, int64_t position) {
      context_.cache.WriteStored(slot, layer_, position, bytes);
    });
  }

 private:
  LayerContext& context_;
  const Batch& batch_;
  const int layer_;
};

// Every rank gets the cache rows of all rows, in the cache, and the products of
// their query latents and its part of q_b, in workspace.q.
//   query_x [split.size(), rq]
absl::Status GatherQueries(LayerContext& context,
                           const kernels::WeightMatrix& q_b, const Batch& batch,
                           const RowSplit& split, int layer,
                           const kernels::Activations& query_x) {
  Workspace& workspace = context.workspace;
  CacheRows cache_rows(context, batch, layer);
  float* q = Grow(workspace.q, split.rows() * q_b.rows());
  if (Fuses(context, split)) {
    const FusedOutput product = {
        .weights = {.packed = &q_b}, .y = q, .y_stride = q_b.rows()};
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
             product.weights),
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

// Every rank gets the normed activations of all rows, in workspace.gathered_x,
// and in a layer of experts their routes, in the workspace.
absl::Status GatherNormed(LayerContext& context, const RowSplit& split,
                          bool routed, const kernels::Activations& own) {
  Workspace& workspace = context.workspace;
  const size_t chosen = routed ? context.spec.num_experts_per_tok : 0;
  const size_t ids_bytes = chosen * sizeof(int32_t);
  const size_t weights_bytes = chosen * sizeof(float);
  kernels::Activations& all = workspace.gathered_x;
  all.Reshape(own.form(), split.rows(), own.columns());
  const size_t x_bytes = all.StoredRowBytes();
  int32_t* ids = Grow(workspace.route_ids, split.rows() * chosen);
  float* weights = Grow(workspace.route_weights, split.rows() * chosen);
  return GatherRows(
      context, split, x_bytes + ids_bytes + weights_bytes,
      [&](size_t i, char* record) {
        own.StoreRow(i, record);
        if (!routed) return;
        std::memcpy(record + x_bytes, ids + i * chosen, ids_bytes);
        std::memcpy(record + x_bytes + ids_bytes, weights + i * chosen,
                    weights_bytes);
      },
      [&](size_t row, const char* record) {
        all.LoadRow(row, record);
        if (!routed) return;
        std::memcpy(ids + row * chosen, record + x_bytes, ids_bytes);
        std::memcpy(weights + row * chosen, record + x_bytes + ids_bytes,
                    weights_bytes);
      });
}

// Sums of this rank's rows, [split.size(), D], as an all-reduce would send
// them.
void RoundSums(LayerContext& context, const RowSplit& split, float* sums) {
  if (context.wire == cluster::Wire::kF32) return;
  const size_t hidden = context.spec.hidden_size;
  const cluster::WireFormat format(context.wire, hidden);
  context.pool.ParallelFor(
      split.size(), kRowGrain, [&](size_t begin, size_t end) {
        format.Round(0, (end - begin) * hidden, sums + begin * hidden);
      });
}

// partial [split.rows(), D] is added over ranks; this rank's rows of the sum
// lie in the returned [split.size(), D], rounded.
absl::StatusOr<const float*> ReduceScatterRows(LayerContext& context,
                                               const RowSplit& split,
                                               float* partial) {
  const size_t hidden = context.spec.hidden_size;
  Workspace& workspace = context.workspace;
  workspace.element_offsets.clear();
  for (const uint64_t offset : split.offsets) {
    workspace.element_offsets.push_back(offset * hidden);
  }
  float* reduced = Grow(workspace.reduced, split.size() * hidden);
  RF_RETURN_IF_ERROR(context.communicator.ReduceScatter(
      absl::MakeSpan(partial, split.rows() * hidden),
      absl::MakeSpan(reduced, split.size() * hidden), workspace.element_offsets,
      {context.wire, hidden}, context.routing_hash));
  RoundSums(context, split, reduced);
  return reduced;
}

// This rank's rows of the sum over ranks of attended w, [split.size(), D].
//   attended [split.rows(), w.columns()] f32
absl::StatusOr<const float*> ProjectAndScatter(LayerContext& context,
                                               const kernels::WeightMatrix& w,
                                               const float* attended,
                                               const RowSplit& split) {
  Workspace& workspace = context.workspace;
  if (Fuses(context, split)) {
    const FusedWeights weights = {.packed = &w};
    float* out = Grow(workspace.reduced, split.size() * w.rows());
    RF_RETURN_IF_ERROR(context.communicator.MatmulReduceScatter(
        {.rows = split.rows(),
         .wire = context.wire,
         .check = context.routing_hash,
         .tiles = context.tiles.Of(
             {.operation = cluster::Operation::kMatmulReduceScatter,
              .rows = split.rows(),
              .inputs = context.spec.num_attention_heads *
                        static_cast<size_t>(context.spec.v_head_dim),
              .outputs = w.rows(),
              .world = context.communicator.size()},
             weights),
         .x = attended,
         .x_stride = w.columns(),
         .weights = weights,
         .out = out},
        context.pool));
    RoundSums(context, split, out);
    return out;
  }
  workspace.attended_x.Assign(kernels::ActivationFormFor(w.form()), attended,
                              split.rows(), w.columns(), w.columns(),
                              context.pool);
  float* partial = Grow(workspace.partial, split.rows() * w.rows());
  kernels::MatMul(w, workspace.attended_x, partial, context.pool);
  return ReduceScatterRows(context, split, partial);
}

// The same of the feed-forward part of x, all rows.
absl::StatusOr<const float*> FeedForwardAndScatter(
    LayerContext& context, const LayerWeights& weights,
    const kernels::Activations& x, const RowSplit& split, int layer) {
  const size_t hidden = context.spec.hidden_size;
  if (weights.is_moe && context.data_axis != nullptr) {
    RF_ASSIGN_OR_RETURN(float* partial,
                        ExchangedFeedForward(context, weights, x, layer));
    return ReduceScatterRows(context, split, partial);
  }
  NoteFeedForward(context, weights, layer);
  const kernels::RowRange all = {0, split.rows()};
  if (FusesFeedForward(context, weights, split)) {
    FeedForwardHidden(context, weights, x, {&all, 1});
    float* out = Grow(context.workspace.reduced, split.size() * hidden);
    // The halves of a step in one piece: see above.
    RF_RETURN_IF_ERROR(context.communicator.ReduceScatterWhile(
        {.rows = split.rows(),
         .columns = hidden,
         .wire = context.wire,
         .check = context.routing_hash,
         .piece_rows = split.rows(),
         .most_piece_rows = split.rows(),
         .out = out},
        [&](absl::Span<const kernels::RowRange> rows, float* y,
            size_t first_y) {
          FeedForwardSums(context, weights,
                          {.y = y, .first_y = first_y, .rows = rows});
        }));
    RoundSums(context, split, out);
    return out;
  }
  float* partial = Grow(context.workspace.partial, split.rows() * hidden);
  FeedForward(context, weights, x, {.y = partial, .rows = {&all, 1}});
  return ReduceScatterRows(context, split, partial);
}

absl::Status RunLayer(LayerContext& context, const LayerWeights& weights,
                      const Batch& batch, const RowSplit& split, int layer,
                      float* x) {
  Workspace& workspace = context.workspace;
  const size_t own = split.size();
  const size_t hidden = context.spec.hidden_size;
  const float eps = static_cast<float>(context.spec.rms_norm_eps);
  float* normed = Grow(workspace.normed, own * hidden);

  kernels::RmsNorm(x, own, hidden, weights.input_norm.data(), eps, normed,
                   LatentsForm(weights.attention), &workspace.x, context.pool);
  const kernels::Activations& query_x =
      MakeLatents(context, weights.attention, batch, split.begin(), own);
  RF_RETURN_IF_ERROR(GatherQueries(context, weights.attention.q_b, batch, split,
                                   layer, query_x));
  const float* attended = AttendHeads(context, weights.attention, batch, layer);
  RF_ASSIGN_OR_RETURN(
      const float* projected,
      ProjectAndScatter(context, weights.attention.o, attended, split));

  kernels::AddRmsNorm(projected, own, hidden,
                      weights.post_attention_norm.data(), eps, x, normed,
                      FeedForwardForm(weights), &workspace.x, context.pool);
  if (weights.is_moe) RouteRows(context, weights.moe, normed, own);
  RF_RETURN_IF_ERROR(GatherNormed(context, split, weights.is_moe, workspace.x));
  RF_ASSIGN_OR_RETURN(
      const float* fed,
      FeedForwardAndScatter(context, weights, workspace.gathered_x, split,
                            layer));
  context.pool.ParallelFor(own, kRowGrain, [&](size_t begin, size_t end) {
    kernels::AddTo(fed + begin * hidden, (end - begin) * hidden,
                   x + begin * hidden);
  });
  return absl::OkStatus();
}

}  // namespace

absl::Status SequenceParallelLayer(LayerContext& context,
                                   const LayerWeights& weights,
                                   const Batch& batch, const RowSplit& split,
                                   int layer, float* x) {
  const absl::Status status =
      RunLayer(context, weights, batch, split, layer, x);
  if (status.ok()) return status;
  return Annotate(status, absl::StrCat("layer ", layer));
}

}  // namespace ringfleet::worker
