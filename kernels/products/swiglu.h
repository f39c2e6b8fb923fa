// SPDX-License-Identifier: Apache-2.0
// SwiGLU feed-forward products (arXiv:2002.05202), of one dense layer or of
// the experts that have tokens, in two loops over the threads however many
// there are:
//   hidden = silu(gate x) * (up x), in the form that `down` reads: both
//     products, SiLU and the quantisation of a group are one task;
//   out = sum over the experts, in order, of weight * (down hidden): one task
//     has all experts of some outputs, so that every sum has one order. This
//     may be asked for in pieces, so that rows can travel while others follow.
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
  const WeightMatrix* down = nullptr;  // [D, width]
  // Rows of x, ascending, and the weight of each; without `weights` all 1.
  absl::Span<const uint32_t> rows;
  const float* weights = nullptr;
  // gate x and up x of all rows of x, [tokens, width], where they have been
  // multiplied before; else null.
  const float* gate_x = nullptr;
  const float* up_x = nullptr;
};

// Buffers that keep their memory from call to call.
struct SwigluWorkspace {
  // By expert: its tokens' hidden rows.
  std::vector<Activations> hidden;
  std::vector<size_t> first_task;
  // By expert and range of rows: which of the expert's rows these are.
  std::vector<RowRange> pieces;
};

// Where the sums of rows go: those of row t to y + (t - first_y) * D, f32.
struct SwigluOutput {
  float* y = nullptr;
  size_t first_y = 0;
  // The rows that are set, ascending.
  absl::Span<const RowRange> rows;
};

// workspace.hidden of each expert = silu(gate x[t]) * (up x[t]) for its rows t.
//   x [tokens, columns] in the form that gate and up read; both are of one form
// The same bits with gate_x and up_x from MatMul. Row invariant. Experts
// without rows are not visited.
void SwigluHidden(absl::Span<const SwigluExpert> experts, const Activations& x,
                  SwigluWorkspace* workspace, ThreadPool& pool);

// out[t] = sum over `experts` in their order, as far as they have row t, of
//   weight * down(hidden of row t); 0 where no expert has it. `workspace` has
//   the hidden rows of the same experts.
//   out.y overlaps no input
// Row invariant. Experts without rows among those of `out` are not visited.
void SwigluDown(absl::Span<const SwigluExpert> experts, size_t hidden_size,
                const SwigluOutput& out, SwigluWorkspace* workspace,
                ThreadPool& pool);

// Both.
void Swiglu(absl::Span<const SwigluExpert> experts, const Activations& x,
            size_t hidden_size, const SwigluOutput& out,
            SwigluWorkspace* workspace, ThreadPool& pool);

}  // namespace ringfleet::kernels

#endif  // RINGFLEET_KERNELS_PRODUCTS_SWIGLU_H_
