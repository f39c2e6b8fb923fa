// SPDX-License-Identifier: Apache-2.0
// The operations of mla_block.h in float32, for every instruction set that
// Highway knows. Where a fused multiply-add exists it is used: hosts of
// different instruction sets may differ in the last bits.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

#include "kernels/attention/latent_cache.h"
#include "kernels/attention/mla_block.h"
#include "kernels/unroll.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/attention/mla_f32.cc"
#include "hwy/foreach_target.h"  // Compiles this file once per target.
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace ringfleet::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using F32 = hn::CappedTag<float, 16>;
using I32 = hn::RebindToSigned<F32>;

struct Arithmetic {
  using Vector = hn::Vec<F32>;
  using Columns = Vector;
  using Row = Vector;

  // 32 registers of AVX-512 hold 6 x 4 sums, the 16 of the others 6 x 2.
#if HWY_TARGET <= HWY_AVX3
  static constexpr size_t kMaxVectors = 4;
#else
  static constexpr size_t kMaxVectors = 2;
#endif
  static constexpr size_t TileRows(size_t) { return 6; }
  static constexpr bool kAsksForResults = false;

  static HWY_INLINE size_t Lanes() { return hn::Lanes(F32()); }
  static HWY_INLINE Vector Zero() { return hn::Zero(F32()); }
  static HWY_INLINE Vector Set(float value) { return hn::Set(F32(), value); }
  static HWY_INLINE Vector Load(const float* from) {
    return hn::LoadU(F32(), from);
  }
  static HWY_INLINE void Store(Vector value, float* to) {
    hn::StoreU(value, F32(), to);
  }
  static HWY_INLINE Vector Mul(Vector a, Vector b) { return hn::Mul(a, b); }
  static HWY_INLINE Row LoadRow(const char* a) {
    return Set(*reinterpret_cast<const float*>(a));
  }
  static HWY_INLINE Columns LoadColumns(const char* b) {
    return Load(reinterpret_cast<const float*>(b));
  }
  static HWY_INLINE Vector MulAdd(Vector sum, Row row, Columns columns) {
    return hn::MulAdd(row, columns, sum);
  }
};

#include "kernels/attention/mla_product-inl.h"

using Vector = Arithmetic::Vector;

// 2^x for x <= 0 or NaN.
Vector Exp2(Vector x) {
  const F32 d;
  const I32 di;
  // Below 2^-126 the result is zero: exponents stay those of normal numbers.
  const auto is_zero = hn::Lt(x, hn::Set(d, -126.0f));
  const Vector in_range = hn::IfThenElse(is_zero, hn::Zero(d), x);
  const Vector n = hn::Round(in_range);
  const Vector f = hn::Sub(in_range, n);
  Vector p = hn::Set(d, kExp2Coefficients[5]);
  RF_UNROLL
  for (int i = 4; i >= 0; --i) {
    p = hn::MulAdd(p, f, hn::Set(d, kExp2Coefficients[i]));
  }
  p = hn::MulAdd(p, f, hn::Set(d, 1.0f));
  const auto exponent =
      hn::ShiftLeft<23>(hn::Add(hn::ConvertTo(di, n), hn::Set(di, 127)));
  return hn::IfThenElse(is_zero, hn::Zero(d),
                        hn::Mul(p, hn::BitCast(d, exponent)));
}

// The lanes of one vector from `lane` on: scores to probabilities, in place,
// and the factors of what was summed before and, in the end, of everything.
void SoftmaxLanes(const MlaBlock& block, size_t lane, float* old_factor,
                  float* new_factor) {
  const F32 d;
  const I32 di;
  const size_t padded = PaddedLanes(block.lanes);
  const Vector scale = hn::Set(d, block.score_scale);
  const Vector lowest = hn::Set(d, -std::numeric_limits<float>::infinity());
  const Vector old_max = block.first ? lowest : hn::LoadU(d, block.max + lane);
  Vector max = old_max;
  for (size_t t = 0; t < block.positions; ++t) {
    float* scores = block.scores + t * padded + lane;
    Vector scaled = hn::Mul(hn::LoadU(d, scores), scale);
    if (block.visible != nullptr) {
      const auto visible = hn::LoadU(di, block.visible + lane);
      const auto seen = hn::Gt(visible, hn::Set(di, static_cast<int32_t>(t)));
      scaled = hn::IfThenElse(hn::RebindMask(d, seen), scaled, lowest);
    }
    hn::StoreU(scaled, d, scores);
    max = hn::Max(max, scaled);
  }
  const Vector old = Exp2(hn::Sub(old_max, max));
  Vector sum =
      block.first ? hn::Zero(d) : hn::Mul(hn::LoadU(d, block.sum + lane), old);
  for (size_t t = 0; t < block.positions; ++t) {
    float* scores = block.scores + t * padded + lane;
    const Vector probability = Exp2(hn::Sub(hn::LoadU(d, scores), max));
    sum = hn::Add(sum, probability);
    hn::StoreU(probability, d, scores);
  }
  hn::StoreU(max, d, block.max + lane);
  hn::StoreU(sum, d, block.sum + lane);
  hn::StoreU(old, d, old_factor + lane);
  hn::StoreU(hn::Div(hn::Set(d, 1.0f), sum), d, new_factor + lane);
}

