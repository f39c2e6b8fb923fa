// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <vector>

#include "kernels/mla-inl.h"
#include "kernels/mla.h"

namespace ringfleet::kernels {
namespace {

// (query, head) rows that are attended to at a time; with V3's sizes their
// queries and sums take 4.4 MB.
constexpr size_t kMaxRows = 1024;

// Some queries of an MlaArgs. Row query * heads + head.
struct LatentRows {
  const MlaArgs* args = nullptr;
  size_t first_query = 0;
  float* queries = nullptr;      // [rows, kv_lora_rank + rope_dim]
  float* sums = nullptr;         // [rows, kv_lora_rank], zeros
  SoftmaxSum* states = nullptr;  // [rows], {}

  size_t Visible(size_t row, size_t block) const {
    const size_t query = first_query + row / args->heads;
    return VisibleInBlock(args->first_position + static_cast<int64_t>(query),
                          block);
  }
};

template <int N, typename Element>
void AttendBlock(const LatentRows& rows, size_t row, const Element* block,
                 size_t count) {
  const size_t rank = rows.args->cache.kv_lora_rank;
  const size_t size = rank + rows.args->cache.rope_dim;
  float scores[N][kCacheBlockPositions];
  const float* queries[N];
  float* out[N];
  SoftmaxSum* states[N];
  for (int n = 0; n < N; ++n) {
    queries[n] = rows.queries + (row + n) * size;
    out[n] = rows.sums + (row + n) * rank;
    states[n] = rows.states + row + n;
  }
  ScoreRows<N>(block, size, count, queries, size, scores);
  MergeBlock<N>(block, size, count, rank, rows.args->softmax_scale, scores,
                states, out);
}

// Blocks outside, rows inside: a block stays in L2 while the rows pass.
template <typename Element>
void AttendRows(const LatentRows& rows, size_t begin, size_t end) {
  const size_t rank = rows.args->cache.kv_lora_rank;
  for (size_t b = 0; rows.Visible(end - 1, b) > 0; ++b) {
    const auto* block =
        reinterpret_cast<const Element*>(rows.args->cache.blocks[b]);
    for (size_t row = begin; row < end;) {
      const size_t count = rows.Visible(row, b);
      if (count == 0) {
        ++row;
      } else if (row + kDotRows <= end &&
                 rows.Visible(row + kDotRows - 1, b) == count) {
        AttendBlock<kDotRows>(rows, row, block, count);
        row += kDotRows;
      } else {
        AttendBlock<1>(rows, row, block, count);
        ++row;
      }
    }
  }
  for (size_t row = begin; row < end; ++row) {
    float* sums = rows.sums + row * rank;
    const float sum = rows.states[row].sum;
    for (size_t c = 0; c < rank; ++c) sums[c] /= sum;
  }
}

}  // namespace

void MlaAbsorbed(const MlaArgs& args, ThreadPool& pool) {
  CheckMlaArgs(args);
  if (args.heads == 0 || args.num_queries == 0) return;
  RF_CHECK(args.uk_transposed != nullptr);
  RF_CHECK(args.uk_transposed->columns() == args.nope_dim);
  RF_CHECK(args.uk_transposed->rows() == args.heads * args.cache.kv_lora_rank);

  const size_t heads = args.heads;
  const size_t rank = args.cache.kv_lora_rank;
  const size_t latent_dim = rank + args.cache.rope_dim;
  const size_t head_dim = args.nope_dim + args.cache.rope_dim;
  const size_t max_queries =
      std::min(std::max<size_t>(kMaxRows / heads, 1), args.num_queries);
  std::vector<float> queries(max_queries * heads * latent_dim);
  std::vector<float> sums(max_queries * heads * rank);
  std::vector<SoftmaxSum> states(max_queries * heads);
  Activations x;

  for (size_t first = 0; first < args.num_queries; first += max_queries) {
    const size_t num_queries = std::min(max_queries, args.num_queries - first);
    const size_t num_rows = num_queries * heads;
    const float* q = args.q + first * heads * head_dim;
    std::fill(sums.begin(), sums.end(), 0.0f);
    std::fill(states.begin(), states.end(), SoftmaxSum{});

    x.Assign(ActivationFormFor(args.uk_transposed->form()), q, num_rows,
             args.nope_dim, head_dim, pool);
    MatMulPerHead({.first = {.w = args.uk_transposed,
                             .num_rows = rank,
                             .x = &x,
                             .x_step = heads,
                             .batch = num_queries,
                             .y = queries.data(),
                             .y_stride = heads * latent_dim},
                   .heads = heads,
                   .row_step = rank,
                   .x_step = 1,
                   .y_step = latent_dim},
                  pool);
    for (size_t row = 0; row < num_rows; ++row) {
      std::copy_n(q + row * head_dim + args.nope_dim, args.cache.rope_dim,
                  queries.data() + row * latent_dim + rank);
    }

    const LatentRows rows = {.args = &args,
                             .first_query = first,
                             .queries = queries.data(),
                             .sums = sums.data(),
                             .states = states.data()};
    const size_t visible =
        static_cast<size_t>(args.first_position) + first + num_queries;
    pool.ParallelFor(num_rows, ProductGrain(visible * (latent_dim + rank)),
                     [&rows, &args](size_t begin, size_t end) {
                       if (args.cache.dtype == Dtype::kBf16) {
                         AttendRows<uint16_t>(rows, begin, end);
                       } else {
                         AttendRows<float>(rows, begin, end);
                       }
                     });

    x.Assign(ActivationFormFor(args.kv_b->form()), sums.data(), num_rows, rank,
             rank, pool);
    MatMulPerHead({.first = {.w = args.kv_b,
                             .first_row = args.nope_dim,
                             .num_rows = args.v_dim,
                             .x = &x,
                             .x_step = heads,
                             .batch = num_queries,
                             .y = args.out + first * heads * args.v_dim,
                             .y_stride = heads * args.v_dim},
                   .heads = heads,
                   .row_step = args.nope_dim + args.v_dim,
                   .x_step = 1,
                   .y_step = args.v_dim},
                  pool);
  }
}

}  // namespace ringfleet::kernels
