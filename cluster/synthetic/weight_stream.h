// SPDX-License-Identifier: Apache-2.0
// Random tensors with random access. Any byte of a tensor is a function of the
// tensor's key and the byte's offset. So any thread on any host can generate
// any part in any order, and nothing is kept. Every host gets the same bits,
// because only integer arithmetic and float additions, multiplications and
// divisions in a fixed order are used.
#ifndef RINGFLEET_CLUSTER_SYNTHETIC_WEIGHT_STREAM_H_
#define RINGFLEET_CLUSTER_SYNTHETIC_WEIGHT_STREAM_H_

#include <array>
#include <cstddef>
#include <cstdint>

namespace ringfleet::cluster {

// Returns word `counter`, from 0, of the stream `key`: SplitMix64 (Steele, Lea,
// Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014) with
// random access.
inline uint64_t RandomWord(uint64_t key, uint64_t counter) {
  uint64_t z = key + (counter + 1) * 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

// Bits of a draw. A table of all draws fits the L1 cache. Its outermost values
// of a normal distribution are at 3.67 standard deviations.
inline constexpr int kDrawBits = 12;
inline constexpr size_t kDraws = size_t{1} << kDrawBits;

// A table of the values of all draws. Element i has the bytes that a file has
// for draw i.
template <typename Code>
using CodeTable = std::array<Code, kDraws>;

// Returns draw i, from 0 to 3, of a word: the upper kDrawBits bits of its
// 16-bit part i.
inline size_t Draw(uint64_t word, int i) {
  return (word >> (16 * i + 16 - kDrawBits)) & (kDraws - 1);
}

// Writes bytes [offset, offset + size) of a tensor. Element i of the tensor is
// table[draw i of the stream `key`]. Code is uint8_t, uint16_t or uint32_t.
template <typename Code>
void FillCodes(uint64_t key, const CodeTable<Code>& table, uint64_t offset,
               size_t size, void* destination);

// Returns the quantile `p` of the normal distribution (mean 0, deviation 1),
// clamped to [-6, 6]. The error is at most 3e-6 for p in [1e-4, 1 - 1e-4], and
// 3e-4 for p in [1e-6, 1 - 1e-6].
double NormalQuantile(double p);

// Returns a table that draws from the normal distribution. Element i is the
// quantile (i + 0.5) / kDraws.
const std::array<float, kDraws>& NormalDraws();

// Deviation of the values of F8NormalCodes. Their largest value is 448, the
// largest e4m3 number, as in weights scaled by their largest value.
inline constexpr double kF8Deviation = 122;
// Returns a table of finite e4m3 codes whose values are normal, with the
// deviation kF8Deviation.
const CodeTable<uint8_t>& F8NormalCodes();

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_SYNTHETIC_WEIGHT_STREAM_H_
