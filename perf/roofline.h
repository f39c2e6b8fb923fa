// SPDX-License-Identifier: Apache-2.0
// What a machine can do at most, measured: the ceilings that kernels are held
// against (Williams, Waterman and Patterson, "Roofline", CACM 52(4), 2009).
#ifndef RINGFLEET_PERF_ROOFLINE_H_
#define RINGFLEET_PERF_ROOFLINE_H_

#include "kernels/thread_pool.h"

namespace ringfleet::perf {

// Rates of all threads of a pool together, the best of several runs.
struct Roofline {
  double read_gbps = 0;  // 1e9 bytes/s, from 512 MiB that no cache holds.
  // 1e9 operations/s of loops on registers alone, a multiplication and an
  // addition counted as two; with the instruction set of CurrentIsa().
  double int8_gops = 0;    // Dot products of bytes; pairs of int16 without.
  double int4_gops = 0;    // The same; pairs of bytes without, summed in int16.
  double bf16_gflops = 0;  // Dot products of bfloat16; f32's without.
  double f32_gflops = 0;   // Multiply, then add, as products do; no FMA.
};

Roofline MeasureRoofline(kernels::ThreadPool& pool);

}  // namespace ringfleet::perf

#endif  // RINGFLEET_PERF_ROOFLINE_H_
