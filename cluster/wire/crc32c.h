// SPDX-License-Identifier: Apache-2.0
// CRC-32C (Castagnoli; RFC 3720, appendix B.4), by the SSE4.2 instruction that
// every x86-64-v2 processor has, or by products of polynomials (crc32c_fold.h).
#ifndef RINGFLEET_CLUSTER_WIRE_CRC32C_H_
#define RINGFLEET_CLUSTER_WIRE_CRC32C_H_

#include <cstddef>
#include <cstdint>

namespace ringfleet::cluster {

// The checksum of what `crc` covers (0 for nothing) followed by `size` bytes.
uint32_t ExtendCrc32c(uint32_t crc, const void* data, size_t size);
// The same on every processor that there is.
uint32_t ExtendCrc32cBySse42(uint32_t crc, const void* data, size_t size);

// The checksum of a followed by b, from their own checksums and the size of b:
// one for a payload serves under any header. Below a microsecond for any size.
uint32_t CombineCrc32c(uint32_t crc_a, uint32_t crc_b, size_t size_b);

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_WIRE_CRC32C_H_
