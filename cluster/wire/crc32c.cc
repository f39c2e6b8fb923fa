// SPDX-License-Identifier: Apache-2.0
// A checksum is a polynomial over GF(2) modulo P, the highest bit the
// coefficient of x^0. n zero bits behind the bytes that it covers multiply it
// by x^n.
#include "cluster/wire/crc32c.h"

#include <isa-l/crc.h>
#include <nmmintrin.h>

#include <algorithm>
#include <array>
#include <cstring>

namespace ringfleet::cluster {
namespace {

constexpr uint32_t kCrcPolynomial = 0x82f63b78u;  // P without x^32.
constexpr uint32_t kCrcOne = 1u << 31;

// Below this one instruction after the other is faster than ISA-L.
constexpr size_t kShortCrcBytes = 256;
// ISA-L takes a size as an int.
constexpr size_t kMostCrcBytes = size_t{1} << 30;

// Up to so many zeros the instruction is faster than a product of polynomials.
constexpr size_t kFewZeros = 256;

// Returns a * b modulo P.
constexpr uint32_t MultiplyCrc(uint32_t a, uint32_t b) {
  uint32_t product = 0;
  for (int bit = 31; bit >= 0; --bit) {
    product ^= b & (0u - ((a >> bit) & 1u));
    b = (b >> 1) ^ (kCrcPolynomial & (0u - (b & 1u)));  // Times x.
  }
  return product;
}

// [k][d]: the factor of d * 16^k zero bytes, for every hexadecimal digit d of
// a size.
using CrcZeroBytesTable = std::array<std::array<uint32_t, 16>, 16>;

constexpr CrcZeroBytesTable MakeCrcZeroBytesTable() {
  CrcZeroBytesTable table = {};
  uint32_t unit = kCrcOne >> 8;
  for (auto& powers : table) {
    powers[0] = kCrcOne;
    for (int d = 1; d < 16; ++d) powers[d] = MultiplyCrc(powers[d - 1], unit);
    unit = MultiplyCrc(powers[15], unit);
  }
  return table;
}

constexpr CrcZeroBytesTable kCrcZeroBytes = MakeCrcZeroBytesTable();

uint32_t ShortCrc(uint64_t state, const char* p, size_t size) {
  for (; size >= 8; p += 8, size -= 8) {
    uint64_t word;
    std::memcpy(&word, p, sizeof(word));
    state = _mm_crc32_u64(state, word);
  }
  auto tail = static_cast<uint32_t>(state);
  for (; size > 0; ++p, --size) {
    tail = _mm_crc32_u8(tail, static_cast<unsigned char>(*p));
  }
  return tail;
}

}  // namespace

uint32_t ExtendCrc32c(uint32_t crc, const void* data, size_t size) {
  const char* p = static_cast<const char*>(data);
  if (size < kShortCrcBytes) return ~ShortCrc(~crc, p, size);
  uint32_t state = ~crc;
  while (size > 0) {
    const size_t part = std::min(size, kMostCrcBytes);
    // The parameter lacks a const; ISA-L only reads.
    auto* const bytes = reinterpret_cast<unsigned char*>(const_cast<char*>(p));
    state = crc32_iscsi(bytes, static_cast<int>(part), state);
    p += part;
    size -= part;
  }
  return ~state;
}

uint32_t CombineCrc32c(uint32_t crc_a, uint32_t crc_b, size_t size_b) {
  if (size_b > kFewZeros) {
    for (int k = 0; size_b > 0; ++k, size_b >>= 4) {
      if (size_b & 15)
        crc_a = MultiplyCrc(crc_a, kCrcZeroBytes[k][size_b & 15]);
    }
    return crc_a ^ crc_b;
  }
  uint64_t sum = crc_a;
  for (; size_b >= 8; size_b -= 8) sum = _mm_crc32_u64(sum, 0);
  auto tail = static_cast<uint32_t>(sum);
  for (; size_b > 0; --size_b) tail = _mm_crc32_u8(tail, 0);
  return tail ^ crc_b;
}

}  // namespace ringfleet::cluster
