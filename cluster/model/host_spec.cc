// SPDX-License-Identifier: Apache-2.0
#include "cluster/model/host_spec.h"

#include <algorithm>
#include <cmath>

namespace ringfleet::cluster {
namespace {

using kernels::WeightForm;

// Bytes a second that the product of one row reads where memory gives more: 31
// to 40 GB/s with two threads where reading alone reaches 56 to 61.
constexpr double kReadPerThread = 18e9;

// Returns the time of two kinds of work that overlap.
double Overlap(double a, double b) {
  const double a2 = a * a;
  const double b2 = b * b;
  return std::sqrt(std::sqrt(a2 * a2 + b2 * b2));
}

// Which b has Overlap(a, b) == both; 0 if a alone takes as long.
double Beside(double a, double both) {
  const double a2 = a * a;
  const double both2 = both * both;
  return std::sqrt(std::sqrt(std::max(0.0, both2 * both2 - a2 * a2)));
}

// Rates of 128 rows beside int8's (perf/results/products.md): int4's on Zen
// 4, where int8 has 765 GOPS; those of floats, whose kernel is younger, on Zen
// 5, where it has 1587.
double AssumedFormRate(WeightForm form) {
  switch (form) {
    case WeightForm::kInt8:
      return 1;
    case WeightForm::kInt4:
      return 0.76;
    case WeightForm::kBf16:
    case WeightForm::kBf16Rows:
      return 0.235;
    case WeightForm::kF32:
    case WeightForm::kF32Rows:
    case WeightForm::kReference:
      return 0.25;
  }
  return 1;
}

// 8 rows reach 0.74 of the rate of 128, 32 rows 0.93. Steps of 512 tokens lose
// what single products do not show: fitted to 155 tokens/s of pp512 where pp128
// has 190 (tokens_per_second.md there).
double AssumedRowRate(double rows) {
  if (rows <= 128) return std::min(1.0, 1.02 * rows / (rows + 3));
  return 1 - 0.28 * std::min(1.0, (rows - 128) / 384);
}

// Latent attention's rate beside int8 products (attention.md there: 250 GFLOP/s
// with 16 heads, 350 with 128; of expanded keys and values 237).
constexpr double kAssumedAbsorbed = 0.49;
constexpr double kAssumedMaterialized = 0.31;
constexpr double kAssumedF32Cache = 0.53;     // 197 beside 370.
constexpr double kAssumedF32Expanded = 0.38;  // 89 beside 237.

// Few heads lose to bringing the cache into the kernels' order.
double AssumedHeadsRate(double heads) { return heads / (heads + 8); }

// Returns the measured rate. The time of a position lies on a line over the
// heads.
double AbsorbedRate(const MeasuredRates& rates, double heads) {
  const double many = kManyHeads / rates.absorbed;
  const double few = std::min(kFewHeads / rates.absorbed_few, many);
  double of_head = (many - few) / (kManyHeads - kFewHeads);
  // Less than none for no heads would be an error of the measurement.
  if (heads < kFewHeads) of_head = std::min(of_head, few / kFewHeads);
  return heads / (few + of_head * (heads - kFewHeads));
}

// Seconds of an int8 weight in products of `rows` rows.
double WeightSeconds(const MeasuredRates& rates, double rows) {
  const std::vector<ProductRate>& products = rates.products;
  const auto seconds = [](const ProductRate& rate) {
    return 2 * rate.rows / rate.ops_per_second;
  };
  const auto above = std::find_if(
      products.begin(), products.end(),
      [rows](const ProductRate& rate) { return rate.rows > rows; });
  if (above == products.begin()) return seconds(products.front());
  const ProductRate& below = *(above - 1);
  if (above == products.end()) return seconds(below) * rows / below.rows;
  const double part = (rows - below.rows) / (above->rows - below.rows);
  return seconds(below) + part * (seconds(*above) - seconds(below));
}

double MeasuredFormRate(const HostSpec& host, WeightForm form) {
  switch (form) {
    case WeightForm::kInt8:
      return 1;
    case WeightForm::kInt4:
      return host.measured->int4 / host.int8_ops_per_second;
    case WeightForm::kBf16:
    case WeightForm::kBf16Rows:
      return host.measured->bf16 / host.int8_ops_per_second;
    case WeightForm::kF32:
    case WeightForm::kF32Rows:
    case WeightForm::kReference:
      return host.measured->f32 / host.int8_ops_per_second;
  }
  return 1;
}

// Returns the time in which products read `bytes`.
double ReadSeconds(const HostSpec& host, double bytes) {
  if (host.measured.has_value()) {
    return bytes * WeightSeconds(*host.measured, 1);
  }
  return bytes /
         std::min(host.read_bytes_per_second, host.threads * kReadPerThread);
}

// Returns the rate of attention over a float32 cache, relative to bfloat16.
double AssumedF32(const AttentionWork& work) {
  return work.expanded ? kAssumedF32Expanded : kAssumedF32Cache;
}

double AttentionRate(const HostSpec& host, const AttentionWork& work) {
  const bool f32 = work.cache == kernels::Dtype::kF32;
  if (!host.measured.has_value()) {
    const double rate =
        host.int8_ops_per_second *
        (work.expanded ? kAssumedMaterialized
                       : kAssumedAbsorbed * AssumedHeadsRate(work.heads));
    return f32 ? rate * AssumedF32(work) : rate;
  }
  const MeasuredRates& rates = *host.measured;
  const double rate =
      work.expanded ? rates.materialized : AbsorbedRate(rates, work.heads);
  if (!f32) return rate;
  // Few heads lose in it what they lose in bfloat16.
  const double many = work.expanded ? rates.materialized : rates.absorbed;
  const double many_f32 =
      work.expanded ? rates.materialized_f32_cache : rates.absorbed_f32_cache;
  return many_f32 > 0 ? rate * many_f32 / many : rate * AssumedF32(work);
}

MeasuredRates LeastOf(const MeasuredRates& a, const MeasuredRates& b) {
  MeasuredRates least = {
      .int4 = std::min(a.int4, b.int4),
      .bf16 = std::min(a.bf16, b.bf16),
      .f32 = std::min(a.f32, b.f32),
      .absorbed = std::min(a.absorbed, b.absorbed),
      .absorbed_few = std::min(a.absorbed_few, b.absorbed_few),
      .materialized = std::min(a.materialized, b.materialized),
      .absorbed_f32_cache =
          std::min(a.absorbed_f32_cache, b.absorbed_f32_cache),
      .materialized_f32_cache =
          std::min(a.materialized_f32_cache, b.materialized_f32_cache)};
  for (const ProductRate& rate : a.products) {
    const double seconds =
        std::max(WeightSeconds(a, rate.rows), WeightSeconds(b, rate.rows));
    least.products.push_back(
        {.rows = rate.rows, .ops_per_second = 2 * rate.rows / seconds});
  }
  return least;
}

}  // namespace

std::optional<double> MeasuredRates::large() const {
  for (const ProductRate& rate : products) {
    if (rate.rows == kLargeRows) return rate.ops_per_second;
  }
  return std::nullopt;
}

double ProductSeconds(const HostSpec& host, WeightForm form, double weights,
                      double bytes, double rows) {
  const double read = ReadSeconds(host, bytes);
  if (!host.measured.has_value()) {
    const double rate =
        host.int8_ops_per_second * AssumedFormRate(form) * AssumedRowRate(rows);
    return Overlap(read, 2 * rows * weights / rate);
  }
  const double multiply = Beside(WeightSeconds(*host.measured, 1),
                                 WeightSeconds(*host.measured, rows));
  return Overlap(read, weights * multiply / MeasuredFormRate(host, form));
}

double AttentionSeconds(const HostSpec& host, const AttentionWork& work) {
  const double read = ReadSeconds(host, work.bytes);
  const double compute = work.operations / AttentionRate(host, work);
  const bool reads_included = host.measured.has_value() && !work.expanded &&
                              work.cache != kernels::Dtype::kF32;
  return reads_included ? std::max(read, compute) : Overlap(read, compute);
}

HostSpec LeastOf(const std::vector<HostSpec>& hosts) {
  HostSpec least = hosts.front();
  for (const HostSpec& host : hosts) {
    least.memory_bytes = std::min(least.memory_bytes, host.memory_bytes);
    least.read_bytes_per_second =
        std::min(least.read_bytes_per_second, host.read_bytes_per_second);
    least.int8_ops_per_second =
        std::min(least.int8_ops_per_second, host.int8_ops_per_second);
    least.threads = std::min(least.threads, host.threads);
    if (!host.measured.has_value()) {
      least.measured.reset();
    } else if (least.measured.has_value()) {
      least.measured = LeastOf(*least.measured, *host.measured);
    }
  }
  return least;
}

}  // namespace ringfleet::cluster
