// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <vector>

#include "kernels/elementwise.h"
#include "kernels/mla-inl.h"
#include "kernels/mla.h"

namespace ringfleet::kernels {
namespace {

// One cache block, expanded. The keys' rope part is the same for all heads and
// stays where it lies.
struct ExpandedBlock {
  const MlaArgs* args = nullptr;
  size_t index = 0;
  const float* latents = nullptr;   // [positions, kv_lora_rank + rope_dim]
  const float* expanded = nullptr;  // [heads, positions, nope_dim + v_dim]
  size_t positions = 0;
  size_t first_query = 0;        // The first that sees any of them.
  SoftmaxSum* states = nullptr;  // [queries, heads]

  size_t num_rows_per_head() const { return args->num_queries - first_query; }
  // Rows are numbered head by head: neighbours share keys and values.
  size_t head(size_t row) const { return row / num_rows_per_head(); }
  size_t query(size_t row) const {
    return first_query + row % num_rows_per_head();
  }
  size_t Visible(size_t row) const {
    return VisibleInBlock(
        args->first_position + static_cast<int64_t>(query(row)), index);
  }
};

template <int N>
void AttendBlock(const ExpandedBlock& block, size_t row, size_t count) {
  const MlaArgs& args = *block.args;
  const size_t rank = args.cache.kv_lora_rank;
  const size_t rope_dim = args.cache.rope_dim;
  const size_t stride = args.nope_dim + args.v_dim;
  const size_t head = block.head(row);
  const float* keys = block.expanded + head * block.positions * stride;
  const float* nope[N];
  const float* rope[N];
  float* out[N];
  SoftmaxSum* states[N];
  for (int n = 0; n < N; ++n) {
    const size_t index = block.query(row + n) * args.heads + head;
    nope[n] = args.q + index * (args.nope_dim + rope_dim);
    rope[n] = nope[n] + args.nope_dim;
    out[n] = args.out + index * args.v_dim;
    states[n] = block.states + index;
  }
  float scores[N][kCacheBlockPositions];
  float rope_scores[N][kCacheBlockPositions];
  ScoreRows<N>(keys, stride, count, nope, args.nope_dim, scores);
  ScoreRows<N>(block.latents + rank, rank + rope_dim, count, rope, rope_dim,
               rope_scores);
  for (int n = 0; n < N; ++n) {
    for (size_t t = 0; t < count; ++t) scores[n][t] += rope_scores[n][t];
  }
  MergeBlock<N>(keys + args.nope_dim, stride, count, args.v_dim,
                args.softmax_scale, scores, states, out);
}

void AttendRows(const ExpandedBlock& block, size_t begin, size_t end) {
  for (size_t row = begin; row < end;) {
    const size_t count = block.Visible(row);
    const size_t last = row + kDotRows - 1;
    if (last < end && block.head(last) == block.head(row) &&
        block.Visible(last) == count) {
      AttendBlock<kDotRows>(block, row, count);
      row += kDotRows;
    } else {
      AttendBlock<1>(block, row, count);
      ++row;
    }
  }
}

}  // namespace

// One cache block after the other is expanded for all heads and attended to by
// every query that sees it. The temporary memory is that of one block, however
// long the context is: with V3's 128 heads 128 * 128 * 256 floats = 16.8 MB.
void MlaMaterialized(const MlaArgs& args, ThreadPool& pool) {
  CheckMlaArgs(args);
  if (args.heads == 0 || args.num_queries == 0) return;

  const size_t heads = args.heads;
  const size_t rank = args.cache.kv_lora_rank;
  const size_t latent_dim = rank + args.cache.rope_dim;
  const size_t expanded_dim = args.nope_dim + args.v_dim;
  const size_t num_positions =
      static_cast<size_t>(args.first_position) + args.num_queries;
  const size_t max_positions = std::min(num_positions, kCacheBlockPositions);
  const bool widen = args.cache.dtype == Dtype::kBf16;
  std::vector<float> latents(widen ? max_positions * latent_dim : 0);
  std::vector<float> expanded(heads * max_positions * expanded_dim);
  std::vector<SoftmaxSum> states(args.num_queries * heads);
  Activations x;
  std::fill_n(args.out, args.num_queries * heads * args.v_dim, 0.0f);

  for (size_t b = 0; b < NumBlocks(args); ++b) {
    const size_t begin = b * kCacheBlockPositions;
    const size_t positions =
        std::min(num_positions - begin, kCacheBlockPositions);
    const char* cached = args.cache.blocks[b];
    if (widen) {
      Bf16ToFloat(reinterpret_cast<const uint16_t*>(cached),
                  positions * latent_dim, latents.data());
    }
    const size_t first_position = static_cast<size_t>(args.first_position);
    const ExpandedBlock block = {
        .args = &args,
        .index = b,
        .latents =
            widen ? latents.data() : reinterpret_cast<const float*>(cached),
        .expanded = expanded.data(),
        .positions = positions,
        .first_query = begin > first_position ? begin - first_position : 0,
        .states = states.data()};
    x.Assign(ActivationFormFor(args.kv_b->form()), block.latents, positions,
             rank, latent_dim, pool);
    MatMulPerHead({.first = {.w = args.kv_b,
                             .num_rows = expanded_dim,
                             .x = &x,
                             .batch = positions,
                             .y = expanded.data(),
                             .y_stride = expanded_dim},
                   .heads = heads,
                   .row_step = expanded_dim,
                   .y_step = positions * expanded_dim},
                  pool);
    pool.ParallelFor(
        heads * block.num_rows_per_head(),
        ProductGrain(positions * (expanded_dim + args.cache.rope_dim)),
        [&block](size_t first, size_t last) {
          AttendRows(block, first, last);
        });
  }

  for (size_t row = 0; row < args.num_queries * heads; ++row) {
    float* out = args.out + row * args.v_dim;
    for (size_t c = 0; c < args.v_dim; ++c) out[c] /= states[row].sum;
  }
}

bool PreferMaterialized(const MlaArgs& args) {
  const double queries = static_cast<double>(args.num_queries);
  const double visible = static_cast<double>(args.first_position) + queries;
  const double mean_visible = visible - (queries - 1) / 2;
  const double rank = static_cast<double>(args.cache.kv_lora_rank);
  const double expanded_dim = static_cast<double>(args.nope_dim + args.v_dim);
  return rank * expanded_dim * (visible - queries) <
         queries * mean_visible * (2 * rank - expanded_dim);
}

}  // namespace ringfleet::kernels
