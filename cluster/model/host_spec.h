// SPDX-License-Identifier: Apache-2.0
// A rank's part of a machine, and the times that its products and attention
// take. The times follow from rates that `doctor` measured on the machine.
// Without measured rates they follow from two rates, of reads and of int8
// products; all other rates are scaled from a machine of perf/results.
#ifndef RINGFLEET_CLUSTER_MODEL_HOST_SPEC_H_
#define RINGFLEET_CLUSTER_MODEL_HOST_SPEC_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kernels/dtype.h"
#include "kernels/products/weight_matrix.h"

namespace ringfleet::cluster {

// Number of activation rows in the products that give
// HostSpec::int8_ops_per_second and the rates of other weight forms.
inline constexpr int kLargeRows = 128;

// Numbers of attention heads at which `doctor` measures attention.
inline constexpr double kManyHeads = 128;
inline constexpr double kFewHeads = 16;

// The rate of int8 products of `rows` activation rows, with weights read from
// memory.
struct ProductRate {
  double rows = 0;
  double ops_per_second = 0;  // A multiply-add is two operations.
};

// Operations a second of one rank, measured while all ranks of its host work.
struct MeasuredRates {
  // Ascending by rows. The first entry has 1 row. One entry has kLargeRows.
  std::vector<ProductRate> products;
  // Products of kLargeRows rows with weights of int4, bf16 and float32.
  double int4 = 0;
  double bf16 = 0;
  double f32 = 0;
  // Attention over a bf16 cache. Absorbed attention computes with latents,
  // materialized attention with keys and values of each head. absorbed_few has
  // kFewHeads heads, the others kManyHeads. Absorbed rates include reading the
  // cache.
  double absorbed = 0;
  double absorbed_few = 0;
  double materialized = 0;
  // Attention with kManyHeads heads over a float32 cache; 0: not measured.
  double absorbed_f32_cache = 0;
  double materialized_f32_cache = 0;

  // Returns the rate in `products` for kLargeRows rows. Returns nullopt if
  // there is none: the rates are not valid.
  std::optional<double> large() const;
};

struct HostSpec {
  std::string name;
  uint64_t memory_bytes = 0;         // For weights, cache and buffers.
  double read_bytes_per_second = 0;  // All threads together.
  double int8_ops_per_second = 0;    // With kLargeRows rows.
  int threads = 1;
  std::optional<MeasuredRates> measured;
};

// Int8 operations a second of one core, assumed for hosts without a
// measurement. Two Zen 4 cores reach 765e9 (perf/results/products.md).
inline constexpr double kInt8OpsPerCore = 383e9;

// Returns the seconds of a product of `rows` activation rows with a matrix of
// `weights` numbers. The matrix takes `bytes` bytes in `form`.
double ProductSeconds(const HostSpec& host, kernels::WeightForm form,
                      double weights, double bytes, double rows);

// The size of one attention: `operations` of `heads` heads over `bytes` bytes
// of cache.
struct AttentionWork {
  double operations = 0;
  double bytes = 0;
  double heads = 0;
  kernels::Dtype cache = kernels::Dtype::kBf16;
  bool expanded = false;  // Over keys and values per head, not latents.
};
// Returns the seconds that `work` takes.
double AttentionSeconds(const HostSpec& host, const AttentionWork& work);

// Returns a host with the least of every field over `hosts`. `hosts` must not
// be empty.
HostSpec LeastOf(const std::vector<HostSpec>& hosts);

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_MODEL_HOST_SPEC_H_
