// SPDX-License-Identifier: Apache-2.0
// Products with rows of float32 in the order that hosts agree on (matmul.h).
// Every dot product has 16 partial sums: one vector of AVX-512, two of AVX2,
// four of SSE4. A tile is as many rows of activations and of weights as leave
// its sums in registers; each pair's operations and their order are the same in
// every tile.
#include <algorithm>
#include <cstddef>

#include "kernels/products/panel.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/products/row_dots.cc"
#include "hwy/foreach_target.h"  // Compiles this file once per target.
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace ringfleet::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using D = hn::CappedTag<float, 16>;
using V = hn::Vec<D>;
constexpr size_t kLanes = hn::MaxLanes(D());
constexpr size_t kVectors = 16 / kLanes;  // One dot product's sums.
constexpr size_t kMaxX = kVectors == 1 ? 6 : 3;
constexpr size_t kMaxW = 4 / kVectors;

// Partial sums p and p + 8, then p + 4, p + 2, p + 1.
HWY_INLINE float SumTree(float* sums) {
  for (size_t half = 8; half > 0; half /= 2) {
    for (size_t p = 0; p < half; ++p) sums[p] += sums[p + half];
  }
  return sums[0];
}

// Begins to bring the lines that a tile of W rows gets to after 8 KB, `columns`
// elements apart: those from column k + 8 KB / W on, of the rows of the next
// tile where these end. No processor foresees several rows at once beside those
// of the activations.
template <size_t W>
HWY_INLINE void AskForRows(const float* w, size_t columns, size_t k) {
  constexpr size_t kAhead = 8192 / (W * sizeof(float));
  const size_t ahead = k + kAhead;
  const float* from = w + ahead + (ahead >= columns ? (W - 1) * columns : 0);
  for (size_t o = 0; o < W; ++o) __builtin_prefetch(from + o * columns);
}

// out[i * kPanelRows + o] = x[i] . w[o], weight rows `columns` apart.
template <size_t X, size_t W, bool ask>
HWY_INLINE void DotTile(const float* HWY_RESTRICT w, const float* const* x,
                        size_t columns, float* HWY_RESTRICT out) {
  V sums[X][W][kVectors];
  for (size_t i = 0; i < X; ++i) {
    for (size_t o = 0; o < W; ++o) {
      for (size_t v = 0; v < kVectors; ++v) sums[i][o][v] = hn::Zero(D());
    }
  }
  size_t k = 0;
  for (; k + 16 <= columns; k += 16) {
    if constexpr (ask) AskForRows<W>(w, columns, k);
    for (size_t v = 0; v < kVectors; ++v) {
      V weights[W];
      for (size_t o = 0; o < W; ++o) {
        weights[o] = hn::LoadU(D(), w + o * columns + k + v * kLanes);
      }
      for (size_t i = 0; i < X; ++i) {
        const V values = hn::LoadU(D(), x[i] + k + v * kLanes);
        for (size_t o = 0; o < W; ++o) {
          sums[i][o][v] = hn::Add(sums[i][o][v], hn::Mul(values, weights[o]));
        }
      }
    }
  }
  for (size_t i = 0; i < X; ++i) {
    for (size_t o = 0; o < W; ++o) {
      HWY_ALIGN float partial[16];
      for (size_t v = 0; v < kVectors; ++v) {
        hn::Store(sums[i][o][v], D(), partial + v * kLanes);
      }
      for (size_t p = 0; k + p < columns; ++p) {
        partial[p] += x[i][k + p] * w[o * columns + k + p];
      }
      out[i * kPanelRows + o] = SumTree(partial);
    }
  }
}

template <size_t X, bool ask>
HWY_INLINE void DotRows(const float* w, size_t rows, const float* const* x,
                        size_t columns, float* out) {
  size_t o = 0;
  for (; o + kMaxW <= rows; o += kMaxW) {
    DotTile<X, kMaxW, ask>(w + o * columns, x, columns, out + o);
  }
  for (; o < rows; ++o) {
    DotTile<X, 1, ask>(w + o * columns, x, columns, out + o);
  }
}

template <bool ask>
HWY_INLINE void Multiply(const float* w, size_t rows, const PanelBatch& x,
                         float* tile) {
  for (size_t i = 0; i < x.size; i += kMaxX) {
    const float* const* values = x.values + i;
    float* out = tile + i * kPanelRows;
    switch (std::min(kMaxX, x.size - i)) {
      case 1:
        // Whole vectors of one row of activations: these are foreseen.
        DotRows<1, /*ask=*/false>(w, rows, values, x.columns, out);
        break;
      case 2:
        DotRows<2, ask>(w, rows, values, x.columns, out);
        break;
      case 3:
        DotRows<3, ask>(w, rows, values, x.columns, out);
        break;
      case 4:
        DotRows<std::min<size_t>(kMaxX, 4), ask>(w, rows, values, x.columns,
                                                 out);
        break;
      case 5:
        DotRows<std::min<size_t>(kMaxX, 5), ask>(w, rows, values, x.columns,
                                                 out);
        break;
      default:
        DotRows<kMaxX, ask>(w, rows, values, x.columns, out);
    }
  }
}

void MultiplyRows(const float* w, size_t rows, const PanelBatch& x,
                  LinesAhead lines, float* tile) {
  if (lines == LinesAhead::kForeseen) {
    Multiply</*ask=*/false>(w, rows, x, tile);
  } else {
    Multiply</*ask=*/true>(w, rows, x, tile);
  }
}

}  // namespace ringfleet::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ringfleet::kernels {

HWY_EXPORT(MultiplyRows);

void MultiplyF32Rows(const float* w, size_t rows, const PanelBatch& x,
                     LinesAhead lines, float* tile) {
  HWY_DYNAMIC_DISPATCH(MultiplyRows)(w, rows, x, lines, tile);
}

}  // namespace ringfleet::kernels
#endif  // HWY_ONCE
