// SPDX-License-Identifier: Apache-2.0
// Panels of integer weights for processors without dot products of bytes:
// weights and codes are widened to int16, pairs of products added to int32
// (PMADDWD). Four columns of an output then give two neighbouring sums, which
// are added at the end of a group.
#include <algorithm>
#include <cstdint>
#include <cstring>

#include "kernels/dtype.h"
#include "kernels/panel.h"
#include "kernels/prefetch.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/panel_highway.cc"
#include "hwy/foreach_target.h"  // Compiles this file once per target.
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace ringfleet::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using I16 = hn::ScalableTag<int16_t>;
using I32 = hn::RepartitionToWide<I16>;
using F32 = hn::RebindToFloat<I32>;
using U8 = hn::Rebind<uint8_t, I16>;  // As many as fit when widened.
using U64 = hn::Repartition<uint64_t, I16>;
using V32 = hn::Vec<I32>;

// 3 rows x 4 vectors of sums, one vector of weights and one of codes take 14
// of 16 registers.
constexpr size_t kMaxRows = 3;
constexpr size_t kVectors = 4;

// Outputs whose sums one vector, or one block of vectors, holds.
HWY_INLINE size_t VectorOutputs() { return hn::Lanes(I32()) / 2; }
HWY_INLINE size_t BlockOutputs() { return kVectors * VectorOutputs(); }

// Codes of a row's group as int16.
using WideCodes = int16_t[kActivationGroup];

void Widen(const int8_t* codes, int16_t* HWY_RESTRICT wide) {
  const hn::Rebind<int8_t, I16> d8;
  for (size_t i = 0; i < kActivationGroup; i += hn::Lanes(I16())) {
    hn::Store(hn::PromoteTo(I16(), hn::LoadU(d8, codes + i)), I16(), wide + i);
  }
}

HWY_INLINE hn::Vec<I16> FourCodes(const int16_t* codes) {
  uint64_t four;
  std::memcpy(&four, codes, sizeof(four));
  return hn::BitCast(I16(), hn::Set(U64(), four));
}

HWY_INLINE void AddProducts(hn::Vec<I16> w, hn::Vec<I16> x, V32& sums) {
  V32 unused = hn::Zero(I32());  // Stays zero: x86 adds pairs in one result.
  sums = hn::ReorderWidenMulAccumulate(I32(), w, x, sums, unused);
  // Keeps the sum where it is: GCC 12 moves a third of them to the stack.
  __asm__("" : "+v"(sums.raw));
}

// Sums of neighbouring lanes of kVectors vectors, plus `start`, as floats in
// order of the outputs.
template <class Sink>
HWY_INLINE void FinishBlock(const V32* sums, int32_t start, Sink sink) {
  const I32 d;
  for (size_t v = 0; v < kVectors; v += 2) {
    const V32 a = hn::Add(sums[v], hn::Shuffle2301(sums[v]));
    const V32 b = hn::Add(sums[v + 1], hn::Shuffle2301(sums[v + 1]));
    const V32 both = hn::Add(hn::ConcatEven(d, b, a), hn::Set(d, start));
    sink(v * VectorOutputs(), hn::ConvertTo(F32(), both));
  }
}

HWY_INLINE void AddScaled(hn::Vec<F32> value, hn::Vec<F32> scale,
                          float* HWY_RESTRICT sum) {
  const F32 d;
  hn::StoreU(hn::Add(hn::LoadU(d, sum), hn::Mul(value, scale)), d, sum);
}

// Rows [row, row + Rows) of x in one group.
struct GroupRows {
  const PanelBatch* x;
  size_t row;
  size_t group;
  const WideCodes* codes;  // Of the batch's rows.
  float* tile;             // Of the whole batch.

  float Scale(size_t i) const { return x->scales[row + i][group]; }
  const int32_t* Sums(size_t i) const {
    return x->sums[row + i] + group * Activations::kSumsPerGroup;
  }
  const int16_t* Codes(size_t i) const { return codes[row + i]; }
  float* Tile(size_t i) const { return tile + (row + i) * kPanelRows; }
};

