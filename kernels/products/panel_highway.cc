// SPDX-License-Identifier: Apache-2.0
// Panels of integer weights for processors without dot products of bytes: pairs
// of products in int16 (PMADDWD), or of bytes where their sums are small enough
// (PMADDUBSW).
#include <cstdint>
#include <cstring>
#include <iterator>

#include "kernels/dtype.h"
#include "kernels/products/panel.h"
#include "kernels/products/prefetch.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/products/panel_highway.cc"
#include "hwy/foreach_target.h"  // Compiles this file once per target.
#include "hwy/highway.h"
#include "kernels/products/panel_rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ringfleet::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using I8 = hn::ScalableTag<int8_t>;
using U8 = hn::RebindToUnsigned<I8>;
using I16 = hn::RepartitionToWide<I8>;
using U16 = hn::RebindToUnsigned<I16>;
using I32 = hn::RepartitionToWide<I16>;
using F32 = hn::RebindToFloat<I32>;
using V16 = hn::Vec<I16>;
using V32 = hn::Vec<I32>;

// The codes of one step, four bytes, in each lane of 32 bits.
template <class D, typename T>
HWY_INLINE hn::Vec<D> StepCodes(D d, const T* codes) {
  int32_t bits;
  std::memcpy(&bits, codes, sizeof(bits));
  return hn::BitCast(d, hn::Set(I32(), bits));
}

// sums += sums of products of neighbouring columns. With AVX2 as one piece of
// assembly, or GCC 12 moves a third of the sums to the stack.
HWY_INLINE void AddProducts(V16 w, V16 x, V32& sums) {
#if HWY_TARGET <= HWY_AVX2
  V32 products;
  __asm__("vpmaddwd %3, %2, %1\n\tvpaddd %1, %0, %0"
          : "+v"(sums.raw), "=&v"(products.raw)
          : "v"(w.raw), "v"(x.raw));
#else
  sums.raw = _mm_add_epi32(sums.raw, _mm_madd_epi16(w.raw, x.raw));
#endif
}

HWY_INLINE void AddProducts(hn::Vec<U8> w, hn::Vec<I8> x, V16& sums) {
#if HWY_TARGET <= HWY_AVX2
  V16 products;
  __asm__("vpmaddubsw %3, %2, %1\n\tvpaddw %1, %0, %0"
          : "+v"(sums.raw), "=&v"(products.raw)
          : "v"(w.raw), "v"(x.raw));
#else
  sums.raw = _mm_add_epi16(sums.raw, _mm_maddubs_epi16(w.raw, x.raw));
#endif
}

HWY_INLINE void AddScaled(hn::Vec<F32> value, hn::Vec<F32> scale,
                          float* HWY_RESTRICT sum) {
  const F32 d;
  hn::StoreU(hn::Add(hn::LoadU(d, sum), hn::Mul(value, scale)), d, sum);
}

// Codes as int16: the sum of two products of bytes needs 17 bits.
struct Int8Weights {
  // Vectors of sums of a row. More read few rows' weights faster.
  template <size_t Rows>
  static constexpr size_t kVectors = Rows <= 2 ? 4 : 2;
  template <size_t Rows>
  static constexpr size_t kBlockOutputs = hn::MaxLanes(I32()) * kVectors<Rows>;
  static constexpr size_t kUnitColumns = kStepColumns;
  static constexpr size_t kGroupBytes =
      kActivationGroup / kStepColumns * kStepBytes;

  // A row of x in one group. Even and odd columns are apart: neighbours among
  // a vector of bytes, and then of int16, are of one output.
  struct RowGroup {
    int16_t even[kActivationGroup / 2];
    int16_t odd[kActivationGroup / 2];
    int32_t start;
    float scale;

    void Set(const PanelBatch& x, size_t row, size_t group) {
      const I16 d;
      const int8_t* codes = x.codes[row] + group * kActivationGroup;
      for (size_t i = 0; i < kActivationGroup / 2; i += hn::Lanes(d)) {
        const V16 both = hn::BitCast(d, hn::LoadU(I8(), codes + 2 * i));
        hn::StoreU(hn::ShiftRight<8>(hn::ShiftLeft<8>(both)), d, even + i);
        hn::StoreU(hn::ShiftRight<8>(both), d, odd + i);
      }
      start = -x.biases[row][group];
      scale = x.scales[row][group];
    }
  };

