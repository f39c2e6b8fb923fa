// SPDX-License-Identifier: Apache-2.0
// SwiGLU feed-forward products (arXiv:2002.05202) of one dense layer, or of all
// experts that have tokens, in two loops over the threads:
//   hidden = silu(gate x) * (up x), in the form that `down` reads. A task makes
//     both products, SiLU and the quantisation of a group of columns.
//   out = sum over the experts, in order, of weight * (down hidden). A task has
//     all experts of some outputs, so every sum has one order. SwigluDown may
//     be called several times, each time for other rows (SwigluOutput::rows).
//     Finished rows can then be sent while the next call computes.
#ifndef RINGFLEET_KERNELS_PRODUCTS_SWIGLU_H_
#define RINGFLEET_KERNELS_PRODUCTS_SWIGLU_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "kernels/products/activations.h"
#include "kernels/products/row_range.h"
#include "kernels/products/weight_matrix.h"
#include "kernels/thread_pool.h"

namespace ringfleet::kernels {

// One feed-forward network and its tokens.
struct SwigluExpert {
  const WeightMatrix* gate = nullptr;  // [width, columns of x]
  const WeightMatrix* up = nullptr;    // [width, columns of x]
  const WeightMatrix* down = nullptr;  // [hidden_size, width]
  // Rows of x, ascending, and the weight of each (null: 1).
  absl::Span<const uint32_t> rows;
  const float* weights = nullptr;
  // gate x and up x of all rows of x, [tokens, width], if they were computed
  // before; else null.
  const float* gate_x = nullptr;
  const float* up_x = nullptr;
};

// Buffers that keep their memory from call to call.
struct SwigluWorkspace {
  // Hidden rows by expert.
  std::vector<Activations> hidden;
  std::vector<size_t> first_task;
  // [experts, ranges of SwigluOutput::rows] The part of SwigluExpert::rows that
  // lies in the range, as indices into it.
  std::vector<RowRange> pieces;
};

// The sum of row t, hidden_size f32 values, goes to
// y + (t - first_y) * hidden_size. hidden_size is the model's: the rows of
// `down`.
struct SwigluOutput {
  float* y = nullptr;
  size_t first_y = 0;
  // The rows that are set, ascending.
  absl::Span<const RowRange> rows;
};

// First half: workspace.hidden of each expert = silu(gate x[t]) * (up x[t]) for
// its rows t.
//   x [tokens, columns] in the form that gate and up read; both have one form
// gate_x and up_x from MatMul lead to the same bits. Row invariant. Experts
// without rows are not visited.
void SwigluHidden(absl::Span<const SwigluExpert> experts, const Activations& x,
                  SwigluWorkspace* workspace, ThreadPool& pool);

// Second half: out[t] = sum of weight * down(hidden of row t) over the experts
// that have row t, in their order; 0 if no expert has it. Requires the
// `workspace` of SwigluHidden of the same experts, and that out.y overlaps no
// input. Row invariant. Experts without a row in `out` are not visited.
void SwigluDown(absl::Span<const SwigluExpert> experts, size_t hidden_size,
                const SwigluOutput& out, SwigluWorkspace* workspace,
                ThreadPool& pool);

// Both halves.
void Swiglu(absl::Span<const SwigluExpert> experts, const Activations& x,
            size_t hidden_size, const SwigluOutput& out,
            SwigluWorkspace* workspace, ThreadPool& pool);

}  // namespace ringfleet::kernels

#endif  // RINGFLEET_KERNELS_PRODUCTS_SWIGLU_H_
