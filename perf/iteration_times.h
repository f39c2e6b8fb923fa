// SPDX-License-Identifier: Apache-2.0
// Times a collective of a peer as `ringfleet collectives` times its own, after
// the OSU micro-benchmarks: some iterations to warm up, then a barrier before
// every timed one. The time of an iteration is the mean over the ranks, each by
// its own clock. Percentiles are over the iterations.
#ifndef RINGFLEET_PERF_ITERATION_TIMES_H_
#define RINGFLEET_PERF_ITERATION_TIMES_H_

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

namespace ringfleet::perf {

struct IterationCounts {
  int warm_up;
  int timed;
};

// OSU's counts: messages to 64 KiB are repeated more often.
inline IterationCounts IterationsFor(size_t bytes) {
  return bytes <= 65536 ? IterationCounts{100, 1000} : IterationCounts{10, 100};
}

// The smallest value that a share of at least `quantile` (0 to 1) of `values`
// does not exceed. Requires that there is one.
inline double Percentile(std::vector<double> values, double quantile) {
  std::sort(values.begin(), values.end());
  const double position = std::ceil(quantile * values.size());
  return values[static_cast<size_t>(std::max(position, 1.0)) - 1];
}

// First element of rank r's share of `count` elements; r may be `world`.
inline size_t ShareBegin(size_t count, int r, int world) {
  return count * static_cast<size_t>(r) / static_cast<size_t>(world);
}

// Element i of rank r's contribution. Sums over up to 1024 ranks are exact
// in float32, in any order.
inline float Contribution(int r, size_t i) {
  return static_cast<float>(i % 1021 + static_cast<size_t>(r));
}

inline float SumOfContributions(int world, size_t i) {
  return static_cast<float>(static_cast<size_t>(world) * (i % 1021)) +
         static_cast<float>(world * (world - 1) / 2);
}

}  // namespace ringfleet::perf

#endif  // RINGFLEET_PERF_ITERATION_TIMES_H_
