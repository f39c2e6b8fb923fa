// SPDX-License-Identifier: Apache-2.0
// What becomes of a checksum when zero bytes follow: with that, checksums of
// parts are put together.
#ifndef RINGFLEET_CLUSTER_WIRE_CRC32C_ZEROS_H_
#define RINGFLEET_CLUSTER_WIRE_CRC32C_ZEROS_H_

#include <array>
#include <cstddef>
#include <cstdint>

#include "cluster/wire/crc32c_polynomial.h"

namespace ringfleet::cluster {

// [k][d]: d * 16^k zero bytes, for every hexadecimal digit d of a size.
using CrcZeroBytesTable = std::array<std::array<uint32_t, 16>, 16>;

constexpr CrcZeroBytesTable MakeCrcZeroBytesTable() {
  CrcZeroBytesTable table = {};
  uint32_t unit = CrcPowerOfX(8);
  for (auto& powers : table) {
    powers[0] = kCrcOne;
    for (int d = 1; d < 16; ++d) powers[d] = MultiplyCrc(powers[d - 1], unit);
    unit = MultiplyCrc(powers[15], unit);
  }
  return table;
}

inline constexpr CrcZeroBytesTable kCrcZeroBytes = MakeCrcZeroBytesTable();

// What `crc` becomes when `bytes` zero bytes follow.
constexpr uint32_t FollowCrcByZeros(uint32_t crc, size_t bytes) {
  for (int k = 0; bytes > 0; ++k, bytes >>= 4) {
    if (bytes & 15) crc = MultiplyCrc(crc, kCrcZeroBytes[k][bytes & 15]);
  }
  return crc;
}

// The same for a number of bytes that is known beforehand, by four look-ups.
class CrcShift {
 public:
  explicit constexpr CrcShift(size_t bytes) {
    const uint32_t factor = FollowCrcByZeros(kCrcOne, bytes);
    for (int byte = 0; byte < 4; ++byte) {
      for (uint32_t value = 0; value < 256; ++value) {
        table_[byte][value] = MultiplyCrc(factor, value << (8 * byte));
      }
    }
  }

  uint32_t operator()(uint64_t crc) const {
    return table_[0][crc & 0xff] ^ table_[1][(crc >> 8) & 0xff] ^
           table_[2][(crc >> 16) & 0xff] ^ table_[3][(crc >> 24) & 0xff];
  }

 private:
  // [k][b]: of byte k of a checksum, where it is b.
  std::array<std::array<uint32_t, 256>, 4> table_ = {};
};

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_WIRE_CRC32C_ZEROS_H_
