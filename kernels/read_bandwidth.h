// SPDX-License-Identifier: Apache-2.0
// The fastest way to read memory: a sum over a buffer in the widest vectors
// there are, like the read kernel of STREAM-like programs
// (https://www.cs.virginia.edu/stream/). A model's steps are compared with it.
#ifndef RINGFLEET_KERNELS_READ_BANDWIDTH_H_
#define RINGFLEET_KERNELS_READ_BANDWIDTH_H_

#include <cstddef>
#include <cstdint>

namespace ringfleet::kernels {

// Returns the sum of words[0, count) modulo 2^64. Reads every byte once. The
// one addition per vector hides behind the loads. Thread-safe; allocates
// nothing.
uint64_t SumWords(const uint64_t* words, size_t count);

}  // namespace ringfleet::kernels

#endif  // RINGFLEET_KERNELS_READ_BANDWIDTH_H_
