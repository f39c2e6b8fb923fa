// SPDX-License-Identifier: Apache-2.0
// CRC-32C of long data by two units of a core at once: three fifths with the
// instruction of SSE4.2, the rest folded with VPCLMULQDQ in vectors of AVX2,
// for processors without AVX-512. On Zen 3 each does 8 bytes a cycle.
#ifndef RINGFLEET_CLUSTER_WIRE_CRC32C_MIX_H_
#define RINGFLEET_CLUSTER_WIRE_CRC32C_MIX_H_

#include <cstddef>
#include <cstdint>

namespace ringfleet::cluster {

inline constexpr size_t kCrcMixBytes = 1280;

// Whether this processor has the instructions.
bool CanMixCrc32c();

// The checksum's register (not complemented) behind `size` more bytes, a
// multiple of kCrcMixBytes and not 0. Requires CanMixCrc32c().
uint32_t MixCrc32c(uint32_t state, const char* data, size_t size);

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_WIRE_CRC32C_MIX_H_
