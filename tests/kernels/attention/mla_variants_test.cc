// SPDX-License-Identifier: Apache-2.0
#include "perf/mla_variants.h"

#include <cmath>
#include <vector>

#include "gtest/gtest.h"
#include "tests/kernels/random_floats.h"

namespace ringfleet::perf {
namespace {

using kernels::Dtype;

constexpr MlaShape kSmall = {.hidden = 40,
                             .heads = 3,
                             .q_rank = 24,
                             .rank = 48,
                             .rope = 6,
                             .nope = 10,
                             .v = 18};

std::vector<float> RunVariant(MlaVariant variant, size_t batch, size_t context,
                              Dtype dtype) {
  kernels::ThreadPool pool(2);
  MlaModule module(variant, kSmall, batch, context, dtype, Dtype::kF32, pool);
  const std::vector<float> q =
      kernels::RandomFloats(batch * kSmall.q_rank, 5, -1.7f, 1.7f);
  std::vector<float> out(batch * kSmall.hidden, NAN);
  module.Run(q.data(), out.data());
  return out;
}

double RelativeError(const std::vector<float>& a, const std::vector<float>& b) {
  double difference = 0;
  double norm = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference += std::pow(double{a[i]} - b[i], 2.0);
    norm += std::pow(double{b[i]}, 2.0);
  }
  return std::sqrt(difference / norm);
}

// In float32 with 1e-4, which leaves room for a product of matrices that were
// multiplied beforehand. With caches of bfloat16 the forms round different
// things, each by 2^-8 at most and independently of one another: latents and
// queries, expanded keys and values, weights of the softmax.
TEST(MlaVariantsTest, AllFormsAgree) {
  for (const auto& [dtype, tolerance] :
       {std::pair(Dtype::kF32, 1e-4), std::pair(Dtype::kBf16, 2e-2)}) {
    for (const size_t context : {1, 127, 129, 700}) {
      for (const size_t batch : {1, 3}) {
        const std::vector<float> expected =
            RunVariant(MlaVariant::kACcMe, batch, context, dtype);
        for (const MlaVariant variant : kMlaVariants) {
          EXPECT_LT(RelativeError(RunVariant(variant, batch, context, dtype),
                                  expected),
                    tolerance)
              << MlaVariantName(variant) << " " << kernels::DtypeName(dtype)
              << " batch " << batch << " context " << context;
        }
      }
    }
  }
}

// The formulas against published figures for DeepSeek-V2 with 128 heads: per
// cached token 81.92 kB and 0.08 MFLOP, 1.152 kB and 33.64, 1.152 kB and 0.28;
// the absorbed weights read 872.4 MB instead of 251.7.
TEST(MlaVariantsTest, CostsAreThePublishedOnes) {
  const MlaShape v2;
  const auto per_token = [&](MlaVariant variant) {
    const MlaCost one =
        CostOf(variant, v2, 1, 1000, Dtype::kBf16, Dtype::kBf16);
    const MlaCost two =
        CostOf(variant, v2, 1, 1001, Dtype::kBf16, Dtype::kBf16);
    return MlaCost{.cache_bytes = two.cache_bytes - one.cache_bytes,
                   .weight_bytes = one.weight_bytes,
                   .flops = two.flops - one.flops};
  };
  EXPECT_DOUBLE_EQ(per_token(MlaVariant::kCd).cache_bytes, 81920);
  EXPECT_DOUBLE_EQ(per_token(MlaVariant::kCd).flops, 81920);
  EXPECT_DOUBLE_EQ(per_token(MlaVariant::kCc).cache_bytes, 1152);
  EXPECT_NEAR(per_token(MlaVariant::kCc).flops, 33.64e6, 0.005e6);
  EXPECT_DOUBLE_EQ(per_token(MlaVariant::kACc).flops, 278528);
  EXPECT_DOUBLE_EQ(per_token(MlaVariant::kACcMe).cache_bytes, 1152);
  EXPECT_DOUBLE_EQ(per_token(MlaVariant::kACcMe).flops, 278528);
  // Beside the rope rows of W_QB, 25.2 MB, which both read.
  EXPECT_NEAR(per_token(MlaVariant::kACcMe).weight_bytes, 251.7e6 + 25.2e6,
              0.1e6);
  EXPECT_NEAR(per_token(MlaVariant::kAmCcMe).weight_bytes, 872.4e6 + 25.2e6,
              0.1e6);
}

}  // namespace
}  // namespace ringfleet::perf
