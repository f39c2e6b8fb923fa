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
using Vector = hn::Vec<F32>;

// Vectors of columns that six rows of sums leave registers for: 32 registers
// of AVX-512 hold 6 x 4 sums, the 16 of the others 6 x 2.
#if HWY_TARGET <= HWY_AVX3
constexpr size_t kMaxVectors = 4;
#else
constexpr size_t kMaxVectors = 2;
#endif
constexpr size_t kMaxTileRows = 6;

size_t Padded(size_t lanes) {
  return (lanes + kLaneGroup - 1) / kLaneGroup * kLaneGroup;
}

// c[row][column] = sum over steps of a[row][step] * b[step][column], on top of
// old_factor[row] * c[row][column] and times new_factor[row], where there are
// factors. Strides are in floats.
struct Product {
  const float* a = nullptr;
  size_t a_row = 0;
  size_t a_step = 0;
  const float* b = nullptr;
  size_t b_step = 0;
  size_t steps = 0;
  float* c = nullptr;
  size_t c_row = 0;
  const float* old_factor = nullptr;
  const float* new_factor = nullptr;
};

template <size_t kRows, size_t kVectors>
void MultiplyTile(const Product& product) {
  const F32 d;
  Vector sums[kRows][kVectors];
  RF_UNROLL
  for (size_t r = 0; r < kRows; ++r) {
    RF_UNROLL
    for (size_t v = 0; v < kVectors; ++v) sums[r][v] = hn::Zero(d);
  }
  if (product.old_factor != nullptr) {
    RF_UNROLL
    for (size_t r = 0; r < kRows; ++r) {
      const Vector factor = hn::Set(d, product.old_factor[r]);
      const float* c = product.c + r * product.c_row;
      RF_UNROLL
      for (size_t v = 0; v < kVectors; ++v) {
        sums[r][v] = hn::Mul(hn::LoadU(d, c + v * hn::Lanes(d)), factor);
      }
    }
  }
  const float* a = product.a;
  const float* b = product.b;
  for (size_t step = 0; step < product.steps; ++step) {
    Vector columns[kVectors];
    RF_UNROLL
    for (size_t v = 0; v < kVectors; ++v) {
      columns[v] = hn::LoadU(d, b + v * hn::Lanes(d));
    }
    RF_UNROLL
    for (size_t r = 0; r < kRows; ++r) {
      const Vector row = hn::Set(d, a[r * product.a_row]);
      RF_UNROLL
      for (size_t v = 0; v < kVectors; ++v) {
        sums[r][v] = hn::MulAdd(row, columns[v], sums[r][v]);
      }
    }
    a += product.a_step;
    b += product.b_step;
  }
  if (product.new_factor != nullptr) {
    RF_UNROLL
    for (size_t r = 0; r < kRows; ++r) {
      const Vector factor = hn::Set(d, product.new_factor[r]);
      RF_UNROLL
      for (size_t v = 0; v < kVectors; ++v) {
        sums[r][v] = hn::Mul(sums[r][v], factor);
      }
    }
  }
  RF_UNROLL
  for (size_t r = 0; r < kRows; ++r) {
    float* c = product.c + r * product.c_row;
    RF_UNROLL
    for (size_t v = 0; v < kVectors; ++v) {
      hn::StoreU(sums[r][v], d, c + v * hn::Lanes(d));
    }
  }
}

template <size_t kVectors>
void MultiplyRows(Product product, size_t rows) {
  for (; rows >= kMaxTileRows; rows -= kMaxTileRows) {
    MultiplyTile<kMaxTileRows, kVectors>(product);
    product.a += kMaxTileRows * product.a_row;
    product.c += kMaxTileRows * product.c_row;
    if (product.old_factor != nullptr) product.old_factor += kMaxTileRows;
    if (product.new_factor != nullptr) product.new_factor += kMaxTileRows;
  }
  switch (rows) {
    case 5:
      return MultiplyTile<5, kVectors>(product);
    case 4:
      return MultiplyTile<4, kVectors>(product);
    case 3:
      return MultiplyTile<3, kVectors>(product);
    case 2:
      return MultiplyTile<2, kVectors>(product);
    case 1:
      return MultiplyTile<1, kVectors>(product);
    default:
      return;
  }
}

// `columns` is a multiple of kLaneGroup.
void Multiply(Product product, size_t rows, size_t columns) {
  const size_t width = kMaxVectors * hn::Lanes(F32());
  for (; columns >= width; columns -= width) {
    MultiplyRows<kMaxVectors>(product, rows);
    product.b += width;
    product.c += width;
  }
  // A lane group is one or a multiple of two vectors of any target.
  switch (columns / hn::Lanes(F32())) {
    case 3:
      return MultiplyRows<3>(product, rows);
    case 2:
      return MultiplyRows<2>(product, rows);
    case 1:
      return MultiplyRows<1>(product, rows);
    default:
      return;
  }
}

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

// Of the lanes of one vector from `lane` on: scores to weights, in place, and
// the factors of what was summed before and, in the end, of everything.
void SoftmaxLanes(const MlaBlock& block, size_t lane, float* old_factor,
                  float* new_factor) {
  const F32 d;
  const I32 di;
  const size_t padded = Padded(block.lanes);
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
    const Vector weight = Exp2(hn::Sub(hn::LoadU(d, scores), max));
    sum = hn::Add(sum, weight);
    hn::StoreU(weight, d, scores);
  }
  hn::StoreU(max, d, block.max + lane);
  hn::StoreU(sum, d, block.sum + lane);
  hn::StoreU(old, d, old_factor + lane);
  hn::StoreU(hn::Div(hn::Set(d, 1.0f), sum), d, new_factor + lane);
}

// Values that end within a lane group: their sums pass through memory that is
// as wide.
void MultiplyNarrow(Product product, size_t lanes, size_t width) {
  float sums[kMaxLanes][kLaneGroup];
  float* out = product.c;
  for (size_t lane = 0; lane < lanes && product.old_factor != nullptr; ++lane) {
    std::memset(sums[lane], 0, sizeof(sums[lane]));
    std::memcpy(sums[lane], out + lane * product.c_row, width * sizeof(float));
  }
  const size_t out_row = product.c_row;
  product.c = sums[0];
  product.c_row = kLaneGroup;
  Multiply(product, lanes, kLaneGroup);
  for (size_t lane = 0; lane < lanes; ++lane) {
    std::memcpy(out + lane * out_row, sums[lane], width * sizeof(float));
  }
}

void Attend(const MlaBlock& block) {
  const size_t padded = Padded(block.lanes);
  Multiply({.a = static_cast<const float*>(block.keys),
            .a_row = block.key_stride_bytes / sizeof(float),
            .a_step = 1,
            .b = static_cast<const float*>(block.queries),
            .b_step = padded,
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
  Product product = {.a = block.scores,
                     .a_row = 1,
                     .a_step = padded,
                     .b = static_cast<const float*>(block.values),
                     .b_step = block.value_stride_bytes / sizeof(float),
                     .steps = block.positions,
                     .c = block.out,
                     .c_row = block.out_stride,
                     .old_factor = block.first ? nullptr : old_factor,
                     .new_factor = block.last ? new_factor : nullptr};
  Multiply(product, block.lanes, whole);
  if (whole < block.value_dim) {
    product.b += whole;
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
  const size_t padded = (lanes + kLaneGroup - 1) / kLaneGroup * kLaneGroup;
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
