// SPDX-License-Identifier: Apache-2.0
// Loops over vectors between the products.
#ifndef RINGFLEET_KERNELS_ELEMENTWISE_H_
#define RINGFLEET_KERNELS_ELEMENTWISE_H_

#include <cstddef>
#include <cstdint>

namespace ringfleet::kernels {

// y[i] += x[i]
void AddTo(const float* x, size_t size, float* y);
// y[i] += scale * x[i]; multiply, then add.
void AddScaledTo(float scale, const float* x, size_t size, float* y);
// gate[i] = silu(gate[i]) * up[i], silu(z) = z / (1 + exp(-z)) (SwiGLU,
// arXiv:2002.05202).
void SiluMultiply(float* gate, const float* up, size_t size);
// Conversions, rounding to nearest even. Source and destination may not
// overlap.
void FloatToBf16(const float* source, size_t size, uint16_t* destination);
void Bf16ToFloat(const uint16_t* source, size_t size, float* destination);

}  // namespace ringfleet::kernels

#endif  // RINGFLEET_KERNELS_ELEMENTWISE_H_
