// SPDX-License-Identifier: Apache-2.0
#include "kernels/attention/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "kernels/check.h"

namespace ringfleet::kernels {
namespace {

// The pair whose wave turns `rotations` times in the original context
// (arXiv:2309.00071, section 3.2).
double PairOfRotations(const RopeParameters& parameters, double rotations) {
  return parameters.dim *
         std::log(parameters.original_max_position_embeddings /
                  (2 * std::numbers::pi * rotations)) /
         (2 * std::log(parameters.theta));
}

}  // namespace

double YarnMscale(double factor, double mscale) {
  return factor <= 1 ? 1 : 0.1 * mscale * std::log(factor) + 1;
}

Rope::Rope(const RopeParameters& parameters) {
  RF_CHECK(parameters.dim >= 0 && parameters.dim % 2 == 0);
  const int num_pairs = parameters.dim / 2;
  frequencies_.resize(num_pairs);
  for (int j = 0; j < num_pairs; ++j) {
    frequencies_[j] = std::pow(parameters.theta, -2.0 * j / parameters.dim);
  }
  if (!parameters.yarn) return;

  amplitude_ = parameters.attention_factor.value_or(
      YarnMscale(parameters.factor, parameters.mscale) /
      YarnMscale(parameters.factor, parameters.mscale_all_dim));
  double low = PairOfRotations(parameters, parameters.beta_fast);
  double high = PairOfRotations(parameters, parameters.beta_slow);
  if (parameters.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, parameters.dim - 1.0);
  if (low == high) high += 0.001;
  // Fast pairs keep their frequency, slow ones are stretched by the factor,
  // those between are mixed.
  for (int j = 0; j < num_pairs; ++j) {
    const double ramp = std::clamp((j - low) / (high - low), 0.0, 1.0);
    frequencies_[j] *= (1 - ramp) + ramp / parameters.factor;
  }
}

void Rope::Rotate(float* x, int64_t position) const {
  Rotate(x, 1, 0, position);
}

void Rope::Rotate(float* x, size_t rows, size_t stride,
                  int64_t position) const {
  for (size_t j = 0; j < frequencies_.size(); ++j) {
    const double angle = static_cast<double>(position) * frequencies_[j];
    const float cosine = static_cast<float>(amplitude_ * std::cos(angle));
    const float sine = static_cast<float>(amplitude_ * std::sin(angle));
    for (size_t row = 0; row < rows; ++row) {
      float* pair = x + row * stride + 2 * j;
      const float even = pair[0];
      const float odd = pair[1];
      pair[0] = even * cosine - odd * sine;
      pair[1] = odd * cosine + even * sine;
    }
  }
}

}  // namespace ringfleet::kernels
