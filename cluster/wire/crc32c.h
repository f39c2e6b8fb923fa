// SPDX-License-Identifier: Apache-2.0
// CRC-32C (Castagnoli; RFC 3720, appendix B.4).
#ifndef RINGFLEET_CLUSTER_WIRE_CRC32C_H_
#define RINGFLEET_CLUSTER_WIRE_CRC32C_H_

#include <cstddef>
#include <cstdint>

namespace ringfleet::cluster {

// Returns the checksum of the bytes that `crc` covers (0 for none) followed by
// `size` bytes.
uint32_t ExtendCrc32c(uint32_t crc, const void* data, size_t size);

// Returns the checksum of a followed by b, from their own checksums and the
// size of b, so that the checksum of a payload serves under any header. Takes
// less than a microsecond for any size.
uint32_t CombineCrc32c(uint32_t crc_a, uint32_t crc_b, size_t size_b);

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_WIRE_CRC32C_H_
