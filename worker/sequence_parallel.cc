// SPDX-License-Identifier: Apache-2.0
#include "worker/sequence_parallel.h"

#include <cstring>

#include "absl/strings/str_cat.h"
#include "cluster/status_macros.h"
#include "cluster/wire_format.h"
#include "kernels/elementwise.h"
#include "kernels/rms_norm.h"
#include "worker/mla_layer.h"
#include "worker/moe_layer.h"
#include "worker/row_gather.h"

namespace ringfleet::worker {
namespace {

// Every rank gets the query latents of all rows, in workspace.gathered_x, and
// their cache rows, in the cache.
absl::Status GatherLatents(LayerContext& context, const Batch& batch,
                           const RowSplit& split, int layer,
                           const kernels::Activations& query_x) {
  Workspace& workspace = context.workspace;
  const kernels::LatentRowFormat& format = context.cache.format();
  const size_t cache_row = context.spec.cache_row();
  kernels::Activations& all = workspace.gathered_x;
  all.Reshape(query_x.form(), split.rows(), query_x.columns());
  const size_t query_bytes = all.StoredRowBytes();
  return GatherRows(
      context, split, query_bytes + format.bytes(),
      [&](size_t i, char* record) {
        query_x.StoreRow(i, record);
        kernels::StoreLatentRow(format, workspace.kv.data() + i * cache_row,
                                record + query_bytes);
      },
      [&](size_t row, const char* record) {
        all.LoadRow(row, record);
        ForEachRow(batch, row, row + 1,
                   [&](size_t, int slot, int64_t position) {
                     context.cache.WriteStored(slot, layer, position,
                                               record + query_bytes);
                   });
      });
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

// partial [split.rows(), D] is added over ranks; this rank's rows of the sum
// lie in the returned [split.size(), D], rounded as an all-reduce would send
// them.
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
      {context.wire, hidden}));
  if (context.wire == cluster::Wire::kF32) return reduced;
  const cluster::WireFormat format(context.wire, hidden);
  context.pool.ParallelFor(
      split.size(), kRowGrain, [&](size_t begin, size_t end) {
        format.Round(0, (end - begin) * hidden, reduced + begin * hidden);
      });
  return reduced;
}

absl::Status RunLayer(LayerContext& context, const LayerWeights& weights,
                      const Batch& batch, const RowSplit& split, int layer,
                      float* x) {
  Workspace& workspace = context.workspace;
  const size_t own = split.size();
  const size_t hidden = context.spec.hidden_size;
  const float eps = static_cast<float>(context.spec.rms_norm_eps);
  float* normed = Grow(workspace.normed, own * hidden);
  float* partial = Grow(workspace.partial, split.rows() * hidden);

  kernels::RmsNorm(x, own, hidden, hidden, weights.input_norm.data(), eps,
                   normed, hidden, context.pool);
  const kernels::Activations& query_x = MakeLatents(
      context, weights.attention, batch, split.begin(), own, normed);
  RF_RETURN_IF_ERROR(GatherLatents(context, batch, split, layer, query_x));
  Attend(context, weights.attention, batch, layer, workspace.gathered_x,
         partial);
  RF_ASSIGN_OR_RETURN(const float* attended,
                      ReduceScatterRows(context, split, partial));

  kernels::AddRmsNorm(attended, own, hidden, weights.post_attention_norm.data(),
                      eps, x, normed, context.pool);
  workspace.x.Assign(FeedForwardForm(weights), normed, own, hidden, hidden,
                     context.pool);
  if (weights.is_moe) RouteRows(context, weights.moe, normed, own);
  RF_RETURN_IF_ERROR(GatherNormed(context, split, weights.is_moe, workspace.x));
  if (weights.is_moe) {
    NoteRoutes(context, layer, split.rows());
    ExpertProducts(context, weights.moe, workspace.gathered_x, partial);
  } else {
    DenseMlp(context, weights.dense, workspace.gathered_x, partial);
  }
  RF_ASSIGN_OR_RETURN(const float* fed,
                      ReduceScatterRows(context, split, partial));
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
