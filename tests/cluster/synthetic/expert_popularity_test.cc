// SPDX-License-Identifier: Apache-2.0
#include "cluster/synthetic/expert_popularity.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <string>

#include "kernels/products/matmul.h"

namespace ringfleet::cluster {
namespace {

struct Case {
  std::string name;
  int experts, chosen, groups, kept;
  double zipf;
};

kernels::RouterParameters RouterOf(const Case& c) {
  return {.num_experts = c.experts,
          .num_experts_per_tok = c.chosen,
          .n_group = c.groups,
          .topk_group = c.kept};
}

class PopularityTest : public ::testing::TestWithParam<Case> {};

TEST_P(PopularityTest, FollowsZipfUpToTheBound) {
  const Case& c = GetParam();
  std::vector<double> wanted = ZipfPopularity(RouterOf(c), c.zipf, 3);
  EXPECT_NEAR(std::accumulate(wanted.begin(), wanted.end(), 0.0), c.chosen,
              1e-9);
  // What the kept groups can give: an expert is chosen with its group only.
  const int size = c.experts / c.groups;
  double groups = 0;
  for (auto group = wanted.begin(); group < wanted.end(); group += size) {
    groups += *std::max_element(group, group + size);
  }
  EXPECT_LE(groups, c.kept);
  std::sort(wanted.rbegin(), wanted.rend());
  const double last = wanted.back() * std::pow(c.experts, c.zipf);
  for (int i = 1; i <= c.experts; ++i) {
    const double law = std::min(0.98, last / std::pow(i, c.zipf));
    EXPECT_NEAR(wanted[i - 1], law, 1e-6 * law) << i;
  }
}

// Tokens that the fit has not seen, through a router of its own weights. The
// count of an expert is binomial, in the fit (16384 tokens) and here: five
// deviations of their difference.
TEST_P(PopularityTest, ABalancedRouterChoosesSo) {
  const Case& c = GetParam();
  const kernels::RouterParameters router = RouterOf(c);
  constexpr int kHidden = 96;
  constexpr int kTokens = 8192;
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  std::vector<float> weight(c.experts * kHidden);
  for (float& w : weight) w = normal(random) / std::sqrt(1.0f * kHidden);
  std::vector<float> scale(kHidden, 1);
  scale[17] = 5;
  const std::vector<double> wanted = ZipfPopularity(router, c.zipf, 3);
  const std::vector<float> bias =
      BalanceRouter(router, weight, scale, wanted, 4);
  EXPECT_EQ(*std::min_element(bias.begin(), bias.end()), 0);

  std::vector<float> x(kTokens * kHidden);
  for (size_t i = 0; i < x.size(); ++i) {
    x[i] = normal(random) * scale[i % kHidden];
  }
  std::vector<float> scratch(3 * c.experts);
  std::vector<int32_t> ids(kTokens * c.chosen);
  std::vector<float> weights(kTokens * c.chosen);
  kernels::WeightMatrix w(kernels::WeightForm::kF32Rows, c.experts, kHidden);
  for (int e = 0; e < c.experts; ++e) w.SetRow(e, &weight[e * kHidden]);
  kernels::ThreadPool pool(1);
  kernels::Activations activations;
  activations.Assign(kernels::Activations::Form::kF32, x.data(), kTokens,
                     kHidden, kHidden, pool);
  std::vector<float> logits(kTokens * c.experts);
  kernels::MatMul(w, activations, logits.data(), pool);
  kernels::RouteLogits(router, logits.data(), kTokens, bias.data(),
                       scratch.data(), ids.data(), weights.data());
  std::vector<double> counts(c.experts);
  for (const int32_t id : ids) ++counts[id];
  for (int e = 0; e < c.experts; ++e) {
    const double p = wanted[e];
    const double deviation =
        std::sqrt(p * (1 - p) * (1.0 / 16384 + 1.0 / kTokens));
    EXPECT_NEAR(counts[e] / kTokens, p, 5 * deviation) << "expert " << e;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Routers, PopularityTest,
    ::testing::Values(Case{"r1_slice_uniform", 32, 8, 8, 4, 0},
                      Case{"r1_slice_zipf1", 32, 8, 8, 4, 1},
                      Case{"r1_slice_zipf2", 32, 8, 8, 4, 2},
                      Case{"tiny_zipf1_2", 16, 4, 4, 2, 1.2},
                      Case{"one_group", 12, 3, 1, 1, 0.7}),
    [](const auto& info) { return info.param.name; });

TEST(BalanceRouterTest, IsAFunctionOfItsArguments) {
  const kernels::RouterParameters router = RouterOf({"", 16, 4, 4, 2, 0});
  std::vector<float> weight(16 * 8);
  std::iota(weight.begin(), weight.end(), -60.0f);
  for (float& w : weight) w = std::sin(w);
  const std::vector<float> scale(8, 1);
  const std::vector<double> wanted = ZipfPopularity(router, 1, 1);
  EXPECT_EQ(wanted, ZipfPopularity(router, 1, 1));
  EXPECT_NE(wanted, ZipfPopularity(router, 1, 2));
  const auto bias = BalanceRouter(router, weight, scale, wanted, 9);
  EXPECT_EQ(bias, BalanceRouter(router, weight, scale, wanted, 9));
  EXPECT_NE(bias, BalanceRouter(router, weight, scale, wanted, 10));
}

}  // namespace
}  // namespace ringfleet::cluster
