// SPDX-License-Identifier: Apache-2.0
// CRC-32C of long data with AVX-512 and VPCLMULQDQ, which multiplies
// polynomials over GF(2) four at a time.
#ifndef RINGFLEET_CLUSTER_WIRE_CRC32C_FOLD_H_
#define RINGFLEET_CLUSTER_WIRE_CRC32C_FOLD_H_

#include <cstddef>
#include <cstdint>

namespace ringfleet::cluster {

inline constexpr size_t kCrcFoldBytes = 256;

// Whether this processor has the instructions.
bool CanFoldCrc32c();

// The checksum's register (not complemented) behind `size` more bytes, a
// multiple of kCrcFoldBytes and not 0. Requires CanFoldCrc32c().
uint32_t FoldCrc32c(uint32_t state, const char* data, size_t size);

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_WIRE_CRC32C_FOLD_H_
