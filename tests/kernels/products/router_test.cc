// SPDX-License-Identifier: Apache-2.0
#include "kernels/products/router.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <set>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/kernels/random_floats.h"

namespace ringfleet::kernels {
namespace {

using ::testing::ElementsAre;
using ::testing::FloatNear;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

struct Choice {
  std::vector<int32_t> ids;
  std::vector<float> weights;
};

Choice ChooseFromLogits(const RouterParameters& parameters,
                        const std::vector<float>& logits,
                        const std::vector<float>& bias = {}) {
  const size_t rows = logits.size() / parameters.num_experts;
  const size_t chosen = rows * parameters.num_experts_per_tok;
  std::vector<float> scratch(3 * parameters.num_experts);
  Choice choice = {std::vector<int32_t>(chosen, -1),
                   std::vector<float>(chosen, -1)};
  RouteLogits(parameters, logits.data(), rows,
              bias.empty() ? nullptr : bias.data(), scratch.data(),
              choice.ids.data(), choice.weights.data());
  return choice;
}

// Eight experts in four groups.
const std::vector<float> kLogits = {0.5f, -1, 2, 0.25f, 1.5f, -0.5f, 1.25f, 1};
const std::vector<float> kBias = {0, .3f, -.2f, .1f, 0, 0, .05f, 0};

RouterParameters EightExperts(RouterMethod method) {
  RouterParameters parameters;
  parameters.method = method;
  parameters.score = method == RouterMethod::kNoauxTc ? RouterScore::kSigmoid
                                                      : RouterScore::kSoftmax;
  parameters.num_experts = 8;
  parameters.num_experts_per_tok = 3;
  parameters.n_group = 4;
  parameters.topk_group = 2;
  return parameters;
}

TEST(RouterTest, V3ChoosesByBiasInsideTheBestGroups) {
  RouterParameters parameters = EightExperts(RouterMethod::kNoauxTc);
  parameters.norm_topk_prob = true;
  parameters.routed_scaling_factor = 2.5f;
  const Choice choice = ChooseFromLogits(parameters, kLogits, kBias);
  // Expert 4 has the second largest score, but its group is not kept.
  EXPECT_THAT(choice.ids, ElementsAre(2, 6, 7));
  EXPECT_THAT(choice.weights, ElementsAre(FloatNear(.9216615f, 1e-6f),
                                          FloatNear(.8133626f, 1e-6f),
                                          FloatNear(.7649760f, 1e-6f)));
}

TEST(RouterTest, V3ScalesWithAndWithoutNormalisation) {
  RouterParameters parameters = EightExperts(RouterMethod::kNoauxTc);
  parameters.routed_scaling_factor = 2.5f;
  const Choice choice = ChooseFromLogits(parameters, kLogits, kBias);
  EXPECT_THAT(choice.weights, ElementsAre(FloatNear(2.5f * .8807970f, 1e-6f),
                                          FloatNear(2.5f * .7772999f, 1e-6f),
                                          FloatNear(2.5f * .7310586f, 1e-6f)));
  parameters.norm_topk_prob = true;
  parameters.num_experts_per_tok = 1;
  EXPECT_THAT(ChooseFromLogits(parameters, kLogits, kBias).weights,
              ElementsAre(FloatNear(2.5f, 1e-6f)));
}

TEST(RouterTest, GreedyIgnoresTheGroups) {
  const Choice choice =
      ChooseFromLogits(EightExperts(RouterMethod::kGreedy), kLogits);
  EXPECT_THAT(choice.ids, ElementsAre(2, 4, 6));
  EXPECT_THAT(choice.weights, ElementsAre(FloatNear(.3360720f, 1e-6f),
                                          FloatNear(.2038380f, 1e-6f),
                                          FloatNear(.1587492f, 1e-6f)));
}

TEST(RouterTest, V2GroupsAreScoredByTheirBestExpert) {
  RouterParameters parameters = EightExperts(RouterMethod::kGroupLimitedGreedy);
  parameters.routed_scaling_factor = 16;
  const Choice choice = ChooseFromLogits(parameters, kLogits);
  EXPECT_THAT(choice.ids, ElementsAre(2, 3, 4));
  EXPECT_THAT(choice.weights, ElementsAre(FloatNear(5.3771520f, 1e-5f),
                                          FloatNear(.9344089f, 1e-5f),
                                          FloatNear(3.2614076f, 1e-5f)));
}

TEST(RouterTest, V2NormalisesInsteadOfScaling) {
  RouterParameters parameters = EightExperts(RouterMethod::kGreedy);
  parameters.norm_topk_prob = true;
  parameters.routed_scaling_factor = 16;
  const Choice choice = ChooseFromLogits(parameters, kLogits);
  const float sum = .3360720f + .2038380f + .1587492f;
  EXPECT_THAT(choice.weights, ElementsAre(FloatNear(.3360720f / sum, 1e-6f),
                                          FloatNear(.2038380f / sum, 1e-6f),
                                          FloatNear(.1587492f / sum, 1e-6f)));
  parameters.num_experts_per_tok = 1;
  EXPECT_THAT(ChooseFromLogits(parameters, kLogits).weights,
              ElementsAre(FloatNear(16 * .3360720f, 1e-5f)));
}

TEST(RouterTest, SigmoidGreedyTakesTheHighestScores) {
  RouterParameters parameters = EightExperts(RouterMethod::kGreedy);
  parameters.score = RouterScore::kSigmoid;
  const Choice choice = ChooseFromLogits(parameters, kLogits);
  EXPECT_THAT(choice.ids, ElementsAre(2, 4, 6));
  EXPECT_THAT(choice.weights, ElementsAre(FloatNear(.8807970f, 1e-6f),
                                          FloatNear(.8175744f, 1e-6f),
                                          FloatNear(.7772999f, 1e-6f)));
}

// With a mask of 0 instead of -infinity, experts outside the kept groups would
// beat these negative choice scores.
TEST(RouterTest, NegativeBiasesDoNotOpenOtherGroups) {
  const std::vector<float> bias(8, -5);
  const Choice choice =
      ChooseFromLogits(EightExperts(RouterMethod::kNoauxTc), kLogits, bias);
  const Choice without =
      ChooseFromLogits(EightExperts(RouterMethod::kNoauxTc), kLogits);
  EXPECT_EQ(choice.ids, without.ids);
  EXPECT_EQ(choice.weights, without.weights);
}

TEST(RouterTest, TiesGoToTheLowerIndex) {
  for (const RouterMethod method :
       {RouterMethod::kGreedy, RouterMethod::kGroupLimitedGreedy,
        RouterMethod::kNoauxTc}) {
    EXPECT_THAT(
        ChooseFromLogits(EightExperts(method), std::vector<float>(8, 1)).ids,
        ElementsAre(0, 1, 2));
  }
}

// Choice by sorting all experts, in double.
std::vector<int32_t> NaiveChoice(const RouterParameters& parameters,
                                 const float* logits,
                                 const std::vector<float>& bias) {
  const int num_experts = parameters.num_experts;
  std::vector<double> choice(num_experts);
  double sum = 0;
  for (int e = 0; e < num_experts; ++e) sum += std::exp(double{logits[e]});
  for (int e = 0; e < num_experts; ++e) {
    choice[e] = parameters.score == RouterScore::kSigmoid
                    ? 1 / (1 + std::exp(-double{logits[e]}))
                    : std::exp(double{logits[e]}) / sum;
    choice[e] += bias[e];
  }
  const int group_size = num_experts / parameters.n_group;
  std::vector<std::pair<double, int>> groups;
  for (int g = 0; g < parameters.n_group; ++g) {
    std::vector<double> members(choice.begin() + g * group_size,
                                choice.begin() + (g + 1) * group_size);
    std::sort(members.rbegin(), members.rend());
    const bool two =
        parameters.method == RouterMethod::kNoauxTc && group_size > 1;
    groups.emplace_back(-(members[0] + (two ? members[1] : 0)), g);
  }
  std::sort(groups.begin(), groups.end());
  std::vector<std::pair<double, int32_t>> open;
  for (int e = 0; e < num_experts; ++e) {
    for (int i = 0; i < parameters.topk_group; ++i) {
      if (groups[i].second == e / group_size) open.emplace_back(-choice[e], e);
    }
  }
  std::sort(open.begin(), open.end());
  std::vector<int32_t> ids;
  for (int k = 0; k < parameters.num_experts_per_tok; ++k) {
    ids.push_back(open[k].second);
  }
  std::sort(ids.begin(), ids.end());
  return ids;
}

TEST(RouterTest, ChoosesAsANaiveRouterDoes) {
  for (const RouterMethod method :
       {RouterMethod::kGroupLimitedGreedy, RouterMethod::kNoauxTc}) {
    for (const int group_size : {1, 3, 32}) {
      RouterParameters parameters = EightExperts(method);
      parameters.n_group = 8;
      parameters.topk_group = 4;
      parameters.num_experts = 8 * group_size;
      parameters.num_experts_per_tok = std::min(8, 4 * group_size);
      const int rows = 50;
      // Multiples of 1/512: far enough apart for float32 and double to agree
      // or exactly equal, when both must take the lower index.
      std::vector<float> logits =
          RandomFloats(rows * parameters.num_experts, group_size, -2, 2);
      for (float& logit : logits) logit = std::round(logit * 512) / 512;
      const std::vector<float> bias(parameters.num_experts, 0);
      const Choice choice = ChooseFromLogits(parameters, logits, bias);
      for (int row = 0; row < rows; ++row) {
        const auto begin =
            choice.ids.begin() + row * parameters.num_experts_per_tok;
        EXPECT_EQ(
            std::vector<int32_t>(begin, begin + parameters.num_experts_per_tok),
            NaiveChoice(parameters, &logits[row * parameters.num_experts],
                        bias));
      }
    }
  }
}

TEST(RouterTest, BrokenLogitsStillGiveDistinctValidIds) {
  std::vector<std::vector<float>> broken = {std::vector<float>(8, kNan),
                                            std::vector<float>(8, kInfinity),
                                            std::vector<float>(8, -kInfinity)};
  std::mt19937 generator(1);
  const float values[] = {kNan, kInfinity, -kInfinity, 0, 1, 1e30f};
  for (int i = 0; i < 200; ++i) {
    broken.emplace_back();
    for (int e = 0; e < 8; ++e) {
      broken.back().push_back(values[generator() % 6]);
    }
  }
  for (const std::vector<float>& logits : broken) {
    for (const RouterMethod method :
         {RouterMethod::kGreedy, RouterMethod::kGroupLimitedGreedy,
          RouterMethod::kNoauxTc}) {
      for (const RouterScore score :
           {RouterScore::kSoftmax, RouterScore::kSigmoid}) {
        RouterParameters parameters = EightExperts(method);
        parameters.score = score;
        for (const bool biased : {false, true}) {
          const std::vector<float> bias = {kNan, -kInfinity, kInfinity, 0,
                                           0,    -kInfinity, -1e38f,    kNan};
          const Choice choice = ChooseFromLogits(
              parameters, logits, biased ? bias : std::vector<float>());
          EXPECT_EQ(
              std::set<int32_t>(choice.ids.begin(), choice.ids.end()).size(),
              3u);
          EXPECT_TRUE(std::is_sorted(choice.ids.begin(), choice.ids.end()));
          EXPECT_GE(choice.ids.front(), 0);
          EXPECT_LT(choice.ids.back(), 8);
        }
      }
    }
  }
}

TEST(RouterTest, AnExpertWithNanIsChosenLast) {
  std::vector<float> logits = kLogits;
  logits[2] = kNan;
  RouterParameters parameters = EightExperts(RouterMethod::kGreedy);
  parameters.score = RouterScore::kSigmoid;
  EXPECT_THAT(ChooseFromLogits(parameters, logits).ids, ElementsAre(4, 6, 7));
}

// One unit in the last place of a normal result r is at most 2^-23 r.
TEST(DeterministicExpTest, IsWithinTwoUnitsInTheLastPlace) {
  double worst = 0;
  for (float x = -87.29f; x < 88.69f; x += 0.00037f) {
    const double exact = std::exp(static_cast<double>(x));
    const double result = DeterministicExp(x);
    const double ulp = std::ldexp(1.0, std::ilogb(exact) - 23);
    worst = std::max(worst, std::abs(result - exact) / ulp);
  }
  for (int exponent = -149; exponent < 6; ++exponent) {
    for (const float sign : {-1.0f, 1.0f}) {
      const float x = sign * std::ldexp(1.37f, exponent);
      const double exact = std::exp(static_cast<double>(x));
      const double ulp = std::ldexp(1.0, std::ilogb(exact) - 23);
      worst = std::max(worst, std::abs(DeterministicExp(x) - exact) / ulp);
    }
  }
  EXPECT_LE(worst, 2);
}

TEST(DeterministicExpTest, EndsOfTheRange) {
  EXPECT_EQ(DeterministicExp(0.0f), 1.0f);
  EXPECT_EQ(DeterministicExp(-0.0f), 1.0f);
  EXPECT_GE(DeterministicExp(-87.3f), std::numeric_limits<float>::min());
  // Results that would be denormal, or less, are 0.
  for (const float x :
       {-87.31f, -90.0f, -100.0f, -104.0f, -1e30f, -kInfinity}) {
    EXPECT_EQ(DeterministicExp(x), 0.0f) << x;
  }
  const float highest = DeterministicExp(88.7f);
  EXPECT_NEAR(highest / std::exp(88.7), 1, 1e-5);
  for (const float x : {88.71f, 89.0f, 1e30f, kInfinity}) {
    EXPECT_EQ(DeterministicExp(x), highest) << x;
  }
  EXPECT_TRUE(std::isnan(DeterministicExp(kNan)));
}

}  // namespace
}  // namespace ringfleet::kernels