template <size_t Rows>
HWY_INLINE void Int8Block(const uint8_t* weights, size_t steps,
                          const GroupRows& rows, size_t output) {
  V32 sums[Rows][kVectors];
  for (size_t i = 0; i < Rows; ++i) {
    for (size_t v = 0; v < kVectors; ++v) sums[i][v] = hn::Zero(I32());
  }
  for (size_t step = 0; step < steps; ++step) {
    const uint8_t* w = weights + step * kStepBytes + output * kStepColumns;
    hn::Vec<I16> codes[Rows];
    for (size_t i = 0; i < Rows; ++i) {
      codes[i] = FourCodes(rows.Codes(i) + step * kStepColumns);
    }
    for (size_t v = 0; v < kVectors; ++v) {
      const auto wide = hn::PromoteTo(
          I16(), hn::LoadU(U8(), w + v * VectorOutputs() * kStepColumns));
      for (size_t i = 0; i < Rows; ++i) AddProducts(wide, codes[i], sums[i][v]);
    }
  }
  for (size_t i = 0; i < Rows; ++i) {
    const int32_t start = -rows.x->biases[rows.row + i][rows.group];
    const auto scale = hn::Set(F32(), rows.Scale(i));
    FinishBlock(sums[i], start, [&](size_t at, hn::Vec<F32> values) {
      AddScaled(values, scale, rows.Tile(i) + output + at);
    });
  }
}

template <size_t Rows>
HWY_INLINE void Int4Block(const uint8_t* weights, size_t parts,
                          const GroupRows& rows, size_t output) {
  const F32 df;
  const U8 d8;
  const hn::Rebind<uint16_t, F32> d16;
  const hn::RebindToUnsigned<I32> du32;
  const auto low_bits = hn::Set(I16(), 15);
  HWY_ALIGN float inner[Rows][kPanelRows] = {};
  for (size_t part = 0; part < parts; ++part, weights += kInt4GroupBytes) {
    V32 sums[Rows][kVectors];
    for (size_t i = 0; i < Rows; ++i) {
      for (size_t v = 0; v < kVectors; ++v) sums[i][v] = hn::Zero(I32());
    }
    for (size_t pair = 0; pair < kInt4Group / (2 * kStepColumns); ++pair) {
      const uint8_t* bytes =
          weights + kInt4ScaleBytes + pair * kStepBytes + output * kStepColumns;
      const size_t column = part * kInt4Group + pair * 2 * kStepColumns;
      for (size_t v = 0; v < kVectors; ++v) {
        const auto both = hn::PromoteTo(
            I16(), hn::LoadU(d8, bytes + v * VectorOutputs() * kStepColumns));
        const auto low = hn::And(both, low_bits);
        const auto high = hn::ShiftRight<4>(both);
        for (size_t i = 0; i < Rows; ++i) {
          const int16_t* codes = rows.Codes(i) + column;
          AddProducts(low, FourCodes(codes), sums[i][v]);
          AddProducts(high, FourCodes(codes + kStepColumns), sums[i][v]);
        }
      }
    }
    for (size_t i = 0; i < Rows; ++i) {
      FinishBlock(
          sums[i], -8 * rows.Sums(i)[part],
          [&](size_t at, hn::Vec<F32> values) {
            const auto bits = hn::LoadU(
                d16, reinterpret_cast<const uint16_t*>(weights) + output + at);
            const auto scale =
                hn::BitCast(df, hn::ShiftLeft<16>(hn::PromoteTo(du32, bits)));
            AddScaled(values, scale, inner[i] + at);
          });
    }
  }
  for (size_t i = 0; i < Rows; ++i) {
    const auto scale = hn::Set(df, rows.Scale(i));
    for (size_t at = 0; at < BlockOutputs(); at += hn::Lanes(df)) {
      AddScaled(hn::Load(df, inner[i] + at), scale, rows.Tile(i) + output + at);
    }
  }
}

