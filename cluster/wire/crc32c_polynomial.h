// SPDX-License-Identifier: Apache-2.0
// Arithmetic of CRC-32C. A checksum is a polynomial over GF(2) modulo P, the
// highest bit the coefficient of x^0. n zero bits behind what it covers
// multiply it by x^n.
#ifndef RINGFLEET_CLUSTER_WIRE_CRC32C_POLYNOMIAL_H_
#define RINGFLEET_CLUSTER_WIRE_CRC32C_POLYNOMIAL_H_

#include <cstdint>

namespace ringfleet::cluster {

inline constexpr uint32_t kCrcPolynomial = 0x82f63b78u;  // P without x^32.
inline constexpr uint32_t kCrcOne = 1u << 31;

// a * b modulo P.
constexpr uint32_t MultiplyCrc(uint32_t a, uint32_t b) {
  uint32_t product = 0;
  for (int bit = 31; bit >= 0; --bit) {
    product ^= b & (0u - ((a >> bit) & 1u));
    b = (b >> 1) ^ (kCrcPolynomial & (0u - (b & 1u)));  // Times x.
  }
  return product;
}

// x^n modulo P.
constexpr uint32_t CrcPowerOfX(uint64_t n) {
  uint32_t power = kCrcOne;
  for (uint32_t square = kCrcOne >> 1; n > 0; n >>= 1) {
    if (n & 1) power = MultiplyCrc(power, square);
    square = MultiplyCrc(square, square);
  }
  return power;
}

// Folding, as in Gopal et al., "Fast CRC Computation for Generic Polynomials
// Using PCLMULQDQ Instruction", Intel, 2009: of two blocks of 128 bits that lie
// D bits apart, the first may be replaced by its product with x^D, added to the
// second. Its halves are multiplied by x^(D + 64), the one that comes first in
// memory, and x^D modulo P, each of degree 31 at most, so that the sum fits a
// block again. This is the factor for x^`bits`: bit i of a half stands for
// x^(63 - i), so the instruction's product, in which bit i would have to stand
// for x^(127 - i), is x times what it should be.
constexpr uint64_t CrcFoldFactor(uint64_t bits) {
  return uint64_t{CrcPowerOfX(bits - 1)} << 32;
}

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_WIRE_CRC32C_POLYNOMIAL_H_
