// SPDX-License-Identifier: Apache-2.0
#include "cluster/model/host_spec.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace ringfleet::cluster {
namespace {

using kernels::WeightForm;

// One row takes 20 ps a weight, 128 rows 64 ps.
HostSpec Measured() {
  return {.name = "host",
          .memory_bytes = 1 << 20,
          .read_bytes_per_second = 60e9,
          .int8_ops_per_second = 4e12,
          .threads = 2,
          .measured = MeasuredRates{.products = {{1, 100e9}, {128, 4e12}},
                                    .int4 = 2e12,
                                    .bf16 = 0.5e12,
                                    .f32 = 0.25e12,
                                    .absorbed = 3e12,
                                    .absorbed_few = 1e12,
                                    .materialized = 1e12,
                                    .absorbed_f32_cache = 0.5e12,
                                    .materialized_f32_cache = 0.4e12}};
}

double Int8Seconds(const HostSpec& host, double rows) {
  return ProductSeconds(host, WeightForm::kInt8, 1e6, 1e6, rows);
}

TEST(HostSpecTest, ProductsTakeWhatWasMeasured) {
  const HostSpec host = Measured();
  EXPECT_NEAR(Int8Seconds(host, 1), 20e-6, 1e-12);
  EXPECT_NEAR(Int8Seconds(host, 128), 64e-6, 1e-12);
  // Between the two on a line, beyond the last at its rate.
  EXPECT_NEAR(Int8Seconds(host, 64.5), 42e-6, 1e-12);
  EXPECT_NEAR(Int8Seconds(host, 256), 128e-6, 1e-12);
  // A part of a row is read like a whole one.
  EXPECT_NEAR(Int8Seconds(host, 0.5), 20e-6, 1e-12);
}

TEST(HostSpecTest, OtherFormsReadTheirBytesAndMultiplyAtTheirRate) {
  const HostSpec host = Measured();
  // Half the bytes and twice the bytes of one row.
  EXPECT_NEAR(ProductSeconds(host, WeightForm::kInt4, 1e6, 0.5e6, 1), 10e-6,
              1e-12);
  EXPECT_NEAR(ProductSeconds(host, WeightForm::kBf16, 1e6, 2e6, 1), 40e-6,
              1e-12);
  // With many rows reading hardly counts: an eighth and a sixteenth of int8's
  // rate, half of it.
  const double int8 = Int8Seconds(host, 1280);
  EXPECT_NEAR(ProductSeconds(host, WeightForm::kBf16, 1e6, 2e6, 1280), 8 * int8,
              0.01 * int8);
  EXPECT_NEAR(ProductSeconds(host, WeightForm::kF32, 1e6, 4e6, 1280), 16 * int8,
              0.01 * int8);
  EXPECT_NEAR(ProductSeconds(host, WeightForm::kInt4, 1e6, 0.5e6, 1280),
              2 * int8, 0.01 * int8);
}

TEST(HostSpecTest, AttentionRunsAtItsOwnRates) {
  const HostSpec host = Measured();
  const auto seconds = [&](const AttentionWork& work) {
    return AttentionSeconds(host, work);
  };
  EXPECT_NEAR(seconds({.operations = 3e12, .heads = 128}), 1, 1e-9);
  EXPECT_NEAR(seconds({.operations = 1e12, .heads = 128, .expanded = true}), 1,
              1e-9);
  EXPECT_NEAR(
      seconds(
          {.operations = 0.5e12, .heads = 128, .cache = kernels::Dtype::kF32}),
      1, 1e-9);
  EXPECT_NEAR(seconds({.operations = 0.4e12,
                       .heads = 128,
                       .cache = kernels::Dtype::kF32,
                       .expanded = true}),
              1, 1e-9);
  // A sixth of bfloat16's rate with few heads as with many.
  EXPECT_NEAR(
      seconds(
          {.operations = 1e12 / 6, .heads = 16, .cache = kernels::Dtype::kF32}),
      1, 1e-9);
  // Of a host whose measurements know nothing of it: 0.53 of bfloat16's rate,
  // whatever products of float32 reach.
  HostSpec before = host;
  before.measured->absorbed_f32_cache = 0;
  before.measured->f32 = 100e12;
  EXPECT_NEAR(AttentionSeconds(before, {.operations = 0.53 * 3e12,
                                        .heads = 128,
                                        .cache = kernels::Dtype::kF32}),
              1, 1e-9);
  EXPECT_NEAR(seconds({.operations = 1e12, .heads = 16}), 1, 1e-9);
  // A position takes 42.7 for 128 heads and 16 for 16: 0.238 for each beside
  // 12.2 for all.
  EXPECT_NEAR(seconds({.operations = 72e12, .heads = 72}), 29.333, 1e-3);
  EXPECT_NEAR(seconds({.operations = 1e12, .heads = 1}), 12.4286, 1e-3);
  // A cache that is read but hardly computed with: the rate of one row.
  EXPECT_NEAR(seconds({.operations = 1, .bytes = 50e9, .heads = 128}), 1, 1e-6);
  // Where both take as long: the absorbed form's rate has the reads in it.
  EXPECT_NEAR(seconds({.operations = 3e12, .bytes = 50e9, .heads = 128}), 1,
              1e-6);
  EXPECT_NEAR(
      seconds(
          {.operations = 1e12, .bytes = 50e9, .heads = 128, .expanded = true}),
      std::pow(2, 0.25), 1e-6);
  // Few heads that were faster than many: in proportion below them.
  HostSpec odd = host;
  odd.measured->absorbed_few = 4e12;
  EXPECT_NEAR(AttentionSeconds(odd, {.operations = 4e12, .heads = 16}), 1,
              1e-9);
  EXPECT_NEAR(AttentionSeconds(odd, {.operations = 4e12, .heads = 1}), 1, 1e-9);
  EXPECT_NEAR(AttentionSeconds(odd, {.operations = 3e12, .heads = 128}), 1,
              1e-9);
}

TEST(HostSpecTest, WithoutMeasurementsTwoRatesAreEnough) {
  HostSpec host = Measured();
  host.measured.reset();
  // 18 GB/s a thread.
  EXPECT_NEAR(Int8Seconds(host, 1), 1e6 / 36e9, 1e-6);
  EXPECT_NEAR(Int8Seconds(host, 128), 2 * 128 * 1e6 / 4e12, 5e-6);
  host.int8_ops_per_second *= 2;
  EXPECT_LT(Int8Seconds(host, 128), 0.65 * 2 * 128 * 1e6 / 4e12);
}

TEST(HostSpecTest, TheLeastHostIsAsSlowAsAny) {
  HostSpec other = Measured();
  other.memory_bytes = 1 << 10;
  other.threads = 1;
  // Measured at other rows: faster with one row, slower with many.
  other.measured->products = {{1, 200e9}, {64, 1e12}};
  other.measured->bf16 = 0.1e12;
  other.measured->absorbed = 9e12;
  other.measured->absorbed_few = 0.5e12;
  other.measured->absorbed_f32_cache = 0;
  const HostSpec least = LeastOf({Measured(), other});
  EXPECT_EQ(least.memory_bytes, 1u << 10);
  EXPECT_EQ(least.threads, 1);
  ASSERT_TRUE(least.measured.has_value());
  EXPECT_NEAR(Int8Seconds(least, 1), 20e-6, 1e-12);
  EXPECT_NEAR(Int8Seconds(least, 128), 256e-6, 1e-12);
  EXPECT_EQ(least.measured->bf16, 0.1e12);
  EXPECT_EQ(least.measured->absorbed, 3e12);
  EXPECT_EQ(least.measured->absorbed_few, 0.5e12);
  EXPECT_EQ(least.measured->absorbed_f32_cache, 0);
  EXPECT_EQ(least.measured->materialized_f32_cache, 0.4e12);
  // One that was not measured makes all of them assumed.
  other.measured.reset();
  EXPECT_FALSE(LeastOf({Measured(), other}).measured.has_value());
  EXPECT_FALSE(LeastOf({other, Measured()}).measured.has_value());
}

}  // namespace
}  // namespace ringfleet::cluster
