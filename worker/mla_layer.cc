// SPDX-License-Identifier: Apache-2.0
#include "worker/mla_layer.h"

#include <vector>

#include "kernels/matmul.h"
#include "kernels/mla.h"
#include "kernels/rms_norm.h"
#include "worker/read_bytes.h"

namespace ringfleet::worker {
namespace {

// [rows, heads, dn + dr], not yet rotated, and [rows, r + dr] latents with
// their rope keys, neither normed nor rotated.
void ProjectInputs(LayerContext& context, const AttentionWeights& weights,
                   const float* x, size_t rows, float* q, float* kv) {
  Workspace& workspace = context.workspace;
  workspace.x.Assign(kernels::ActivationFormFor(weights.kv_a.form()), x, rows,
                     weights.kv_a.columns(), weights.kv_a.columns(),
                     context.pool);
  const bool has_rank = weights.q_a.rows() > 0;
  const kernels::WeightMatrix& first = has_rank ? weights.q_a : weights.q_b;
  const size_t rank = weights.q_a.rows();
  float* latent = Grow(workspace.q_latent, rows * rank);
  const auto product = [&](const kernels::WeightMatrix& w, float* y) {
    return kernels::MatMulArgs{.w = &w,
                               .num_rows = w.rows(),
                               .x = &workspace.x,
                               .batch = rows,
                               .y = y,
                               .y_stride = w.rows()};
  };
  kernels::MatMul(
      {product(first, has_rank ? latent : q), product(weights.kv_a, kv)},
      context.pool);
  if (!has_rank) return;
  kernels::RmsNorm(latent, rows, rank, rank, weights.q_a_norm.data(),
                   static_cast<float>(context.spec.rms_norm_eps), latent, rank,
                   context.pool);
  workspace.q_latent_x.Assign(kernels::ActivationFormFor(weights.q_b.form()),
                              latent, rows, rank, rank, context.pool);
  kernels::MatMul(weights.q_b, workspace.q_latent_x, q, context.pool);
}

}  // namespace

void MlaLayer(LayerContext& context, const AttentionWeights& weights,
              const Batch& batch, int layer, const float* x, float* partial) {
  const cluster::ModelSpec& spec = context.spec;
  const size_t rows = batch.rows();
  const size_t heads = context.plan.heads.size();
  const size_t nope = spec.qk_nope_head_dim;
  const size_t latent = spec.kv_lora_rank;
  const size_t head_dim = spec.qk_head_dim();
  const size_t cache_row = spec.cache_row();

  context.bytes_read += AttentionReadBytes(context, weights, batch);
  float* q = Grow(context.workspace.q, rows * heads * head_dim);
  float* kv = Grow(context.workspace.kv, rows * cache_row);
  ProjectInputs(context, weights, x, rows, q, kv);
  // The norm covers the latent only; the rope key behind it stays as it is.
  kernels::RmsNorm(kv, rows, latent, cache_row, weights.kv_a_norm.data(),
                   static_cast<float>(spec.rms_norm_eps), kv, cache_row,
                   context.pool);

  for (const BatchSegment& segment : batch.segments) {
    context.pool.ParallelFor(
        segment.rows, /*grain=*/16, [&](size_t begin, size_t end) {
          for (size_t i = begin; i < end; ++i) {
            const size_t row = segment.first_row + i;
            const int64_t position =
                segment.first_position + static_cast<int64_t>(i);
            context.rope.Rotate(kv + row * cache_row + latent, position);
            context.cache.Write(segment.slot, layer, position,
                                kv + row * cache_row);
            context.rope.Rotate(q + row * heads * head_dim + nope, heads,
                                head_dim, position);
          }
        });
  }

  const size_t v_dim = spec.v_head_dim;
  float* attended = Grow(context.workspace.attended, rows * heads * v_dim);
  const kernels::MlaArgs args = {
      .format = context.cache.format(),
      .heads = heads,
      .nope_dim = nope,
      .v_dim = v_dim,
      .softmax_scale = context.softmax_scale,
      .q = q,
      .kv_b = &weights.kv_b,
      .uk_transposed = &weights.uk_transposed,
      .out = attended,
  };
  // Few queries of many sequences attend together; many of one, on their own.
  std::vector<kernels::MlaSegment>& absorbed = context.workspace.segments;
  absorbed.clear();
  for (const BatchSegment& part : batch.segments) {
    const kernels::MlaSegment segment = {
        .blocks = context.cache.Blocks(part.slot, layer),
        .first_position = part.first_position,
        .num_queries = part.rows,
        .first_row = part.first_row};
    if (kernels::PreferMaterialized(args, segment)) {
      kernels::MlaMaterialized(args, segment, context.workspace.attention,
                               context.pool);
    } else {
      absorbed.push_back(segment);
    }
  }
  kernels::MlaAbsorbed(args, absorbed, context.workspace.attention,
                       context.pool);
  context.workspace.attended_x.Assign(
      kernels::ActivationFormFor(weights.o.form()), attended, rows,
      heads * v_dim, heads * v_dim, context.pool);
  kernels::MatMul(weights.o, context.workspace.attended_x, partial,
                  context.pool);
}

}  // namespace ringfleet::worker
