// SPDX-License-Identifier: Apache-2.0
#include "tests/testing/collective_cases.h"

#include <algorithm>
#include <cmath>

#include "kernels/dtype.h"

namespace ringfleet::testing {

std::vector<float> RankValues(int rank, size_t count) {
  std::vector<float> values(count);
  uint32_t state = 0x9e3779b9u * static_cast<uint32_t>(rank + 1);
  for (float& value : values) {
    state = state * 1664525u + 1013904223u;
    const float unit = static_cast<float>(state >> 8) / 8388608.0f - 1.0f;
    value = std::ldexp(unit, static_cast<int>(state >> 4 & 7) - 4);
  }
  return values;
}

void RoundToWire(cluster::Wire wire, size_t row_elements,
                 std::vector<float>& values) {
  if (wire == cluster::Wire::kBf16) {
    for (float& value : values) value = kernels::RoundToBf16(value);
  }
  if (wire != cluster::Wire::kInt8 || values.empty()) return;
  const size_t row = row_elements == 0 ? values.size() : row_elements;
  size_t begin = 0;
  while (begin < values.size()) {
    const size_t in_row = row - begin % row;
    const size_t end =
        std::min(values.size(), begin + std::min<size_t>(in_row, 128));
    float max = 0;
    for (size_t i = begin; i < end; ++i) {
      max = std::max(max, std::fabs(values[i]));
    }
    const float scale = max / 127.0f;
    const float inverse = 127.0f / max;
    for (size_t i = begin; i < end; ++i) {
      const float code = max == 0 ? 0.0f : std::nearbyint(values[i] * inverse);
      values[i] = std::clamp(code, -127.0f, 127.0f) * scale;
    }
    begin = end;
  }
}

std::vector<float> RankOrderPartialSum(int ranks, size_t count,
                                       cluster::Wire wire,
                                       size_t row_elements) {
  std::vector<float> sum(count);
  for (int rank = 0; rank < ranks; ++rank) {
    std::vector<float> part = RankValues(rank, count);
    RoundToWire(wire, row_elements, part);
    for (size_t i = 0; i < count; ++i) {
      sum[i] = rank == 0 ? part[i] : sum[i] + part[i];
    }
  }
  return sum;
}

std::vector<float> RankOrderSum(int ranks, size_t count, cluster::Wire wire,
                                size_t row_elements) {
  std::vector<float> sum =
      RankOrderPartialSum(ranks, count, wire, row_elements);
  RoundToWire(wire, row_elements, sum);
  return sum;
}

std::vector<float> RingOrderSum(int ranks, int owner, bool to_the_right,
                                size_t count) {
  const int sign = to_the_right ? 1 : -1;
  std::vector<float> sum(count);
  for (int hop = 1; hop <= ranks; ++hop) {
    const int rank = ((owner + sign * hop) % ranks + ranks) % ranks;
    const std::vector<float> values = RankValues(rank, count);
    for (size_t i = 0; i < count; ++i) {
      sum[i] = hop == 1 ? values[i] : sum[i] + values[i];
    }
  }
  return sum;
}

std::vector<uint64_t> UnevenOffsets(int ranks, size_t count, size_t unit) {
  std::vector<uint64_t> offsets(ranks + 1);
  for (int rank = 1; rank < ranks; ++rank) {
    // Squares of the even ranks: odd ranks own nothing.
    const uint64_t r = static_cast<uint64_t>(rank) / 2 * 2;
    offsets[rank] =
        count * r * r / (static_cast<uint64_t>(ranks) * ranks) / unit * unit;
  }
  offsets[ranks] = count;
  return offsets;
}

}  // namespace ringfleet::testing