struct Int8Weights {
  static constexpr size_t kUnitColumns = kStepColumns;
  static constexpr size_t kGroupBytes =
      kActivationGroup / kStepColumns * kStepBytes;
  template <size_t Rows>
  static HWY_INLINE void Block(const uint8_t* weights, size_t units,
                               const GroupRows& rows, size_t output) {
    Int8Block<Rows>(weights, units, rows, output);
  }
};

struct Int4Weights {
  static constexpr size_t kUnitColumns = kInt4Group;
  static constexpr size_t kGroupBytes =
      Activations::kSumsPerGroup * kInt4GroupBytes;
  template <size_t Rows>
  static HWY_INLINE void Block(const uint8_t* weights, size_t units,
                               const GroupRows& rows, size_t output) {
    Int4Block<Rows>(weights, units, rows, output);
  }
};

template <class Weights, size_t Rows>
HWY_NOINLINE void MultiplyRows(const uint8_t* weights, size_t units,
                               const GroupRows& rows) {
  for (size_t output = 0; output < kPanelRows; output += BlockOutputs()) {
    if (rows.row == 0) {
      AskAhead(weights, Weights::kGroupBytes, output, BlockOutputs());
    }
    Weights::template Block<Rows>(weights, units, rows, output);
  }
}

template <class Weights>
void Multiply(const uint8_t* panel, const PanelBatch& x, float* tile) {
  std::fill_n(tile, x.size * kPanelRows, 0.0f);
  HWY_ALIGN WideCodes codes[kMaxPanelBatch];
  const size_t groups = (x.columns + kActivationGroup - 1) / kActivationGroup;
  for (size_t group = 0; group < groups; ++group) {
    const size_t first = group * kActivationGroup;
    const size_t columns = std::min(kActivationGroup, x.columns - first);
    const size_t units =
        (columns + Weights::kUnitColumns - 1) / Weights::kUnitColumns;
    for (size_t i = 0; i < x.size; ++i) Widen(x.codes[i] + first, codes[i]);
    const uint8_t* weights = panel + group * Weights::kGroupBytes;
    GroupRows rows = {
        .x = &x, .row = 0, .group = group, .codes = codes, .tile = tile};
    while (rows.row < x.size) {
      const size_t count = std::min(kMaxRows, x.size - rows.row);
      if (count == 1) {
        MultiplyRows<Weights, 1>(weights, units, rows);
      } else if (count == 2) {
        MultiplyRows<Weights, 2>(weights, units, rows);
      } else {
        MultiplyRows<Weights, 3>(weights, units, rows);
      }
      rows.row += count;
    }
  }
}

void MultiplyInt8(const uint8_t* panel, const PanelBatch& x, float* tile) {
  Multiply<Int8Weights>(panel, x, tile);
}

void MultiplyInt4(const uint8_t* panel, const PanelBatch& x, float* tile) {
  Multiply<Int4Weights>(panel, x, tile);
}

}  // namespace ringfleet::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ringfleet::kernels {
namespace {

HWY_EXPORT(MultiplyInt8);
HWY_EXPORT(MultiplyInt4);

void Int8Panel(const uint8_t* panel, const PanelBatch& x, const uint8_t* next,
               float* tile) {
  static_cast<void>(next);  // AskAhead() runs into what follows the panel.
  HWY_DYNAMIC_DISPATCH(MultiplyInt8)(panel, x, tile);
}

void Int4Panel(const uint8_t* panel, const PanelBatch& x, const uint8_t* next,
               float* tile) {
  static_cast<void>(next);
  HWY_DYNAMIC_DISPATCH(MultiplyInt4)(panel, x, tile);
}

}  // namespace

IntegerPanelKernels HighwayPanelKernels() {
  return {.int8 = &Int8Panel, .int4 = &Int4Panel};
}

}  // namespace ringfleet::kernels
#endif  // HWY_ONCE
