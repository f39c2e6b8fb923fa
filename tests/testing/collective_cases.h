// SPDX-License-Identifier: Apache-2.0
// Inputs and plain references for tests of collectives.
#ifndef RINGFLEET_TESTS_TESTING_COLLECTIVE_CASES_H_
#define RINGFLEET_TESTS_TESTING_COLLECTIVE_CASES_H_

#include <cmath>
#include <cstdint>
#include <numeric>
#include <vector>

#include "cluster/communicator.h"
#include "cluster/exchange.h"
#include "kernels/dtype.h"

namespace ringfleet::testing {

inline cluster::Group WholeWorld(int size) {
  cluster::Group group;
  group.ranks.resize(size);
  std::iota(group.ranks.begin(), group.ranks.end(), 0);
  return group;
}

// Values of one rank: signs and magnitudes vary, so that the order of a sum
// shows in its last bits.
inline std::vector<float> RankValues(int rank, size_t count) {
  std::vector<float> values(count);
  uint32_t state = 0x9e3779b9u * static_cast<uint32_t>(rank + 1);
  for (float& value : values) {
    state = state * 1664525u + 1013904223u;
    const float unit = static_cast<float>(state >> 8) / 8388608.0f - 1.0f;
    value = std::ldexp(unit, static_cast<int>(state >> 4 & 7) - 4);
  }
  return values;
}

// What a one-shot all-reduce returns: partials rounded to the wire, summed in
// rank order in float32, the sum rounded to the wire.
inline std::vector<float> RankOrderSum(int ranks, size_t count,
                                       cluster::Wire wire) {
  const bool bf16 = wire == cluster::Wire::kBf16;
  std::vector<float> sum(count);
  for (int rank = 0; rank < ranks; ++rank) {
    const std::vector<float> values = RankValues(rank, count);
    for (size_t i = 0; i < count; ++i) {
      const float part = bf16 ? kernels::RoundToBf16(values[i]) : values[i];
      sum[i] = rank == 0 ? part : sum[i] + part;
    }
  }
  if (bf16) {
    for (float& value : sum) value = kernels::RoundToBf16(value);
  }
  return sum;
}

// How far a sum may be from the exact one, element by element: `roundings`
// units of half an ulp of the sum of magnitudes.
inline std::vector<float> SumTolerance(int ranks, size_t count,
                                       cluster::Wire wire) {
  std::vector<float> magnitude(count);
  for (int rank = 0; rank < ranks; ++rank) {
    const std::vector<float> values = RankValues(rank, count);
    for (size_t i = 0; i < count; ++i) magnitude[i] += std::fabs(values[i]);
  }
  // float32 rounds every addition to 2^-24; bf16 rounds partials and sum to
  // 2^-8 each.
  const float unit =
      wire == cluster::Wire::kBf16
          ? 2.1f * std::ldexp(1.0f, -8)
          : static_cast<float>(ranks + 1) * std::ldexp(1.0f, -24);
  for (float& value : magnitude) value *= unit;
  return magnitude;
}

// The exact sum, in double.
inline std::vector<double> ExactSum(int ranks, size_t count) {
  std::vector<double> sum(count);
  for (int rank = 0; rank < ranks; ++rank) {
    const std::vector<float> values = RankValues(rank, count);
    for (size_t i = 0; i < count; ++i) sum[i] += values[i];
  }
  return sum;
}

// Uneven segments of `count` elements, some of them empty.
inline std::vector<uint64_t> UnevenOffsets(int ranks, size_t count) {
  std::vector<uint64_t> offsets(ranks + 1);
  for (int rank = 1; rank < ranks; ++rank) {
    // Squares of the even ranks: odd ranks own nothing.
    const uint64_t r = static_cast<uint64_t>(rank) / 2 * 2;
    offsets[rank] = count * r * r / (static_cast<uint64_t>(ranks) * ranks);
  }
  offsets[ranks] = count;
  return offsets;
}

}  // namespace ringfleet::testing

#endif  // RINGFLEET_TESTS_TESTING_COLLECTIVE_CASES_H_
