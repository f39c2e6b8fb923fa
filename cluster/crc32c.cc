// SPDX-License-Identifier: Apache-2.0
#include "cluster/crc32c.h"

#include <nmmintrin.h>

#include <array>
#include <cstring>

namespace ringfleet::cluster {
namespace {

// The instruction takes three cycles but one may start every cycle, so three
// blocks are summed side by side and then joined. A block is long enough that
// joining (eight table look-ups) costs little, and three fit 28 KB nine times.
constexpr size_t kBlockBytes = 1024;
constexpr int kBlockLog2Bits = 13;
static_assert(kBlockBytes * 8 == 1 << kBlockLog2Bits);

// A linear map of 32-bit checksums: row i is the image of bit i.
using BitMatrix = std::array<uint32_t, 32>;

constexpr uint32_t Apply(const BitMatrix& matrix, uint32_t vector) {
  uint32_t image = 0;
  for (int bit = 0; bit < 32; ++bit) {
    if ((vector >> bit) & 1u) image ^= matrix[bit];
  }
  return image;
}

// table[k][b]: what byte k of a checksum becomes when a block of zeros follows.
using ShiftTable = std::array<std::array<uint32_t, 256>, 4>;

constexpr ShiftTable MakeShiftTable() {
  BitMatrix zeros = {};  // Follows one zero bit; squared below.
  zeros[0] = 0x82f63b78u;
  for (int bit = 1; bit < 32; ++bit) zeros[bit] = 1u << (bit - 1);
  for (int square = 0; square < kBlockLog2Bits; ++square) {
    BitMatrix twice = {};
    for (int bit = 0; bit < 32; ++bit) twice[bit] = Apply(zeros, zeros[bit]);
    zeros = twice;
  }
  ShiftTable table = {};
  for (int byte = 0; byte < 4; ++byte) {
    for (uint32_t value = 0; value < 256; ++value) {
      table[byte][value] = Apply(zeros, value << (8 * byte));
    }
  }
  return table;
}

constexpr ShiftTable kShiftTable = MakeShiftTable();

uint32_t ShiftOneBlock(uint32_t crc) {
  return kShiftTable[0][crc & 0xff] ^ kShiftTable[1][(crc >> 8) & 0xff] ^
         kShiftTable[2][(crc >> 16) & 0xff] ^ kShiftTable[3][crc >> 24];
}

uint64_t Load64(const char* p) {
  uint64_t value;
  std::memcpy(&value, p, sizeof(value));
  return value;
}

}  // namespace

uint32_t ExtendCrc32c(uint32_t crc, const void* data, size_t size) {
  const char* p = static_cast<const char*>(data);
  uint64_t sum = ~crc;
  while (size >= 3 * kBlockBytes) {
    uint64_t second = 0;
    uint64_t third = 0;
    for (size_t i = 0; i < kBlockBytes; i += 8) {
      sum = _mm_crc32_u64(sum, Load64(p + i));
      second = _mm_crc32_u64(second, Load64(p + kBlockBytes + i));
      third = _mm_crc32_u64(third, Load64(p + 2 * kBlockBytes + i));
    }
    sum = ShiftOneBlock(static_cast<uint32_t>(sum)) ^ second;
    sum = ShiftOneBlock(static_cast<uint32_t>(sum)) ^ third;
    p += 3 * kBlockBytes;
    size -= 3 * kBlockBytes;
  }
  for (; size >= 8; p += 8, size -= 8) sum = _mm_crc32_u64(sum, Load64(p));
  uint32_t tail = static_cast<uint32_t>(sum);
  for (; size > 0; ++p, --size) {
    tail = _mm_crc32_u8(tail, static_cast<unsigned char>(*p));
  }
  return ~tail;
}

}  // namespace ringfleet::cluster
