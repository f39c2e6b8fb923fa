// SPDX-License-Identifier: Apache-2.0
// The instructions that kernels use. Every binary runs on any x86-64-v2
// processor and picks the best instructions at run time. ForceIsa picks others,
// so that tests and benchmarks see every path that a machine has.
#ifndef RINGFLEET_KERNELS_ISA_H_
#define RINGFLEET_KERNELS_ISA_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace ringfleet::kernels {

// Instruction sets, ascending. Each set contains the earlier ones, as far as
// its vectors can use them. Only kAvxVnni may be missing beside kAvx512.
// kAvx512Vnni is preferred to kAvxVnni.
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
// Errors: INVALID_ARGUMENT, with the names there are.
absl::StatusOr<Isa> ParseIsa(absl::string_view name);

// Returns the sets that this processor has, ascending; never empty.
std::vector<Isa> SupportedIsas();

// Returns the set that kernels use: the best one, unless ForceIsa chose
// another.
Isa CurrentIsa();
// Requires one of SupportedIsas(). Not while a kernel runs.
void ForceIsa(Isa isa);

// Ways in which a loop that reads memory front to back gets its next lines
// early. Each way gains at least 3 % on its processors
// (perf/results/products.md).
enum class LinesAhead : uint8_t {
  // AMD before Zen 5. The loop asks for the first lines of each page only, and
  // leaves the others to the processor. A core of Zen 4 reads fastest if the
  // window in which its loads run ahead ends about a page away, so the loop
  // takes its time. Products of one and two rows of int8 then read as fast as a
  // plain sum (27 to 31 GB/s), without both at 0.87 and 0.73 of its rate.
  kForeseen,
  // Zen 5. The loop asks 8 KB ahead, into the level-1 cache: 39 GB/s by one
  // core for products of two to eight rows, 32 to 36 by the processor alone.
  // The processor foresees a plain sum (42 GB/s) and one row of int8, so these
  // two do not ask.
  kIntoLevel1,
  // Intel. The loop takes a line and asks for one some KB ahead, into level 2,
  // in turns. If a step's loads stand together before its prefetches, the core
  // brings lines out of order, and its prefetcher does not follow. A core of
  // Granite Rapids reads 16 to 17 GB/s in turns for one to six rows of int8, 13
  // to 14 otherwise. For one row of bf16 it reads 16 in turns, 9 to 10
  // otherwise.
  kIntoLevel2,
};
LinesAhead BestLinesAhead();

// Returns how many bytes ahead a loop asks, into level 1, if it takes one line
// of several at a time. No processor foresees this order. `rows` is the
// product's. Zen 5: 8 KB; one row of int8 reads 35 GB/s, without asking 18. Zen
// 3: 2 KB for one row (15.8 GB/s by one core, 14.6 with 8 KB), 4 KB for more
// (two rows of int8 at 84 % of a sum's rate, 79 with 8 KB). Intel was not
// measured.
size_t BytesAheadOutOfOrder(size_t rows);

}  // namespace ringfleet::kernels

#endif  // RINGFLEET_KERNELS_ISA_H_
