// SPDX-License-Identifier: Apache-2.0
// Panels of integer weights with dot products of bytes in 256-bit vectors.
// panel_avx512_vnni.cc explains the idea; this file takes half of the outputs
// at a time and three rows, so that 12 of 16 registers are sums.
//
// The including file defines RF_VPDPBUSD, the instruction in its encoding
// ("%{vex%} vpdpbusd" for AVX-VNNI), and sets the target's attributes; it gets
// Vnni256PanelKernels() in an anonymous namespace.
#ifndef RINGFLEET_KERNELS_PRODUCTS_PANEL_VNNI256_INL_H_
#define RINGFLEET_KERNELS_PRODUCTS_PANEL_VNNI256_INL_H_

#include <immintrin.h>

#include <algorithm>
#include <cstdint>

#include "kernels/products/panel.h"
#include "kernels/products/prefetch.h"
#include "kernels/unroll.h"

namespace ringfleet::kernels {
namespace {

constexpr int kVectors = 4;  // Vectors of 8 outputs.
constexpr size_t kBlockOutputs = kVectors * 8;
constexpr size_t kMaxRows = 3;

inline void DotBytes(__m256i weights, __m256i codes, __m256i& sum) {
  __asm__(RF_VPDPBUSD " %2, %1, %0" : "+x"(sum) : "x"(weights), "x"(codes));
}

inline __m256i FourCodes(const int8_t* codes) {
  int32_t four;
  __builtin_memcpy(&four, codes, sizeof(four));
  return _mm256_set1_epi32(four);
}

inline __m256i LoadBytes(const uint8_t* bytes) {
  return _mm256_load_si256(reinterpret_cast<const __m256i*>(bytes));
}

inline void AddScaled(__m256 value, __m256 scale, float* sum) {
  _mm256_store_ps(
      sum, _mm256_add_ps(_mm256_load_ps(sum), _mm256_mul_ps(value, scale)));
}

// tile[i] += x_scale * dot over one group, for outputs [output, output + 32).
template <int Rows>
void Int8Block(const uint8_t* weights, size_t steps, const PanelBatch& x,
               size_t row, size_t group, size_t output, float* tile) {
  __m256i sums[Rows][kVectors];
  const int8_t* codes[Rows];
  RF_UNROLL
  for (int i = 0; i < Rows; ++i) {
    codes[i] = x.codes[row + i] + group * kActivationGroup;
    const __m256i start = _mm256_set1_epi32(-x.biases[row + i][group]);
    RF_UNROLL
    for (int v = 0; v < kVectors; ++v) sums[i][v] = start;
  }
  for (size_t step = 0; step < steps; ++step) {
    const uint8_t* w = weights + step * kStepBytes + output * kStepColumns;
    RF_UNROLL
    for (int v = 0; v < kVectors; ++v) {
      const __m256i vector = LoadBytes(w + v * 32);
      RF_UNROLL
      for (int i = 0; i < Rows; ++i) {
        DotBytes(vector, FourCodes(codes[i] + step * kStepColumns), sums[i][v]);
      }
    }
  }
  RF_UNROLL
  for (int i = 0; i < Rows; ++i) {
    const __m256 scale = _mm256_set1_ps(x.scales[row + i][group]);
    RF_UNROLL
    for (int v = 0; v < kVectors; ++v) {
      AddScaled(_mm256_cvtepi32_ps(sums[i][v]), scale,
                tile + (row + i) * kPanelRows + output + v * 8);
    }
  }
}

// Int8Block for the `parts` parts of a group of int4 weights.
template <int Rows>
void Int4Block(const uint8_t* weights, size_t parts, const PanelBatch& x,
               size_t row, size_t group, size_t output, float* tile) {
  const __m256i low_bits = _mm256_set1_epi8(15);
  alignas(32) float inner[Rows * kBlockOutputs] = {};
  for (size_t part = 0; part < parts; ++part, weights += kInt4GroupBytes) {
    __m256i sums[Rows][kVectors];
    const int8_t* codes[Rows];
    RF_UNROLL
    for (int i = 0; i < Rows; ++i) {
      codes[i] =
          x.codes[row + i] + group * kActivationGroup + part * kInt4Group;
      const __m256i start = _mm256_set1_epi32(
          -8 * x.sums[row + i][group * Activations::kSumsPerGroup + part]);
      RF_UNROLL
      for (int v = 0; v < kVectors; ++v) sums[i][v] = start;
    }
    for (size_t pair = 0; pair < kInt4Group / (2 * kStepColumns); ++pair) {
      const uint8_t* bytes =
          weights + kInt4ScaleBytes + pair * kStepBytes + output * kStepColumns;
      const size_t column = pair * 2 * kStepColumns;
      RF_UNROLL
      for (int v = 0; v < kVectors; ++v) {
        const __m256i both = LoadBytes(bytes + v * 32);
        const __m256i low = _mm256_and_si256(both, low_bits);
        const __m256i high =
            _mm256_and_si256(_mm256_srli_epi16(both, 4), low_bits);
        RF_UNROLL
        for (int i = 0; i < Rows; ++i) {
          DotBytes(low, FourCodes(codes[i] + column), sums[i][v]);
          DotBytes(high, FourCodes(codes[i] + column + kStepColumns),
                   sums[i][v]);
        }
      }
    }
    RF_UNROLL
    for (int v = 0; v < kVectors; ++v) {
      const __m128i bf16 = _mm_load_si128(reinterpret_cast<const __m128i*>(
          weights + (output + v * 8) * sizeof(uint16_t)));
      const __m256 scale = _mm256_castsi256_ps(
          _mm256_slli_epi32(_mm256_cvtepu16_epi32(bf16), 16));
      RF_UNROLL
      for (int i = 0; i < Rows; ++i) {
        AddScaled(_mm256_cvtepi32_ps(sums[i][v]), scale,
                  inner + i * kBlockOutputs + v * 8);
      }
    }
  }
  RF_UNROLL
  for (int i = 0; i < Rows; ++i) {
    const __m256 scale = _mm256_set1_ps(x.scales[row + i][group]);
    RF_UNROLL
    for (int v = 0; v < kVectors; ++v) {
      AddScaled(_mm256_load_ps(inner + i * kBlockOutputs + v * 8), scale,
                tile + (row + i) * kPanelRows + output + v * 8);
    }
  }
}

struct Int8Weights {
  static constexpr size_t kUnitColumns = kStepColumns;
  static constexpr size_t kGroupBytes =
      kActivationGroup / kStepColumns * kStepBytes;
  template <int Rows>
  static void Block(const uint8_t* weights, size_t units, const PanelBatch& x,
                    size_t row, size_t group, size_t output, float* tile) {
    Int8Block<Rows>(weights, units, x, row, group, output, tile);
  }
};

struct Int4Weights {
  static constexpr size_t kUnitColumns = kInt4Group;
  static constexpr size_t kGroupBytes =
      Activations::kSumsPerGroup * kInt4GroupBytes;
  template <int Rows>
  static void Block(const uint8_t* weights, size_t units, const PanelBatch& x,
                    size_t row, size_t group, size_t output, float* tile) {
    Int4Block<Rows>(weights, units, x, row, group, output, tile);
  }
};

template <typename Weights>
void Multiply(const uint8_t* panel, const PanelBatch& x, const uint8_t* next,
              float* tile) {
  std::fill_n(tile, x.size * kPanelRows, 0.0f);
  const size_t ahead = BytesAheadOutOfOrder(x.size);
  const size_t groups = (x.columns + kActivationGroup - 1) / kActivationGroup;
  const uint8_t* const end = panel + groups * Weights::kGroupBytes;
  for (size_t group = 0; group < groups; ++group) {
    const size_t columns =
        std::min(kActivationGroup, x.columns - group * kActivationGroup);
    const size_t units =
        (columns + Weights::kUnitColumns - 1) / Weights::kUnitColumns;
    const uint8_t* weights = panel + group * Weights::kGroupBytes;
    const uint8_t* const later = GroupAhead(weights, ahead, end, next);
    for (size_t row = 0; row < x.size; row += kMaxRows) {
      for (size_t output = 0; output < kPanelRows; output += kBlockOutputs) {
        if (row == 0) {
          AskForGroup(later, Weights::kGroupBytes, output, kBlockOutputs);
        }
        switch (std::min(kMaxRows, x.size - row)) {
          case 1:
            Weights::template Block<1>(weights, units, x, row, group, output,
                                       tile);
            break;
          case 2:
            Weights::template Block<2>(weights, units, x, row, group, output,
                                       tile);
            break;
          default:
            Weights::template Block<3>(weights, units, x, row, group, output,
                                       tile);
        }
      }
    }
  }
}

inline IntegerPanelKernels Vnni256PanelKernels() {
  return {.int8 = &Multiply<Int8Weights>, .int4 = &Multiply<Int4Weights>};
}

}  // namespace
}  // namespace ringfleet::kernels

#endif  // RINGFLEET_KERNELS_PRODUCTS_PANEL_VNNI256_INL_H_
