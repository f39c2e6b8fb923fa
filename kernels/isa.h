// SPDX-License-Identifier: Apache-2.0
// Which instructions the kernels use. Every binary runs on any x86-64-v2
// processor and picks the best at run time; this file can hold it back, so
// that tests and benchmarks see every path a machine has.
#ifndef RINGFLEET_KERNELS_ISA_H_
#define RINGFLEET_KERNELS_ISA_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace ringfleet::kernels {

// Ascending: each has the instructions of those before it that its vectors can
// use (kAvx512 does not imply kAvxVnni, but is preferred to it with VNNI).
enum class Isa : uint8_t {
  kSse4,        // x86-64-v2
  kAvx2,        // With FMA: x86-64-v3.
  kAvxVnni,     // Dot products of bytes in 256-bit vectors.
  kAvx512,      // F, BW, DQ, VL: x86-64-v4.
  kAvx512Vnni,  // Dot products of bytes.
  kAvx512Bf16,  // And of bfloat16.
  kAmx,         // Products of tiles of bytes and of bfloat16.
};

// "sse4", "avx2", "avx_vnni", "avx512", "avx512_vnni", "avx512_bf16",
// "amx".
absl::string_view IsaName(Isa isa);
// INVALID_ARGUMENT, with the names there are.
absl::StatusOr<Isa> ParseIsa(absl::string_view name);

// What this processor has, ascending; never empty.
std::vector<Isa> SupportedIsas();

// What kernels use: the best there is, unless ForceIsa chose another.
Isa CurrentIsa();
// Requires one of SupportedIsas(). Not while a kernel runs.
void ForceIsa(Isa isa);

// How a loop that reads memory front to back best gets the lines to come.
enum class LinesAhead : uint8_t {
  // It leaves them to the processor but for the first of each page, and takes
  // its time: a core of Zen 4 reads fastest where the window in which its loads
  // run ahead ends about a page from here. Products of one and two rows of int8
  // then read as fast as a plain sum (27 to 31 GB/s), 0.87 and 0.73 of that if
  // they do neither.
  kForeseen,
  // It asks for them 8 KB ahead, into the level-1 cache. Zen 5: 39 GB/s by one
  // core for products of two to eight rows of activations, where the processor
  // alone comes to 32 to 36; it foresees a plain sum (42 GB/s), and one row of
  // int8, which does better not to ask.
  kIntoLevel1,
  // It takes a line and asks for one some KB ahead, into level 2, in turns.
  // Intel's. Where the loads of a step and its prefetches stand together, the
  // core brings them out of order, which its prefetcher does not follow: a core
  // of Granite Rapids then reads 13 to 14 GB/s for one to six rows of int8, in
  // turns 16 to 17; one row of bf16 9 to 10, and 16.
  kIntoLevel2,
};
LinesAhead BestLinesAhead();

// How far ahead a loop asks, into level 1, that takes one line of several at a
// time, an order that no processor foresees, for a product of `rows`. 8 KB on
// Zen 5, where 35 instead of 18 GB/s arrive for one row of int8. Zen 3: 2 KB
// for one row, 15.8 instead of 14.6 GB/s to one core, 4 KB for more, 84 instead
// of 79 % of a sum's rate for two of int8. Intel's were not measured.
size_t BytesAheadOutOfOrder(size_t rows);

}  // namespace ringfleet::kernels

#endif  // RINGFLEET_KERNELS_ISA_H_
