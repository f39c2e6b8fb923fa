// SPDX-License-Identifier: Apache-2.0
// The innermost product: some rows of activations times one panel of weights.
// Every multiplication by weights consists of it.
//
// Sums are exact or in one fixed order. A result therefore depends on its row
// of activations and its row of weights only, bit for bit, not on the rows
// beside it or the instruction set:
//   kF32, kBf16: y = sum_g dot_g
//   kInt8: y = w_scale * sum_g x_scale[g] * dot_g
//   kInt4: y = sum_g x_scale[g] * sum_s w_scale[s] * dot_s
// dot_g is the product of group g of kActivationGroup columns, dot_s of its
// part s of kInt4Group. Products of integers are exact; every other
// multiplication and addition rounds, in ascending order. kF32Rows has the
// order of matmul.h. kReference has OpenBLAS's order, which differs by
// processor.
#ifndef RINGFLEET_KERNELS_PRODUCTS_PANEL_H_
#define RINGFLEET_KERNELS_PRODUCTS_PANEL_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernels/isa.h"
#include "kernels/products/activations.h"
#include "kernels/products/weight_matrix.h"

namespace ringfleet::kernels {

// Rows of activations that go through a panel together. A group of the panel's
// int8 codes (4 KB), the rows' codes (3 KB) and the sums (12 KB) stay in a
// level-1 cache of 32 KB, and each code read from it serves up to six rows.
// bf16 takes 32 KB, f32 40.
inline constexpr size_t kMaxPanelBatch = 48;

// Some rows of one Activations.
struct PanelBatch {
  size_t size = 0;  // At most kMaxPanelBatch.
  size_t columns = 0;
  const float* values[kMaxPanelBatch];    // kF32
  const int8_t* codes[kMaxPanelBatch];    // kInt8
  const float* scales[kMaxPanelBatch];    // kInt8
  const int32_t* sums[kMaxPanelBatch];    // kInt8
  const int32_t* biases[kMaxPanelBatch];  // kInt8

  // Adds row `row` of x. All rows must have one form and one number of columns.
  void Add(const Activations& x, size_t row);
};

// A tile of results, [kMaxPanelBatch][kPanelRows].
struct PanelTile {
  alignas(64) float values[kMaxPanelBatch * kPanelRows];
  float* Row(size_t i) { return values + i * kPanelRows; }
};

// tile[i][o] = sum_k x[i][k] * w[kPanelRows * panel + o][k] for i < x.size and
// the rows of the panel that w has. The rest of the tile is undefined. `next`
// is a hint: the weights that this thread reads next, or null. Requires x of
// ActivationFormFor(w.form()) and of w.columns() columns.
void MultiplyPanel(const WeightMatrix& w, size_t panel, const PanelBatch& x,
                   const uint8_t* next, PanelTile* tile);

// Returns panel `panel` of w as the hint `next`; null if w has none.
inline const uint8_t* PanelOrNull(const WeightMatrix& w, size_t panel) {
  return panel < w.num_panels() && w.panel_bytes() > 0 ? w.Panel(panel)
                                                       : nullptr;
}

// The results of a part of a panel: outputs [first, first + size), counted from
// MultiplyPanels' first_row.
struct PanelResults {
  size_t first = 0;
  size_t size = 0;
  float* rows = nullptr;  // Valid during the call, which may change them.

  float* Row(size_t i) const { return rows + i * kPanelRows; }
};

// Computes outputs [first_row, first_row + num_rows) of w for the rows of x,
// panel after panel, and calls done(PanelResults) for each. A thread should
// read long runs: the lines that the processor brings behind a run's last line
// are wasted (Zen 5: 0.2 us for each run of 64 KB).
template <typename Done>
void MultiplyPanels(const WeightMatrix& w, size_t first_row, size_t num_rows,
                    const PanelBatch& x, const uint8_t* next,
                    const Done& done) {
  const size_t last_row = first_row + num_rows;
  for (size_t begin = first_row; begin < last_row;) {
    const size_t panel = begin / kPanelRows;
    const size_t end = std::min(last_row, (panel + 1) * kPanelRows);
    PanelTile tile;
    MultiplyPanel(w, panel, x,
                  end < last_row ? PanelOrNull(w, panel + 1) : next, &tile);
    done(PanelResults{.first = begin - first_row,
                      .size = end - begin,
                      .rows = tile.values + begin % kPanelRows});
    begin = end;
  }
}

// The float forms' kernels.
void MultiplyF32Panel(const uint8_t* panel, const PanelBatch& x,
                      LinesAhead lines, const uint8_t* next, float* tile);
void MultiplyBf16Panel(const uint8_t* panel, const PanelBatch& x,
                       LinesAhead lines, const uint8_t* next, float* tile);
// `rows` rows of kF32Rows from `w` on, x.columns apart.
void MultiplyF32Rows(const float* w, size_t rows, const PanelBatch& x,
                     LinesAhead lines, float* tile);

// `rows` rows of kReference from `w` on, x.columns apart, by OpenBLAS.
void MultiplyReferenceRows(const float* w, size_t rows, const PanelBatch& x,
                           float* tile);

// The integer forms' kernels: sums over groups, before kInt8's scales of rows.
// Each kind of instruction has its own kernels; all give the same bits.
using IntegerPanelKernel = void (*)(const uint8_t* panel, const PanelBatch& x,
                                    const uint8_t* next, float* tile);
struct IntegerPanelKernels {
  IntegerPanelKernel int8;
  IntegerPanelKernel int4;
};
IntegerPanelKernels HighwayPanelKernels();  // Any processor.
IntegerPanelKernels AvxVnniPanelKernels();  // kAvxVnni.
IntegerPanelKernels Avx512VnniPanelKernels(
    LinesAhead lines = BestLinesAhead());  // From kAvx512Vnni on.
IntegerPanelKernels AmxPanelKernels();     // From kAmx on.

}  // namespace ringfleet::kernels

#endif  // RINGFLEET_KERNELS_PRODUCTS_PANEL_H_
