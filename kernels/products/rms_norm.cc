// SPDX-License-Identifier: Apache-2.0
#include "kernels/products/rms_norm.h"

#include <algorithm>
#include <cmath>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/products/rms_norm.cc"
#include "hwy/foreach_target.h"  // Compiles this file once per target.
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace ringfleet::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// 4, 8 or 16 lanes, all of which divide the 16 partial sums.
using D = hn::CappedTag<float, 16>;

// x += summand unless that is null; the sum of x^2 in 16 partial sums and one
// tree, multiply, then add.
float AddAndSumSquares(const float* HWY_RESTRICT summand, size_t size,
                       float* HWY_RESTRICT x) {
  const D d;
  HWY_ALIGN float sums[16] = {};
  size_t i = 0;
  for (; i + 16 <= size; i += 16) {
    for (size_t p = 0; p < 16; p += hn::Lanes(d)) {
      auto v = hn::LoadU(d, x + i + p);
      if (summand != nullptr) {
        v = hn::Add(v, hn::LoadU(d, summand + i + p));
        hn::StoreU(v, d, x + i + p);
      }
      hn::Store(hn::Add(hn::Load(d, sums + p), hn::Mul(v, v)), d, sums + p);
    }
  }
  for (size_t p = 0; i + p < size; ++p) {
    if (summand != nullptr) x[i + p] += summand[i + p];
    sums[p] += x[i + p] * x[i + p];
  }
  for (size_t half = 8; half > 0; half /= 2) {
    for (size_t p = 0; p < half; ++p) sums[p] += sums[p + half];
  }
  return sums[0];
}

void Scale(const float* x, size_t size, const float* HWY_RESTRICT gain,
           float root, float* y) {
  const D d;
  const auto roots = hn::Set(d, root);
  size_t i = 0;
  for (; i + hn::Lanes(d) <= size; i += hn::Lanes(d)) {
    const auto normed = hn::Div(hn::LoadU(d, x + i), roots);
    hn::StoreU(hn::Mul(hn::LoadU(d, gain + i), normed), d, y + i);
  }
  for (; i < size; ++i) y[i] = gain[i] * (x[i] / root);
}

}  // namespace ringfleet::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ringfleet::kernels {
namespace {

HWY_EXPORT(AddAndSumSquares);
HWY_EXPORT(Scale);

// Elements that a thread norms in about the time it takes to wake it.
constexpr size_t kGrainElements = size_t{1} << 15;

void NormRow(const float* x, float sum_squares, size_t size, const float* gain,
             float eps, float* y) {
  const float mean = sum_squares / static_cast<float>(size);
  HWY_DYNAMIC_DISPATCH(Scale)(x, size, gain, std::sqrt(mean + eps), y);
}

size_t Grain(size_t size) {
  return 1 + kGrainElements / std::max<size_t>(size, 1);
}

// x += summand unless that is null, then y = RmsNorm(x), rows dense, and
// `normed` has y in `form`.
void NormAndQuantize(const float* summand, size_t rows, size_t size,
                     const float* gain, float eps, float* x, float* y,
                     Activations::Form form, Activations* normed,
                     ThreadPool& pool) {
  const bool quantises = form != Activations::Form::kF32;
  if (quantises) {
    normed->Reshape(form, rows, size);
  } else {
    normed->Assign(form, y, rows, size, size, pool);
  }
  pool.ParallelFor(rows, Grain(size), [&](size_t begin, size_t end) {
    for (size_t row = begin; row < end; ++row) {
      float* const sums = x + row * size;
      const float sum = HWY_DYNAMIC_DISPATCH(AddAndSumSquares)(
          summand == nullptr ? nullptr : summand + row * size, size, sums);
      NormRow(sums, sum, size, gain, eps, y + row * size);
      if (quantises) normed->SetRow(row, y + row * size);
    }
  });
}

}  // namespace

void RmsNorm(const float* x, size_t rows, size_t size, size_t x_stride,
             const float* gain, float eps, float* y, size_t y_stride,
             ThreadPool& pool) {
  pool.ParallelFor(rows, Grain(size), [&](size_t begin, size_t end) {
    for (size_t row = begin; row < end; ++row) {
      const float* from = x + row * x_stride;
      // Without a summand nothing is written.
      const float sum = HWY_DYNAMIC_DISPATCH(AddAndSumSquares)(
          nullptr, size, const_cast<float*>(from));
      NormRow(from, sum, size, gain, eps, y + row * y_stride);
    }
  });
}

void RmsNorm(const float* x, size_t rows, size_t size, const float* gain,
             float eps, float* y, Activations::Form form, Activations* normed,
             ThreadPool& pool) {
  // Without a summand nothing is written to x.
  NormAndQuantize(nullptr, rows, size, gain, eps, const_cast<float*>(x), y,
                  form, normed, pool);
}

void AddRmsNorm(const float* summand, size_t rows, size_t size,
                const float* gain, float eps, float* x, float* y,
                Activations::Form form, Activations* normed, ThreadPool& pool) {
  NormAndQuantize(summand, rows, size, gain, eps, x, y, form, normed, pool);
}

}  // namespace ringfleet::kernels
#endif  // HWY_ONCE
