// SPDX-License-Identifier: Apache-2.0
// Rotary position embedding (arXiv:2104.09864) with YaRN's frequencies
// (arXiv:2309.00071) in the interleaved pair layout of DeepSeek's
// checkpoints: elements (2j, 2j + 1) rotate by position * frequency[j].
#ifndef RINGFLEET_KERNELS_ATTENTION_ROPE_H_
#define RINGFLEET_KERNELS_ATTENTION_ROPE_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace ringfleet::kernels {

struct RopeParameters {
  int dim = 64;  // Even.
  double theta = 10000;
  bool yarn = false;
  double factor = 1;
  double original_max_position_embeddings = 4096;
  double beta_fast = 32;
  double beta_slow = 1;
  double mscale = 1;
  double mscale_all_dim = 0;
  // Multiplies cosine and sine. Unset: the quotient of the mscales' factors.
  std::optional<double> attention_factor;
  // False: the borders between fast and slow pairs are not rounded.
  bool truncate = true;
};

// 0.1 * mscale * ln(factor) + 1, or 1 for factor <= 1.
double YarnMscale(double factor, double mscale);

// Immutable; thread-safe.
class Rope {
 public:
  explicit Rope(const RopeParameters& parameters);

  // Rotates x [dim] float32 in place to `position`. Angles in float64.
  void Rotate(float* x, int64_t position) const;
  // Rotates `rows` vectors that start `stride` floats apart, such as all heads
  // of a token. Computes the angles once.
  void Rotate(float* x, size_t rows, size_t stride, int64_t position) const;

  const std::vector<double>& frequencies() const { return frequencies_; }
  // Multiplies cosine and sine.
  double amplitude() const { return amplitude_; }

 private:
  std::vector<double> frequencies_;  // [dim / 2], radians per position
  double amplitude_ = 1;
};

}  // namespace ringfleet::kernels

#endif  // RINGFLEET_KERNELS_ATTENTION_ROPE_H_
