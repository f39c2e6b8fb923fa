// SPDX-License-Identifier: Apache-2.0
#include "cluster/synthetic/weight_stream.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <type_traits>

#include "kernels/dtype.h"

namespace ringfleet::cluster {
namespace {

// The distribution function on a grid of 1/512 from 0 to 6, by the trapezoid
// rule. The density's values follow from each other by products: its ratio of
// one step to the next shrinks by a constant factor, and the C library's exp,
// which differs between hosts, is not asked.
constexpr int kStepsPerUnit = 512;
constexpr int kSteps = 6 * kStepsPerUnit;

using Grid = std::array<double, kSteps + 1>;

Grid MakeGrid() {
  constexpr double kFirstRatio = 0x1.ffffc00004p-1;   // exp(-h^2 / 2)
  constexpr double kRatioOfRatio = 0x1.ffff80001p-1;  // exp(-h^2)
  Grid grid;
  grid[0] = 0;
  double density = 1;
  double ratio = kFirstRatio;
  for (int i = 1; i <= kSteps; ++i) {
    const double next = density * ratio;
    grid[i] = grid[i - 1] + density + next;
    density = next;
    ratio *= kRatioOfRatio;
  }
  // Half of the distribution lies beyond 0; 1e-9 of it beyond the grid.
  const double scale = 0.5 / grid[kSteps];
  for (double& value : grid) value *= scale;
  return grid;
}

template <typename Code>
void MakeUnit(uint64_t word, const CodeTable<Code>& table, char* out) {
  if constexpr (sizeof(Code) <= 2) {
    using Packed = std::conditional_t<sizeof(Code) == 1, uint32_t, uint64_t>;
    constexpr int kBits = 8 * sizeof(Code);
    const Packed unit = Packed{table[Draw(word, 0)]} |
                        Packed{table[Draw(word, 1)]} << kBits |
                        Packed{table[Draw(word, 2)]} << 2 * kBits |
                        Packed{table[Draw(word, 3)]} << 3 * kBits;
    std::memcpy(out, &unit, sizeof(unit));
  } else {
    const Code unit[4] = {table[Draw(word, 0)], table[Draw(word, 1)],
                          table[Draw(word, 2)], table[Draw(word, 3)]};
    std::memcpy(out, unit, sizeof(unit));
  }
}

CodeTable<uint8_t> MakeF8NormalCodes() {
  CodeTable<uint8_t> codes;
  const std::array<float, kDraws>& normal = NormalDraws();
  for (size_t i = 0; i < kDraws; ++i) {
    const double value = kF8Deviation * std::fabs(normal[i]);
    uint8_t best = 0;  // 0x00 to 0x7e are the finite positive numbers.
    for (uint8_t code = 1; code <= 0x7e; ++code) {
      if (std::fabs(kernels::F8E4M3ToFloat(code) - value) <
          std::fabs(kernels::F8E4M3ToFloat(best) - value)) {
        best = code;
      }
    }
    codes[i] = normal[i] < 0 ? best | 0x80 : best;
  }
  return codes;
}

}  // namespace

template <typename Code>
void FillCodes(uint64_t key, const CodeTable<Code>& table, uint64_t offset,
               size_t size, void* destination) {
  constexpr size_t kUnit = 4 * sizeof(Code);  // One word's codes.
  char* out = static_cast<char*>(destination);
  uint64_t counter = offset / kUnit;
  char unit[kUnit];
  if (const size_t skip = offset % kUnit; skip > 0) {
    MakeUnit(RandomWord(key, counter++), table, unit);
    const size_t count = std::min(size, kUnit - skip);
    std::memcpy(out, unit + skip, count);
    out += count;
    size -= count;
  }
  for (; size >= kUnit; size -= kUnit, out += kUnit) {
    MakeUnit(RandomWord(key, counter++), table, out);
  }
  if (size > 0) {
    MakeUnit(RandomWord(key, counter), table, unit);
    std::memcpy(out, unit, size);
  }
}

template void FillCodes(uint64_t, const CodeTable<uint8_t>&, uint64_t, size_t,
                        void*);
template void FillCodes(uint64_t, const CodeTable<uint16_t>&, uint64_t, size_t,
                        void*);
template void FillCodes(uint64_t, const CodeTable<uint32_t>&, uint64_t, size_t,
                        void*);

double NormalQuantile(double p) {
  static const Grid grid = MakeGrid();
  const double beyond = std::fabs(p - 0.5);
  const auto above = std::upper_bound(grid.begin() + 1, grid.end() - 1, beyond);
  const double low = *(above - 1);
  const double share = std::clamp((beyond - low) / (*above - low), 0.0, 1.0);
  const double x =
      (static_cast<double>(above - 1 - grid.begin()) + share) / kStepsPerUnit;
  return p < 0.5 ? -x : x;
}

const std::array<float, kDraws>& NormalDraws() {
  static const std::array<float, kDraws> draws = [] {
    std::array<float, kDraws> values;
    for (size_t i = 0; i < kDraws; ++i) {
      values[i] = static_cast<float>(
          NormalQuantile((static_cast<double>(i) + 0.5) / kDraws));
    }
    return values;
  }();
  return draws;
}

const CodeTable<uint8_t>& F8NormalCodes() {
  static const CodeTable<uint8_t> codes = MakeF8NormalCodes();
  return codes;
}

}  // namespace ringfleet::cluster
