// SPDX-License-Identifier: Apache-2.0
// Computes CRC-32C checksums (Castagnoli; RFC 3720, appendix B.4).
#ifndef RINGFLEET_CLUSTER_WIRE_CRC32C_H_
#define RINGFLEET_CLUSTER_WIRE_CRC32C_H_

#include <cstddef>
#include <cstdint>

namespace ringfleet::cluster {

// Returns the checksum of some bytes followed by `size` bytes of `data`. `crc`
// is the checksum of the bytes before `data`, or 0 if there are none.
uint32_t ExtendCrc32c(uint32_t crc, const void* data, size_t size);

// Returns the checksum of bytes a followed by bytes b. `crc_a` and `crc_b` are
// their checksums, and b has `size_b` bytes. So a payload's checksum is
// computed once for several headers. Takes less than a microsecond for any
// size.
uint32_t CombineCrc32c(uint32_t crc_a, uint32_t crc_b, size_t size_b);

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_WIRE_CRC32C_H_
