// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <vector>

#include "kernels/attention/mla.h"
#include "kernels/check.h"
#include "kernels/products/matmul.h"

namespace ringfleet::kernels {
namespace {

// (query, head) rows that are attended to at a time; with V3's sizes their
// queries and sums take 36 MB.
constexpr size_t kMaxRows = 8192;

// W_UK^T q beside the rope part of q, for `queries` queries:
//   q [queries, heads, nope_dim + rope_dim]
//   latent [queries, heads, kv_lora_rank + rope_dim]
void AbsorbKeys(const MlaArgs& args, const float* q, size_t queries,
                float* latent, Activations& x, ThreadPool& pool) {
  const size_t rank = args.format.kv_lora_rank;
  const size_t rope_dim = args.format.rope_dim;
  const size_t numbers = args.format.numbers();
  const size_t head_dim = args.nope_dim + rope_dim;
  x.Assign(ActivationFormFor(args.uk_transposed->form()), q,
           queries * args.heads, args.nope_dim, head_dim, pool);
  MatMulPerHead({.first = {.w = args.uk_transposed,
                           .num_rows = rank,
                           .x = &x,
                           .x_step = args.heads,
                           .batch = queries,
                           .y = latent,
                           .y_stride = args.heads * numbers},
                 .heads = args.heads,
                 .row_step = rank,
                 .x_step = 1,
                 .y_step = numbers},
                pool);
  pool.ParallelFor(queries * args.heads, ProductGrain(rope_dim),
                   [&](size_t begin, size_t end) {
                     for (size_t row = begin; row < end; ++row) {
                       std::copy_n(q + row * head_dim + args.nope_dim, rope_dim,
                                   latent + row * numbers + rank);
                     }
                   });
}

// W_UV of the weighted sums of latents:
//   sums [queries, heads, kv_lora_rank]   out [queries, heads, v_dim]
void ExpandValues(const MlaArgs& args, const float* sums, size_t queries,
                  float* out, Activations& x, ThreadPool& pool) {
  const size_t rank = args.format.kv_lora_rank;
  x.Assign(ActivationFormFor(args.kv_b->form()), sums, queries * args.heads,
           rank, rank, pool);
  MatMulPerHead({.first = {.w = args.kv_b,
                           .first_row = args.nope_dim,
                           .num_rows = args.v_dim,
                           .x = &x,
                           .x_step = args.heads,
                           .batch = queries,
                           .y = out,
                           .y_stride = args.heads * args.v_dim},
                 .heads = args.heads,
                 .row_step = args.nope_dim + args.v_dim,
                 .x_step = 1,
                 .y_step = args.v_dim},
                pool);
}

// Attends to `spans`, whose queries lie one behind the other from q on.
void AttendChunk(const MlaArgs& args, absl::Span<const MlaSpan> spans,
                 const float* q, size_t queries, float* out,
                 MlaWorkspace& workspace, ThreadPool& pool) {
  const size_t rows = queries * args.heads;
  float* latent =
      GrowTo<float>(workspace.queries, rows * args.format.numbers());
  float* sums = GrowTo<float>(workspace.sums, rows * args.format.kv_lora_rank);
  AbsorbKeys(args, q, queries, latent, workspace.x, pool);
  MlaDecode({.format = args.format,
             .spans = spans,
             .heads = args.heads,
             .softmax_scale = args.softmax_scale,
             .q = latent,
             .out = sums},
            workspace, pool);
  ExpandValues(args, sums, queries, out, workspace.x, pool);
}

}  // namespace

void MlaAbsorbed(const MlaArgs& args, absl::Span<const MlaSpan> spans,
                 MlaWorkspace& workspace, ThreadPool& pool) {
  if (args.heads == 0) return;
  RF_CHECK(args.kv_b != nullptr && args.uk_transposed != nullptr);
  RF_CHECK(args.kv_b->columns() == args.format.kv_lora_rank);
  RF_CHECK(args.kv_b->rows() == args.heads * (args.nope_dim + args.v_dim));
  RF_CHECK(args.uk_transposed->columns() == args.nope_dim);
  RF_CHECK(args.uk_transposed->rows() == args.heads * args.format.kv_lora_rank);

  const size_t head_dim = args.nope_dim + args.format.rope_dim;
  const size_t max_queries = std::max<size_t>(kMaxRows / args.heads, 1);
  std::vector<MlaSpan>& chunk = workspace.spans;
  size_t first_row = 0;
  size_t queries = 0;
  const auto attend = [&] {
    if (queries == 0) return;
    AttendChunk(args, chunk, args.q + first_row * args.heads * head_dim,
                queries, args.out + first_row * args.heads * args.v_dim,
                workspace, pool);
    chunk.clear();
    queries = 0;
  };
  chunk.clear();
  for (MlaSpan rest : spans) {
    while (rest.num_queries > 0) {
      if (queries == max_queries || rest.first_row != first_row + queries) {
        attend();
      }
      if (queries == 0) first_row = rest.first_row;
      MlaSpan part = rest;
      part.num_queries = std::min(rest.num_queries, max_queries - queries);
      part.first_row = queries;
      chunk.push_back(part);
      queries += part.num_queries;
      rest.num_queries -= part.num_queries;
      rest.first_row += part.num_queries;
      rest.first_position += static_cast<int64_t>(part.num_queries);
    }
  }
  attend();
}

}  // namespace ringfleet::kernels
