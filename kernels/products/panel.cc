// SPDX-License-Identifier: Apache-2.0
#include "kernels/products/panel.h"

#include <algorithm>
#include <cstring>

#include "kernels/check.h"

namespace ringfleet::kernels {
namespace {

IntegerPanelKernels KernelsOf(Isa isa) {
#if defined(__x86_64__)
  if (isa >= Isa::kAmx) return AmxPanelKernels();
  if (isa >= Isa::kAvx512Vnni) return Avx512VnniPanelKernels();
  if (isa == Isa::kAvxVnni) return AvxVnniPanelKernels();
#endif
  return HighwayPanelKernels();
}

// The scales lie behind the codes, where no kernel asks for them: without this
// the end of each panel waits for the memory (Zen 5, one row of 2048 columns:
// 44 instead of 41.5 GB/s). The codes of a single group leave no time for it.
void AskForScales(const float* scales) {
  constexpr size_t kLineFloats = 16;
  for (size_t o = 0; o < kPanelRows; o += kLineFloats) {
    __builtin_prefetch(scales + o);
  }
}

void MultiplyIntegers(const WeightMatrix& w, size_t panel, const PanelBatch& x,
                      const uint8_t* next, PanelTile* tile) {
  const IntegerPanelKernels kernels = KernelsOf(CurrentIsa());
  const uint8_t* weights = w.Panel(panel);
  if (w.form() == WeightForm::kInt4) {
    return kernels.int4(weights, x, next, tile->values);
  }
  const float* scales = reinterpret_cast<const float*>(
      weights + w.panel_bytes() - kPanelRows * sizeof(float));
  if (w.columns() > kActivationGroup) AskForScales(scales);
  kernels.int8(weights, x, next, tile->values);
  for (size_t i = 0; i < x.size; ++i) {
    float* row = tile->Row(i);
    for (size_t o = 0; o < kPanelRows; ++o) row[o] *= scales[o];
  }
}

}  // namespace

void PanelBatch::Add(const Activations& x, size_t row) {
  RF_CHECK(size < kMaxPanelBatch && row < x.rows());
  columns = x.columns();
  if (x.form() == Activations::Form::kF32) {
    values[size] = x.Values(row);
  } else {
    codes[size] = x.Codes(row);
    scales[size] = x.Scales(row);
    sums[size] = x.Sums(row);
    biases[size] = x.Biases(row);
  }
  ++size;
}

void MultiplyPanel(const WeightMatrix& w, size_t panel, const PanelBatch& x,
                   const uint8_t* next, PanelTile* tile) {
  RF_CHECK(panel < w.num_panels() && (x.size == 0 || x.columns == w.columns()));
  if (w.columns() == 0) {
    std::memset(tile->values, 0, x.size * kPanelRows * sizeof(float));
    return;
  }
  switch (w.form()) {
    case WeightForm::kF32:
      return MultiplyF32Panel(w.Panel(panel), x, BestLinesAhead(), next,
                              tile->values);
    case WeightForm::kBf16:
      return MultiplyBf16Panel(w.Panel(panel), x, BestLinesAhead(), next,
                               tile->values);
    case WeightForm::kInt8:
    case WeightForm::kInt4:
      return MultiplyIntegers(w, panel, x, next, tile);
    case WeightForm::kF32Rows: {
      const size_t first = panel * kPanelRows;
      return MultiplyF32Rows(static_cast<const float*>(w.Row(first)),
                             std::min(kPanelRows, w.rows() - first), x,
                             BestLinesAhead(), tile->values);
    }
    case WeightForm::kReference: {
      const size_t first = panel * kPanelRows;
      return MultiplyReferenceRows(static_cast<const float*>(w.Row(first)),
                                   std::min(kPanelRows, w.rows() - first), x,
                                   tile->values);
    }
    case WeightForm::kBf16Rows:
      RF_CHECK(false);  // A table.
  }
}

}  // namespace ringfleet::kernels
