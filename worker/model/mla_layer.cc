// SPDX-License-Identifier: Apache-2.0
#include "worker/model/mla_layer.h"

#include <vector>

#include "kernels/attention/mla.h"
#include "kernels/products/matmul.h"
#include "kernels/products/rms_norm.h"
#include "worker/model/read_bytes.h"

namespace ringfleet::worker {

const kernels::Activations& MakeLatents(LayerContext& context,
                                        const AttentionWeights& weights,
                                        const Batch& batch, size_t first_row,
                                        size_t rows) {
  const cluster::TraceScope scope(context.trace, "latents");
  const cluster::ModelSpec& spec = context.spec;
  Workspace& workspace = context.workspace;
  const float eps = static_cast<float>(cluster::kLatentNormEps);
  const size_t latent = spec.kv_lora_rank;
  const size_t cache_row = spec.cache_row();
  const size_t query_rank = weights.q_a.rows();
  float* query = Grow(workspace.q_latent, rows * query_rank);
  float* kv = Grow(workspace.kv, rows * cache_row);
  const auto product = [&](const kernels::WeightMatrix& w, float* y) {
    return kernels::MatMulArgs{.w = &w,
                               .num_rows = w.rows(),
                               .x = &workspace.x,
                               .batch = rows,
                               .y = y,
                               .y_stride = w.rows()};
  };
  if (query_rank > 0) {
    kernels::MatMul({product(weights.q_a, query), product(weights.kv_a, kv)},
                    context.pool);
    kernels::RmsNorm(query, rows, query_rank, weights.q_a_norm.data(), eps,
                     query, kernels::ActivationFormFor(weights.q_b.form()),
                     &workspace.q_latent_x, context.pool);
  } else {
    kernels::MatMul({product(weights.kv_a, kv)}, context.pool);
  }
  // The norm covers the latent only; the rope key behind it stays as it is.
  kernels::RmsNorm(kv, rows, latent, cache_row, weights.kv_a_norm.data(), eps,
                   kv, cache_row, context.pool);
  context.pool.ParallelFor(rows, /*grain=*/16, [&](size_t begin, size_t end) {
    ForEachRow(batch, first_row + begin, first_row + end,
               [&](size_t row, int, int64_t position) {
                 context.rope.Rotate(
                     kv + (row - first_row) * cache_row + latent, position);
               });
  });
  return query_rank > 0 ? workspace.q_latent_x : workspace.x;
}

const float* AttendHeads(LayerContext& context, const AttentionWeights& weights,
                         const Batch& batch, int layer) {
  const cluster::ModelSpec& spec = context.spec;
  const size_t rows = batch.rows();
  const size_t v_dim = spec.v_head_dim;
  const size_t heads = weights.o.columns() / v_dim;
  const size_t nope = spec.qk_nope_head_dim;
  const size_t head_dim = spec.qk_head_dim();

  const cluster::TraceScope scope(context.trace, "attention");
  context.bytes_read += AttentionReadBytes(context, weights, batch);
  float* const q = context.workspace.q.data();
  context.pool.ParallelFor(rows, /*grain=*/16, [&](size_t begin, size_t end) {
    ForEachRow(batch, begin, end, [&](size_t row, int, int64_t position) {
      float* const queries = q + row * heads * head_dim;
      context.rope.Rotate(queries + nope, heads, head_dim, position);
      if (!spec.query_scale.has_value()) return;
      const auto scale = static_cast<float>(spec.query_scale->Of(position));
      for (size_t i = 0; i < heads * head_dim; ++i) queries[i] *= scale;
    });
  });

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
  // Spans with few queries attend together. A span with many queries attends
  // alone.
  std::vector<kernels::MlaSpan>& absorbed = context.workspace.absorbed_spans;
  absorbed.clear();
  for (const BatchSpan& span : batch.spans) {
    const kernels::MlaSpan queries = {
        .blocks = context.cache.Blocks(span.slot, layer),
        .first_position = span.first_position,
        .num_queries = span.rows,
        .first_row = span.first_row};
    if (Materializes(args, span)) {
      kernels::MlaMaterialized(args, queries, context.workspace.attention,
                               context.pool);
    } else {
      absorbed.push_back(queries);
    }
  }
  kernels::MlaAbsorbed(args, absorbed, context.workspace.attention,
                       context.pool);
  return attended;
}

void Attend(LayerContext& context, const AttentionWeights& weights,
            const Batch& batch, int layer, const kernels::Activations& query_x,
            float* partial) {
  {
    const cluster::TraceScope scope(context.trace, "query product");
    kernels::MatMul(
        weights.q_b, query_x,
        Grow(context.workspace.q, batch.rows() * weights.q_b.rows()),
        context.pool);
  }
  const float* attended = AttendHeads(context, weights, batch, layer);
  const cluster::TraceScope scope(context.trace, "output product");
  const size_t columns = weights.o.columns();
  context.workspace.attended_x.Assign(
      kernels::ActivationFormFor(weights.o.form()), attended, batch.rows(),
      columns, columns, context.pool);
  kernels::MatMul(weights.o, context.workspace.attended_x, partial,
                  context.pool);
}

void MlaLayer(LayerContext& context, const AttentionWeights& weights,
              const Batch& batch, int layer, float* partial) {
  const kernels::Activations& query_x =
      MakeLatents(context, weights, batch, 0, batch.rows());
  const size_t cache_row = context.spec.cache_row();
  const float* kv = context.workspace.kv.data();
  context.pool.ParallelFor(
      batch.rows(), /*grain=*/16, [&](size_t begin, size_t end) {
        ForEachRow(
            batch, begin, end, [&](size_t row, int slot, int64_t position) {
              context.cache.Write(slot, layer, position, kv + row * cache_row);
            });
      });
  Attend(context, weights, batch, layer, query_x, partial);
}

}  // namespace ringfleet::worker