void Attend(const MlaBlock& block) {
  const size_t padded = PaddedLanes(block.lanes);
  Multiply({.a = static_cast<const char*>(block.keys),
            .a_row = block.key_stride_bytes,
            .a_step = sizeof(float),
            .b = static_cast<const char*>(block.queries),
            .b_step = padded * sizeof(float),
            .steps = block.key_dim,
            .c = block.scores,
            .c_row = padded},
           block.positions, padded);
  float old_factor[kMaxLanes];
  float new_factor[kMaxLanes];
  for (size_t lane = 0; lane < padded; lane += hn::Lanes(F32())) {
    SoftmaxLanes(block, lane, old_factor, new_factor);
  }
  const size_t whole = block.value_dim / kLaneGroup * kLaneGroup;
  Product product = {.a = reinterpret_cast<const char*>(block.scores),
                     .a_row = sizeof(float),
                     .a_step = padded * sizeof(float),
                     .b = static_cast<const char*>(block.values),
                     .b_step = block.value_stride_bytes,
                     .steps = block.positions,
                     .c = block.out,
                     .c_row = block.out_stride,
                     .old_factor = block.first ? nullptr : old_factor,
                     .new_factor = block.last ? new_factor : nullptr};
  Multiply(product, block.lanes, whole);
  if (whole < block.value_dim) {
    product.b += whole * sizeof(float);
    product.c += whole;
    MultiplyNarrow(product, block.lanes, block.value_dim - whole);
  }
}

}  // namespace ringfleet::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE  // The dispatch table is built once, outside the per-target code.
namespace ringfleet::kernels {
namespace {

HWY_EXPORT(Attend);

void AttendOnBestTarget(const MlaBlock& block) {
  HWY_DYNAMIC_DISPATCH(Attend)(block);
}

// [dim][padded lanes]
void PackQueries(const float* queries, size_t query_stride, size_t lanes,
                 size_t dim, void* packed) {
  const size_t padded = PaddedLanes(lanes);
  auto* out = static_cast<float*>(packed);
  // Sixteen numbers of every lane at a time: the lines they lie in and those
  // they go to stay in the first-level cache.
  constexpr size_t kNumbers = 16;
  for (size_t first = 0; first < dim; first += kNumbers) {
    const size_t end = first + kNumbers < dim ? first + kNumbers : dim;
    for (size_t lane = 0; lane < padded; ++lane) {
      const float* query = queries + lane * query_stride;
      for (size_t i = first; i < end; ++i) {
        out[i * padded + lane] = lane < lanes ? query[i] : 0.0f;
      }
    }
  }
}

// Values are read a lane group at a time: rows of a cache that end within one
// would be read beyond their end.
bool ReadsCache(const LatentRowFormat& format) {
  return format.dtype == Dtype::kF32 && format.kv_lora_rank % kLaneGroup == 0;
}

void LoadRows(const LatentRowFormat& format, const char* rows, size_t count,
              void* out, size_t stride_bytes) {
  LoadLatentRows(format, rows, count, static_cast<float*>(out),
                 stride_bytes / sizeof(float));
}

void ConvertRows(const float* rows, size_t row_stride, size_t count, size_t dim,
                 size_t /*pad*/, void* out, size_t stride_bytes) {
  for (size_t t = 0; t < count; ++t) {
    std::memcpy(static_cast<char*>(out) + t * stride_bytes,
                rows + t * row_stride, dim * sizeof(float));
  }
}

}  // namespace

const MlaKernels& MlaKernelsF32() {
  static constexpr MlaKernels kKernels = {.element_bytes = sizeof(float),
                                          .pack_queries = &PackQueries,
                                          .pack_values = nullptr,
                                          .reads_cache = &ReadsCache,
                                          .load_rows = &LoadRows,
                                          .convert_rows = &ConvertRows,
                                          .attend = &AttendOnBestTarget};
  return kKernels;
}

}  // namespace ringfleet::kernels
#endif
