// SPDX-License-Identifier: Apache-2.0
// The fastest that memory can be read, to compare a model's steps with: a sum
// over a buffer, as the read kernel of STREAM-like programs
// (https://www.cs.virginia.edu/stream/), in the widest vectors there are.
#ifndef RINGFLEET_KERNELS_READ_BANDWIDTH_H_
#define RINGFLEET_KERNELS_READ_BANDWIDTH_H_

#include <cstddef>
#include <cstdint>

namespace ringfleet::kernels {

// The sum of words[0, count) modulo 2^64: every byte is read once, and one
// addition a vector hides behind the loads. Thread-safe; allocates nothing.
uint64_t SumWords(const uint64_t* words, size_t count);

}  // namespace ringfleet::kernels

#endif  // RINGFLEET_KERNELS_READ_BANDWIDTH_H_