  template <size_t Rows>
  static HWY_INLINE void Block(const uint8_t* weights, size_t steps,
                               const RowGroup* rows, size_t output,
                               const uint8_t* later, float* tile) {
    const F32 df;
    const I32 d;
    const I16 d16;
    const U16 du16;
    // Bytes of `later` that a step asks for.
    constexpr size_t kShare = kBlockOutputs<Rows> * kStepColumns;
    if (later != nullptr) later += output * kGroupBytes / kPanelRows;
    V32 sums[Rows][kVectors<Rows>];
    for (size_t i = 0; i < Rows; ++i) {
      const V32 start = hn::Set(d, rows[i].start);
      for (size_t v = 0; v < kVectors<Rows>; ++v) sums[i][v] = start;
    }
    weights += output * kStepColumns;
    tile += output;
    for (size_t step = 0; step < steps; ++step, weights += kStepBytes) {
      const size_t pair = step * kStepColumns / 2;
      if (later != nullptr) {
        AskInPlace(later, kShare);
        later += kShare;
      }
      for (size_t v = 0; v < kVectors<Rows>; v += 2) {
        const auto load = [&](size_t vector) {
          return hn::BitCast(
              du16, hn::Load(U8(), weights + vector * hn::Lanes(U8())));
        };
        V16 w0 = hn::BitCast(d16, hn::And(load(v), hn::Set(du16, 255)));
        V16 w1 = hn::BitCast(d16, hn::And(load(v + 1), hn::Set(du16, 255)));
        for (size_t i = 0; i < Rows; ++i) {
          const V16 x = StepCodes(d16, rows[i].even + pair);
          AddProducts(w0, x, sums[i][v]);
          AddProducts(w1, x, sums[i][v + 1]);
        }
        w0 = hn::BitCast(d16, hn::ShiftRight<8>(load(v)));
        w1 = hn::BitCast(d16, hn::ShiftRight<8>(load(v + 1)));
        for (size_t i = 0; i < Rows; ++i) {
          const V16 x = StepCodes(d16, rows[i].odd + pair);
          AddProducts(w0, x, sums[i][v]);
          AddProducts(w1, x, sums[i][v + 1]);
        }
      }
    }
    for (size_t i = 0; i < Rows; ++i, tile += kPanelRows) {
      const auto scale = hn::Set(df, rows[i].scale);
      for (size_t v = 0; v < kVectors<Rows>; ++v) {
        AddScaled(hn::ConvertTo(df, sums[i][v]), scale,
                  tile + v * hn::Lanes(d));
      }
    }
  }
};

// Products of four bits and a byte: the sixteen of a part that go into one lane
// add up to 16 * 15 * 127 = 30480 at most, which int16 holds.
struct Int4Weights {
  template <size_t Rows>
  static constexpr size_t kVectors = 2;
  template <size_t Rows>
  static constexpr size_t kBlockOutputs = hn::MaxLanes(I32()) * kVectors<Rows>;
  static constexpr size_t kUnitColumns = kInt4Group;
  static constexpr size_t kGroupBytes =
      Activations::kSumsPerGroup * kInt4GroupBytes;

  // A row of x in one group.
  struct RowGroup {
    int8_t codes[kActivationGroup];
    int32_t starts[Activations::kSumsPerGroup];
    float scale;

    void Set(const PanelBatch& x, size_t row, size_t group) {
      std::memcpy(codes, x.codes[row] + group * kActivationGroup,
                  sizeof(codes));
      for (size_t part = 0; part < std::size(starts); ++part) {
        starts[part] = -8 * x.sums[row][group * std::size(starts) + part];
      }
      scale = x.scales[row][group];
    }
  };

