// SPDX-License-Identifier: Apache-2.0
// Random tensors with random access. Any byte of a tensor is a function of the
// tensor's key and the byte's offset, so that parts can be made in any order,
// by any thread, on any host, and nothing is kept. Integer arithmetic,
// additions, multiplications and divisions in a fixed order give every host the
// same bits.
#ifndef RINGFLEET_CLUSTER_SYNTHETIC_WEIGHT_STREAM_H_
#define RINGFLEET_CLUSTER_SYNTHETIC_WEIGHT_STREAM_H_

#include <array>
#include <cstddef>
#include <cstdint>

namespace ringfleet::cluster {

// Word `counter` of the stream `key`: SplitMix64 (Steele, Lea, Flood, "Fast
// splittable pseudorandom number generators", OOPSLA 2014) entered at any
// place.
inline uint64_t RandomWord(uint64_t key, uint64_t counter) {
  uint64_t z = key + (counter + 1) * 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

// Draws have 12 bits. A table of what each stands for stays in the L1 cache and
// reaches 3.67 standard deviations of a normal distribution.
inline constexpr int kDrawBits = 12;
inline constexpr size_t kDraws = size_t{1} << kDrawBits;

// Element `code` of a table is a value as it lies in a file.
template <typename Code>
using CodeTable = std::array<Code, kDraws>;

// Draw i of a stream: the upper bits of 16, four of which make a word.
inline size_t Draw(uint64_t word, int i) {
  return (word >> (16 * i + 16 - kDrawBits)) & (kDraws - 1);
}

// Writes bytes [offset, offset + size) of the tensor whose element i is
// table[draw i of the stream `key`]. For uint8_t, uint16_t and uint32_t.
template <typename Code>
void FillCodes(uint64_t key, const CodeTable<Code>& table, uint64_t offset,
               size_t size, void* destination);

// The quantile `p` of the normal distribution (mean 0, deviation 1): within
// 3e-6 for p in [1e-4, 1 - 1e-4], 3e-4 in [1e-6, 1 - 1e-6]; at most 6, at least
// -6.
double NormalQuantile(double p);

// The quantiles in the middle of each of kDraws equal parts: a table that draws
// from the normal distribution.
const std::array<float, kDraws>& NormalDraws();

// Codes of finite e4m3 numbers whose values are normal with the deviation
// kF8Deviation: the outermost draw is the largest number, 448, as in weights
// that are scaled by their largest.
inline constexpr double kF8Deviation = 122;
const CodeTable<uint8_t>& F8NormalCodes();

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_SYNTHETIC_WEIGHT_STREAM_H_
