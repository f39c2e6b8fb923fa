// SPDX-License-Identifier: Apache-2.0
// Panels of float32 and bfloat16 weights. A lane is one output, so that each
// weight that is loaded serves up to six rows of activations and no sum is
// added up across a vector; multiply, then add, never fused, so that processors
// without FMA give the same bits.
#include <algorithm>
#include <cstdint>
#include <cstring>

#include "kernels/products/panel.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/products/panel_float.cc"
#include "hwy/foreach_target.h"  // Compiles this file once per target.
#include "hwy/highway.h"
#include "kernels/products/panel_rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ringfleet::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using D = hn::CappedTag<float, 16>;
using DBits = hn::RebindToUnsigned<D>;
using V = hn::Vec<D>;

// Weights of column `column` of a step, of as many outputs as a vector has.
HWY_INLINE V LoadWeights(float, const uint8_t* step, size_t) {
  return hn::Load(D(), reinterpret_cast<const float*>(step));
}

// Two columns lie side by side: the first is the lower half of 32 bits.
HWY_INLINE V LoadWeights(uint16_t, const uint8_t* step, size_t column) {
  const auto both = hn::Load(DBits(), reinterpret_cast<const uint32_t*>(step));
  return hn::BitCast(D(), column == 0
                              ? hn::ShiftLeft<16>(both)
                              : hn::And(both, hn::Set(DBits(), 0xffff0000u)));
}

// `by_line`: each line is followed by asking for its share of what comes later
// (LinesAhead::kIntoLevel2); else a step begins with asking for it.
template <typename Element, bool by_line>
struct FloatWeights {
  static constexpr size_t kUnitColumns = kStepLaneBytes / sizeof(Element);
  static constexpr size_t kGroupBytes =
      kActivationGroup / kUnitColumns * kStepBytes;
  // All outputs of a panel where 32 registers hold the sums of six rows.
  template <size_t Rows>
  static constexpr size_t kVectors = hn::MaxLanes(D()) == 16 || Rows <= 2 ? 4
                                                                          : 2;

  // Side by side: rows that lie a power of two apart would push each other out
  // of the level-1 cache.
  struct RowGroup {
    float values[kActivationGroup];

    void Set(const PanelBatch& x, size_t row, size_t group) {
      const size_t first = group * kActivationGroup;
      const float* const from = x.values[row] + first;
      // The next group's: no processor foresees so many rows side by side.
      constexpr size_t kLineFloats = 64 / sizeof(float);
      for (size_t i = 0; i < kActivationGroup; i += kLineFloats) {
        __builtin_prefetch(from + kActivationGroup + i);
      }
      if (first + kActivationGroup <= x.columns) {
        std::memcpy(values, from, sizeof(values));
        return;
      }
      const size_t count = x.columns - first;
      std::memcpy(values, from, count * sizeof(float));
      std::fill(values + count, values + kActivationGroup, 0.0f);
    }
  };

  template <size_t Rows>
  static HWY_INLINE void Block(const uint8_t* weights, size_t steps,
                               const RowGroup* rows, size_t output,
                               const uint8_t* later, float* tile) {
    constexpr size_t kBlockVectors = kVectors<Rows>;
    const size_t lanes = hn::Lanes(D());
    V sums[Rows][kBlockVectors];
    for (size_t i = 0; i < Rows; ++i) {
      for (size_t v = 0; v < kBlockVectors; ++v) sums[i][v] = hn::Zero(D());
    }
    weights += output * kStepLaneBytes;
    if (later != nullptr) later += output * kStepLaneBytes;
    tile += output;
    for (size_t step = 0; step < steps; ++step, weights += kStepBytes) {
      if (!by_line && later != nullptr) {
        // The step's own share of what comes later.
        for (size_t v = 0; v < kBlockVectors; ++v) {
          __builtin_prefetch(later + step * kStepBytes +
                             v * lanes * kStepLaneBytes);
        }
      }
      for (size_t column = 0; column < kUnitColumns; ++column) {
        V w[kBlockVectors];
        for (size_t v = 0; v < kBlockVectors; ++v) {
          const size_t line = v * lanes * kStepLaneBytes;
          w[v] = LoadWeights(Element(), weights + line, column);
          if (by_line && column == 0 && later != nullptr) {
            AskInOrder(later + step * kStepBytes + line);
          }
        }
        for (size_t i = 0; i < Rows; ++i) {
          const V x =
              hn::Set(D(), rows[i].values[step * kUnitColumns + column]);
          for (size_t v = 0; v < kBlockVectors; ++v) {
            sums[i][v] = hn::Add(sums[i][v], hn::Mul(x, w[v]));
          }
        }
      }
    }
    for (size_t i = 0; i < Rows; ++i, tile += kPanelRows) {
      for (size_t v = 0; v < kBlockVectors; ++v) {
        float* const sum = tile + v * lanes;
        hn::Store(hn::Add(hn::Load(D(), sum), sums[i][v]), D(), sum);
      }
    }
  }
};

template <typename Element>
void Multiply(const uint8_t* panel, const PanelBatch& x, LinesAhead lines,
              const uint8_t* next, float* tile) {
  if (lines == LinesAhead::kIntoLevel2) {
    return MultiplyGroups<FloatWeights<Element, true>>(
        panel, x, kBytesAheadByLine, next, tile);
  }
  using Weights = FloatWeights<Element, false>;
  // All outputs at once are read front to back, which a processor may foresee.
  // Else a group asks for the one behind it, 8 or 16 KB, which after the last
  // is that of `next`.
  const bool foreseen =
      lines == LinesAhead::kForeseen && hn::MaxLanes(D()) == 16;
  MultiplyGroups<Weights>(panel, x, foreseen ? 0 : Weights::kGroupBytes, next,
                          tile);
}

void MultiplyF32(const uint8_t* panel, const PanelBatch& x, LinesAhead lines,
                 const uint8_t* next, float* tile) {
  Multiply<float>(panel, x, lines, next, tile);
}

void MultiplyBf16(const uint8_t* panel, const PanelBatch& x, LinesAhead lines,
                  const uint8_t* next, float* tile) {
  Multiply<uint16_t>(panel, x, lines, next, tile);
}

}  // namespace ringfleet::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ringfleet::kernels {

HWY_EXPORT(MultiplyF32);
HWY_EXPORT(MultiplyBf16);

void MultiplyF32Panel(const uint8_t* panel, const PanelBatch& x,
                      LinesAhead lines, const uint8_t* next, float* tile) {
  HWY_DYNAMIC_DISPATCH(MultiplyF32)(panel, x, lines, next, tile);
}

void MultiplyBf16Panel(const uint8_t* panel, const PanelBatch& x,
                       LinesAhead lines, const uint8_t* next, float* tile) {
  HWY_DYNAMIC_DISPATCH(MultiplyBf16)(panel, x, lines, next, tile);
}

}  // namespace ringfleet::kernels
#endif  // HWY_ONCE