  template <size_t Rows>
  static HWY_INLINE void Block(const uint8_t* weights, size_t parts,
                               const RowGroup* rows, size_t output,
                               const uint8_t* later, float* tile) {
    const F32 df;
    const I32 d;
    const hn::Rebind<uint16_t, F32> d16;
    const hn::RebindToUnsigned<I32> du32;
    HWY_ALIGN float inner[Rows][kPanelRows] = {};
    // Bytes of `later` that a part asks for.
    constexpr size_t kShare =
        kBlockOutputs<Rows> * kInt4GroupBytes / kPanelRows;
    if (later != nullptr) later += output * kGroupBytes / kPanelRows;
    for (size_t part = 0; part < parts; ++part, weights += kInt4GroupBytes) {
      if (later != nullptr) {
        AskInPlace(later, kShare);
        later += kShare;
      }
      V16 sums[Rows][kVectors<Rows>];
      AddPart<Rows>(weights + kInt4ScaleBytes + output * kStepColumns, rows,
                    part * kInt4Group, sums);
      for (size_t v = 0; v < kVectors<Rows>; ++v) {
        const size_t at = v * hn::Lanes(d);
        const auto bits = hn::LoadU(
            d16, reinterpret_cast<const uint16_t*>(weights) + output + at);
        const auto scale =
            hn::BitCast(df, hn::ShiftLeft<16>(hn::PromoteTo(du32, bits)));
        for (size_t i = 0; i < Rows; ++i) {
          V32 dots = hn::Set(d, rows[i].starts[part]);
          AddProducts(sums[i][v], hn::Set(I16(), 1), dots);
          AddScaled(hn::ConvertTo(df, dots), scale, inner[i] + at);
        }
      }
    }
    tile += output;
    for (size_t i = 0; i < Rows; ++i, tile += kPanelRows) {
      const auto scale = hn::Set(df, rows[i].scale);
      for (size_t v = 0; v < kVectors<Rows>; ++v) {
        const size_t at = v * hn::Lanes(df);
        AddScaled(hn::Load(df, inner[i] + at), scale, tile + at);
      }
    }
  }

 private:
  // Sums over the steps of a part that begins at `column` of the group.
  template <size_t Rows>
  static HWY_INLINE void AddPart(const uint8_t* weights, const RowGroup* rows,
                                 size_t column,
                                 V16 (&sums)[Rows][kVectors<Rows>]) {
    const U8 d8;
    const auto low_bits = hn::Set(d8, 15);
    for (size_t i = 0; i < Rows; ++i) {
      for (size_t v = 0; v < kVectors<Rows>; ++v) sums[i][v] = hn::Zero(I16());
    }
    for (size_t step = 0; step < kInt4Group / kStepColumns; ++step) {
      const uint8_t* bytes = weights + step / 2 * kStepBytes;
      const auto load = [&](size_t vector) {
        const auto both = hn::Load(d8, bytes + vector * hn::Lanes(d8));
        if (step % 2 == 0) return hn::And(both, low_bits);
        const auto high = hn::ShiftRight<4>(hn::BitCast(U16(), both));
        return hn::And(hn::BitCast(d8, high), low_bits);
      };
      for (size_t v = 0; v < kVectors<Rows>; v += 2) {
        const auto w0 = load(v);
        const auto w1 = load(v + 1);
        for (size_t i = 0; i < Rows; ++i) {
          const auto x =
              StepCodes(I8(), rows[i].codes + column + step * kStepColumns);
          AddProducts(w0, x, sums[i][v]);
          AddProducts(w1, x, sums[i][v + 1]);
        }
      }
    }
  }
};

void MultiplyInt8(const uint8_t* panel, const PanelBatch& x,
                  const uint8_t* next, float* tile) {
  MultiplyGroups<Int8Weights>(panel, x, BytesAheadOutOfOrder(x.size), next,
                              tile);
}

void MultiplyInt4(const uint8_t* panel, const PanelBatch& x,
                  const uint8_t* next, float* tile) {
  MultiplyGroups<Int4Weights>(panel, x, BytesAheadOutOfOrder(x.size), next,
                              tile);
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
  HWY_DYNAMIC_DISPATCH(MultiplyInt8)(panel, x, next, tile);
}

void Int4Panel(const uint8_t* panel, const PanelBatch& x, const uint8_t* next,
               float* tile) {
  HWY_DYNAMIC_DISPATCH(MultiplyInt4)(panel, x, next, tile);
}

}  // namespace

IntegerPanelKernels HighwayPanelKernels() {
  return {.int8 = &Int8Panel, .int4 = &Int4Panel};
}

}  // namespace ringfleet::kernels
#endif  // HWY_ONCE
