// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_TESTS_KERNELS_RANDOM_FLOATS_H_
#define RINGFLEET_TESTS_KERNELS_RANDOM_FLOATS_H_

#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

namespace ringfleet::kernels {

// The half unit in the last place of float32, u in rounding error bounds.
// gamma(n) = n u / (1 - n u) bounds the relative error of n operations in a
// row (Higham, Accuracy and Stability of Numerical Algorithms, section 3.1).
inline double Gamma(double n) {
  const double u = 0x1p-24;
  return n * u / (1 - n * u);
}

// The same values on every machine.
inline std::vector<float> RandomFloats(size_t size, uint32_t seed,
                                       float low = -1, float high = 1) {
  std::mt19937 generator(seed);
  std::vector<float> values(size);
  for (float& value : values) {
    const float unit = static_cast<float>(generator() >> 8) * 0x1p-24f;
    value = low + (high - low) * unit;
  }
  return values;
}

}  // namespace ringfleet::kernels

#endif  // RINGFLEET_TESTS_KERNELS_RANDOM_FLOATS_H_
