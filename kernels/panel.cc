// SPDX-License-Identifier: Apache-2.0
#include "kernels/panel.h"

#include <algorithm>
#include <cstring>

#include "kernels/check.h"
#include "kernels/dot-inl.h"

namespace ringfleet::kernels {
namespace {

// Bytes of float activations that stay in a core's L2 (256 KB and more on
// hosts of the last decade) while the panel's rows pass over them.
constexpr size_t kFloatBlockBytes = 192 * 1024;

template <typename Element>
void MultiplyFloats(const WeightMatrix& w, size_t panel, const PanelBatch& x,
                    PanelTile* tile) {
  const size_t columns = w.columns();
  const size_t first = panel * kPanelRows;
  const size_t rows = std::min(kPanelRows, w.rows() - first);
  const size_t fitting =
      kFloatBlockBytes / (std::max<size_t>(columns, 1) * sizeof(float));
  const size_t block = std::max(fitting / kDotRows * kDotRows, kDotRows);
  for (size_t begin = 0; begin < x.size; begin += block) {
    const size_t end = std::min(begin + block, x.size);
    for (size_t o = 0; o < rows; ++o) {
      const auto* weights = static_cast<const Element*>(w.Row(first + o));
      size_t i = begin;
      for (; i + kDotRows <= end; i += kDotRows) {
        float out[kDotRows];
        DotRows<kDotRows>(weights, x.values + i, columns, out);
        for (size_t n = 0; n < kDotRows; ++n) tile->Row(i + n)[o] = out[n];
      }
      for (; i < end; ++i) {
        DotRows<1>(weights, x.values + i, columns, &tile->Row(i)[o]);
      }
    }
  }
}

IntegerPanelKernels KernelsOf(Isa isa) {
#if defined(__x86_64__)
  if (isa >= Isa::kAvx512Vnni) return Avx512VnniPanelKernels();
#endif
  return HighwayPanelKernels();
}

void MultiplyIntegers(const WeightMatrix& w, size_t panel, const PanelBatch& x,
                      const uint8_t* next, PanelTile* tile) {
  const IntegerPanelKernels kernels = KernelsOf(CurrentIsa());
  const uint8_t* weights = w.Panel(panel);
  if (w.form() == WeightForm::kInt4) {
    return kernels.int4(weights, x, next, tile->values);
  }
  kernels.int8(weights, x, next, tile->values);
  const float* scales = reinterpret_cast<const float*>(
      weights + w.panel_bytes() - kPanelRows * sizeof(float));
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
      return MultiplyFloats<float>(w, panel, x, tile);
    case WeightForm::kBf16:
      return MultiplyFloats<uint16_t>(w, panel, x, tile);
    case WeightForm::kInt8:
    case WeightForm::kInt4:
      return MultiplyIntegers(w, panel, x, next, tile);
  }
}

}  // namespace ringfleet::kernels
