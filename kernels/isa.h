// SPDX-License-Identifier: Apache-2.0
// Which instructions the kernels use. Every binary runs on any x86-64-v2
// processor and picks the best at run time; this file can hold it back, so
// that tests and benchmarks see every path a machine has.
#ifndef RINGFLEET_KERNELS_ISA_H_
#define RINGFLEET_KERNELS_ISA_H_

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

// Whether instructions that ask for lines ahead let a core read memory faster
// although it reads from front to back. Intel's: 57 instead of 44 GB/s by two
// cores of Sapphire Rapids for one row of activations, 53 instead of 20 for
// six. On others' they are not used: a core of Zen 4 read 19 instead of 34.
bool AsksForLinesAhead();

}  // namespace ringfleet::kernels

#endif  // RINGFLEET_KERNELS_ISA_H_
