// SPDX-License-Identifier: Apache-2.0
#include "perf/roofline.h"

#include <immintrin.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <vector>

#include "hwy/base.h"
#include "kernels/aligned_buffer.h"
#include "kernels/amx_tiles.h"
#include "kernels/isa.h"
#include "kernels/read_bandwidth.h"

namespace ringfleet::perf {
namespace {

using kernels::Isa;
using Clock = std::chrono::steady_clock;

constexpr size_t kReadBytes = size_t{512} << 20;
constexpr int kRuns = 5;
constexpr int64_t kSteps = 20'000'000;
// Independent sums that hide the latency of an instruction.
constexpr int kSums = 12;

// Where sums go that nobody needs.
volatile uint64_t sink;

// Loops of `kSteps` x kSums instructions each.
HWY_PUSH_ATTRIBUTES("avx512f,avx512bw,avx512vl,avx512vnni,avx512bf16")
void Int8Loop512() {
  __m512i sums[kSums] = {};
  const __m512i a = _mm512_set1_epi8(1);
  for (int64_t step = 0; step < kSteps; ++step) {
#pragma GCC unroll 12
    for (int i = 0; i < kSums; ++i) {
      __asm__ volatile("vpdpbusd %1, %1, %0" : "+v"(sums[i]) : "v"(a));
    }
  }
}

void Bf16Loop512() {
  __m512 sums[kSums] = {};
  const __m512 a = _mm512_set1_ps(0);
  for (int64_t step = 0; step < kSteps; ++step) {
#pragma GCC unroll 12
    for (int i = 0; i < kSums; ++i) {
      __asm__ volatile("vdpbf16ps %1, %1, %0" : "+v"(sums[i]) : "v"(a));
    }
  }
}

void F32Loop512() {
  __m512 sums[kSums] = {};
  const __m512 a = _mm512_set1_ps(0);
  for (int64_t step = 0; step < kSteps; ++step) {
#pragma GCC unroll 12
    for (int i = 0; i < kSums; ++i) {
      __m512 product;
      __asm__ volatile("vmulps %2, %2, %1\n\tvaddps %1, %0, %0"
                       : "+v"(sums[i]), "=&v"(product)
                       : "v"(a));
    }
  }
}
HWY_POP_ATTRIBUTES

HWY_PUSH_ATTRIBUTES("avx2,fma")
void Int16Loop256() {
  __m256i sums[kSums] = {};
  const __m256i a = _mm256_set1_epi16(1);
  for (int64_t step = 0; step < kSteps; ++step) {
#pragma GCC unroll 12
    for (int i = 0; i < kSums; ++i) {
      __m256i product;
      __asm__ volatile("vpmaddwd %2, %2, %1\n\tvpaddd %1, %0, %0"
                       : "+x"(sums[i]), "=&x"(product)
                       : "x"(a));
    }
  }
}

void F32Loop256() {
  __m256 sums[kSums] = {};
  const __m256 a = _mm256_set1_ps(0);
  for (int64_t step = 0; step < kSteps; ++step) {
#pragma GCC unroll 12
    for (int i = 0; i < kSums; ++i) {
      __m256 product;
      __asm__ volatile("vmulps %2, %2, %1\n\tvaddps %1, %0, %0"
                       : "+x"(sums[i]), "=&x"(product)
                       : "x"(a));
    }
  }
}
HWY_POP_ATTRIBUTES

void F32Loop128() {
  __m128 sums[kSums] = {};
  const __m128 a = _mm_set1_ps(0);
  for (int64_t step = 0; step < kSteps; ++step) {
#pragma GCC unroll 12
    for (int i = 0; i < kSums; ++i) {
      __m128 product = a;
      __asm__ volatile("mulps %2, %1\n\taddps %1, %0"
                       : "+x"(sums[i]), "+x"(product)
                       : "x"(a));
    }
  }
}

void Int16Loop128() {
  __m128i sums[kSums] = {};
  const __m128i a = _mm_set1_epi16(1);
  for (int64_t step = 0; step < kSteps; ++step) {
#pragma GCC unroll 12
    for (int i = 0; i < kSums; ++i) {
      __m128i product = a;
      __asm__ volatile("pmaddwd %2, %1\n\tpaddd %1, %0"
                       : "+x"(sums[i]), "+x"(product)
                       : "x"(a));
    }
  }
}

// Operations of one product of tiles: rows, columns of the second factor,
// numbers in a row of the first.
constexpr double kInt8TileOperations = 2.0 * 16 * 16 * 64;
constexpr double kBf16TileOperations = 2.0 * 16 * 16 * 32;

void ConfigureTiles() {
  kernels::TileConfig config;
  for (int tile = 0; tile < 6; ++tile) {
    config.Set(tile, kernels::kTileRows, kernels::kTileRowBytes);
  }
  config.Load();
}

void Int8TileLoop() {
  ConfigureTiles();
  for (int64_t step = 0; step < kSteps; ++step) {
    for (int i = 0; i < kSums; i += 4) {
      kernels::AddInt8Product<0, 4, 5>();
      kernels::AddInt8Product<1, 4, 5>();
      kernels::AddInt8Product<2, 4, 5>();
      kernels::AddInt8Product<3, 4, 5>();
    }
  }
  kernels::ReleaseTiles();
}

void Bf16TileLoop() {
  ConfigureTiles();
  for (int64_t step = 0; step < kSteps; ++step) {
    for (int i = 0; i < kSums; i += 4) {
      kernels::AddBf16Product<0, 4, 5>();
      kernels::AddBf16Product<1, 4, 5>();
      kernels::AddBf16Product<2, 4, 5>();
      kernels::AddBf16Product<3, 4, 5>();
    }
  }
  kernels::ReleaseTiles();
}

void ReadLoop(const char* from, size_t bytes) {
  sink = kernels::SumWords(reinterpret_cast<const uint64_t*>(from), bytes / 8);
}

// The best rate of `work` units over all threads of the pool.
template <typename Body>
double Rate(kernels::ThreadPool& pool, double work, Body body) {
  double best = 0;
  for (int run = 0; run < kRuns; ++run) {
    const Clock::time_point begin = Clock::now();
    body();
    const std::chrono::duration<double> seconds = Clock::now() - begin;
    best = std::max(best, work / seconds.count());
  }
  return best / 1e9;
}

// `loop` makes `operations` with one instruction.
double LoopRate(kernels::ThreadPool& pool, void (*loop)(), double operations) {
  const size_t threads = pool.threads();
  return Rate(pool, operations * kSums * kSteps * threads, [&] {
    pool.ParallelFor(threads, 1, [&](size_t begin, size_t end) {
      for (size_t i = begin; i < end; ++i) loop();
    });
  });
}

}  // namespace

Roofline MeasureRoofline(kernels::ThreadPool& pool) {
  Roofline roofline;
  kernels::AlignedBuffer buffer(kReadBytes);
  pool.ParallelFor(kReadBytes, size_t{1} << 20, [&](size_t begin, size_t end) {
    std::fill(buffer.data() + begin, buffer.data() + end, 1);
  });
  roofline.read_gbps = Rate(pool, static_cast<double>(kReadBytes), [&] {
    pool.ParallelFor(kReadBytes, size_t{1} << 20,
                     [&](size_t begin, size_t end) {
                       ReadLoop(buffer.data() + begin / 64 * 64, end - begin);
                     });
  });
  const Isa isa = kernels::CurrentIsa();
  if (isa >= Isa::kAmx) {
    roofline.int8_gops = LoopRate(pool, &Int8TileLoop, kInt8TileOperations);
  } else if (isa >= Isa::kAvx512Vnni) {
    roofline.int8_gops = LoopRate(pool, &Int8Loop512, 128);
  } else if (isa >= Isa::kAvx2) {
    roofline.int8_gops = LoopRate(pool, &Int16Loop256, 32);
  } else {
    roofline.int8_gops = LoopRate(pool, &Int16Loop128, 16);
  }
  if (isa >= Isa::kAvx512) {
    roofline.f32_gflops = LoopRate(pool, &F32Loop512, 32);
  } else if (isa >= Isa::kAvx2) {
    roofline.f32_gflops = LoopRate(pool, &F32Loop256, 16);
  } else {
    roofline.f32_gflops = LoopRate(pool, &F32Loop128, 8);
  }
  if (isa >= Isa::kAmx) {
    roofline.bf16_gflops = LoopRate(pool, &Bf16TileLoop, kBf16TileOperations);
  } else if (isa >= Isa::kAvx512Bf16) {
    roofline.bf16_gflops = LoopRate(pool, &Bf16Loop512, 64);
  } else {
    roofline.bf16_gflops = roofline.f32_gflops;
  }
  return roofline;
}

}  // namespace ringfleet::perf
