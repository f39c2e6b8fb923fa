// SPDX-License-Identifier: Apache-2.0
// A rank's part of a machine, and its times for products and attention. Times
// follow from rates that `doctor` measured there, or from two rates (reads and
// int8 products) and the proportions of one machine of perf/results.
#ifndef RINGFLEET_CLUSTER_MODEL_HOST_SPEC_H_
#define RINGFLEET_CLUSTER_MODEL_HOST_SPEC_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kernels/dtype.h"
#include "kernels/products/weight_matrix.h"

namespace ringfleet::cluster {

// Rows of activations of the products whose rate stands for all.
inline constexpr int kLargeRows = 128;

// Heads of the attention whose rate is measured.
inline constexpr double kManyHeads = 128;
inline constexpr double kFewHeads = 16;

// Int8 products of so many rows with weights that are read from memory.
struct ProductRate {
  double rows = 0;
  double ops_per_second = 0;  // A multiply-add is two.
};

// Operations a second of one rank while all of its host work.
struct MeasuredRates {
  // By ascending rows, from one row on, kLargeRows among them.
  std::vector<ProductRate> products;
  // Products of kLargeRows rows with weights of other forms.
  double int4 = 0;
  double bf16 = 0;
  double f32 = 0;
  // Attention with kManyHeads heads over a bf16 cache, and with kFewHeads. The
  // absorbed rates include reading the cache.
  double absorbed = 0;
  double absorbed_few = 0;
  double materialized = 0;
  // Attention with kManyHeads heads over a float32 cache; 0: not measured.
  double absorbed_f32_cache = 0;
  double materialized_f32_cache = 0;

  // The rate of products with kLargeRows rows, if it is among them.
  std::optional<double> large() const;
};

struct HostSpec {
  std::string name;
  uint64_t memory_bytes = 0;         // For weights, cache and buffers.
  double read_bytes_per_second = 0;  // By all its threads together.
  double int8_ops_per_second = 0;    // In products with kLargeRows rows.
  int threads = 1;
  std::optional<MeasuredRates> measured;
};

// Measured on two Zen 4 cores, where nothing else is known; perf/results/
// products.md: 765 / 2.
inline constexpr double kInt8OpsPerCore = 383e9;

// Seconds of a product of `rows` rows with `weights` weights, which have
// `bytes` bytes in this form.
double ProductSeconds(const HostSpec& host, kernels::WeightForm form,
                      double weights, double bytes, double rows);

// `operations` of attention with `heads` heads over `bytes` bytes of cache.
struct AttentionWork {
  double operations = 0;
  double bytes = 0;
  double heads = 0;
  kernels::Dtype cache = kernels::Dtype::kBf16;
  bool expanded = false;  // Keys and values of each head, not the latents.
};
// Seconds of such attention.
double AttentionSeconds(const HostSpec& host, const AttentionWork& work);

// The least of each: a host that is as slow and as small as any. Requires one.
HostSpec LeastOf(const std::vector<HostSpec>& hosts);

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_MODEL_HOST_SPEC_H_
