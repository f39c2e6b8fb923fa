// SPDX-License-Identifier: Apache-2.0
// Measures the ceilings of a machine, to hold kernels against (Williams,
// Waterman and Patterson, "Roofline", CACM 52(4), 2009).
#ifndef RINGFLEET_PERF_ROOFLINE_H_
#define RINGFLEET_PERF_ROOFLINE_H_

#include "kernels/thread_pool.h"

namespace ringfleet::perf {

// Rates of all threads of a pool together, each the best of several runs.
struct Roofline {
  double read_gbps = 0;  // 1e9 bytes/s, from 512 MiB that no cache holds.
  // 1e9 operations/s of loops on registers alone, with the instruction set of
  // CurrentIsa(). A multiplication and an addition count as two. After the
  // slash: the loop of instruction sets that lack the first one.
  double int8_gops = 0;    // Dot products of bytes / of pairs of int16.
  double int4_gops = 0;    // Dot products of bytes / of pairs, in int16.
  double bf16_gflops = 0;  // Dot products of bfloat16 / as f32_gflops.
  double f32_gflops = 0;   // Multiply, then add, as products do; no FMA.
};

Roofline MeasureRoofline(kernels::ThreadPool& pool);

}  // namespace ringfleet::perf

#endif  // RINGFLEET_PERF_ROOFLINE_H_
