// SPDX-License-Identifier: Apache-2.0
#include "perf/roofline.h"

#include <immintrin.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <vector>

#include "hwy/base.h"
#include "kernels/aligned_buffer.h"
#include "kernels/isa.h"
#include "kernels/products/amx_tiles.h"
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

// Loops of `kSteps` x kSums sums on registers alone. RF_ADDING_LOOP's are of
// one instruction that multiplies and adds, RF_LOOP's of one for each.
#define RF_ADDING_LOOP(Name, Vector, multiply_add)                             \
  void Name() {                                                                \
    Vector sums[kSums] = {};                                                   \
    const Vector a = {};                                                       \
    for (int64_t step = 0; step < kSteps; ++step) {                            \
      _Pragma("GCC unroll 12") for (int i = 0; i < kSums; ++i) {               \
        __asm__ volatile(multiply_add " %1, %1, %0" : "+v"(sums[i]) : "v"(a)); \
      }                                                                        \
    }                                                                          \
  }
#define RF_LOOP(Name, Vector, multiply, add)                          \
  void Name() {                                                       \
    Vector sums[kSums] = {};                                          \
    const Vector a = {};                                              \
    for (int64_t step = 0; step < kSteps; ++step) {                   \
      _Pragma("GCC unroll 12") for (int i = 0; i < kSums; ++i) {      \
        Vector product;                                               \
        __asm__ volatile(multiply " %2, %2, %1\n\t" add " %1, %0, %0" \
                         : "+v"(sums[i]), "=&v"(product)              \
                         : "v"(a));                                   \
      }                                                               \
    }                                                                 \
  }
// The same before AVX, where the first operand is the result.
#define RF_SSE_LOOP(Name, Vector, multiply, add)                 \
  void Name() {                                                  \
    Vector sums[kSums] = {};                                     \
    const Vector a = {};                                         \
    for (int64_t step = 0; step < kSteps; ++step) {              \
      _Pragma("GCC unroll 12") for (int i = 0; i < kSums; ++i) { \
        Vector product = a;                                      \
        __asm__ volatile(multiply " %2, %1\n\t" add " %1, %0"    \
                         : "+x"(sums[i]), "+x"(product)          \
                         : "x"(a));                              \
      }                                                          \
    }                                                            \
  }

HWY_PUSH_ATTRIBUTES("avx512f,avx512bw,avx512vl,avx512vnni,avx512bf16")
RF_ADDING_LOOP(Int8Loop512, __m512i, "vpdpbusd")
RF_ADDING_LOOP(Bf16Loop512, __m512, "vdpbf16ps")
RF_LOOP(PairLoop512, __m512i, "vpmaddwd", "vpaddd")
RF_LOOP(BytePairLoop512, __m512i, "vpmaddubsw", "vpaddw")
RF_LOOP(F32Loop512, __m512, "vmulps", "vaddps")
HWY_POP_ATTRIBUTES

HWY_PUSH_ATTRIBUTES("avx2,fma")
RF_ADDING_LOOP(Int8Loop256, __m256i, "%{vex%} vpdpbusd")
RF_LOOP(PairLoop256, __m256i, "vpmaddwd", "vpaddd")
RF_LOOP(BytePairLoop256, __m256i, "vpmaddubsw", "vpaddw")
RF_LOOP(F32Loop256, __m256, "vmulps", "vaddps")
HWY_POP_ATTRIBUTES

RF_SSE_LOOP(PairLoop128, __m128i, "pmaddwd", "paddd")
RF_SSE_LOOP(BytePairLoop128, __m128i, "pmaddubsw", "paddw")
RF_SSE_LOOP(F32Loop128, __m128, "mulps", "addps")

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
  } else if (isa >= Isa::kAvx512) {
    roofline.int8_gops = LoopRate(pool, &PairLoop512, 64);
    roofline.int4_gops = LoopRate(pool, &BytePairLoop512, 128);
  } else if (isa >= Isa::kAvxVnni) {
    roofline.int8_gops = LoopRate(pool, &Int8Loop256, 64);
  } else if (isa >= Isa::kAvx2) {
    roofline.int8_gops = LoopRate(pool, &PairLoop256, 32);
    roofline.int4_gops = LoopRate(pool, &BytePairLoop256, 64);
  } else {
    roofline.int8_gops = LoopRate(pool, &PairLoop128, 16);
    roofline.int4_gops = LoopRate(pool, &BytePairLoop128, 32);
  }
  if (roofline.int4_gops == 0) roofline.int4_gops = roofline.int8_gops;
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
