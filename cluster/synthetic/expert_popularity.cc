// SPDX-License-Identifier: Apache-2.0
#include "cluster/synthetic/expert_popularity.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <utility>

#include "cluster/synthetic/weight_stream.h"
#include "kernels/check.h"

namespace ringfleet::cluster {
namespace {

// A token that always chose an expert would need a bias without bound.
constexpr double kMaxPopularity = 0.98;

// Rounds of few tokens bring biases near, rounds of many settle them.
struct Stage {
  size_t tokens;
  int rounds;
  double step;  // Part of the way that a quantile's difference suggests.
};
constexpr Stage kStages[] = {{2048, 16, 0.8}, {16384, 5, 0.6}};
constexpr size_t kMaxTokens = 16384;

// Deviation of the sigmoid of a logit of deviation 1: what turns a difference
// of quantiles into one of scores.
constexpr double kScoreDeviation = 0.21;

// A permutation of [0, count) by the stream `key`, from its word `*counter` on.
std::vector<int> Shuffled(int count, uint64_t key, uint64_t* counter) {
  std::vector<int> order(count);
  std::iota(order.begin(), order.end(), 0);
  for (int i = count - 1; i > 0; --i) {
    std::swap(order[i], order[RandomWord(key, (*counter)++) % (i + 1)]);
  }
  return order;
}

// i^-power for i in [1, count]. By the series of the logarithm's differences:
// the C library's pow is not the same on all hosts.
std::vector<double> InversePowers(int count, double power) {
  std::vector<double> powers;
  double log = 0;
  for (int i = 1; i <= count; ++i) {
    if (i > 1) {
      const double x = 1.0 / (2 * i - 1);  // log(i / (i-1)) = 2 atanh(x)
      double term = 2 * x;
      for (int k = 1; term > 1e-18; k += 2, term *= x * x) log += term / k;
    }
    powers.push_back(
        kernels::DeterministicExp(static_cast<float>(-power * log)));
  }
  return powers;
}

// Lower triangle L of the Cholesky decomposition L L^T of the covariance of
// the logits. A direction without any spread becomes 0.
std::vector<double> LogitFactor(absl::Span<const float> weight,
                                absl::Span<const float> scale, size_t n) {
  const size_t hidden = scale.size();
  std::vector<double> factor(n * n);
  std::vector<double> row(hidden);
  for (size_t i = 0; i < n; ++i) {
    for (size_t h = 0; h < hidden; ++h) {
      row[h] =
          static_cast<double>(weight[i * hidden + h]) * scale[h] * scale[h];
    }
    for (size_t j = 0; j <= i; ++j) {
      double sum = 0;
      for (size_t h = 0; h < hidden; ++h)
        sum += row[h] * weight[j * hidden + h];
      for (size_t k = 0; k < j; ++k)
        sum -= factor[i * n + k] * factor[j * n + k];
      if (i == j) {
        factor[i * n + i] = std::sqrt(std::max(0.0, sum));
      } else {
        const double pivot = factor[j * n + j];
        factor[i * n + j] = pivot > 0 ? sum / pivot : 0;
      }
    }
  }
  return factor;
}

// [tokens, experts]
std::vector<float> DrawLogits(absl::Span<const double> factor, size_t n,
                              size_t tokens, uint64_t key) {
  const std::array<float, kDraws>& normal = NormalDraws();
  std::vector<float> logits(tokens * n);
  std::vector<double> z(n);
  for (size_t t = 0; t < tokens; ++t) {
    for (size_t e = 0; e < n; ++e) {
      const uint64_t place = t * n + e;
      z[e] = normal[Draw(RandomWord(key, place / 4), place % 4)];
    }
    for (size_t e = 0; e < n; ++e) {
      double logit = 0;
      for (size_t k = 0; k <= e; ++k) logit += factor[e * n + k] * z[k];
      logits[t * n + e] = static_cast<float>(logit);
    }
  }
  return logits;
}

}  // namespace

std::vector<double> ZipfPopularity(const kernels::RouterParameters& router,
                                   double zipf, uint64_t key) {
  const int experts = router.num_experts;
  const std::vector<double> powers = InversePowers(experts, zipf);
  const auto popularity = [&](double c, int i) {
    return std::min(kMaxPopularity, c * powers[i]);
  };
  const auto sum = [&](double c) {
    double total = 0;
    for (int i = 0; i < experts; ++i) total += popularity(c, i);
    return total;
  };
  // The sum grows with c: 50 halvings find it to 1e-12 of the last doubling.
  const double wanted =
      std::min<double>(router.num_experts_per_tok, kMaxPopularity * experts);
  double high = 1;
  while (sum(high) < wanted) high *= 2;
  double low = 0;
  for (int i = 0; i < 50; ++i) {
    const double middle = (low + high) / 2;
    (sum(middle) < wanted ? low : high) = middle;
  }

  const int group_size = experts / router.n_group;
  std::vector<double> result(experts);
  uint64_t counter = 0;
  int rank = 0;
  for (const int group : Shuffled(router.n_group, key, &counter)) {
    for (const int member : Shuffled(group_size, key, &counter)) {
      result[group * group_size + member] = popularity(high, rank++);
    }
  }
  return result;
}

std::vector<float> BalanceRouter(const kernels::RouterParameters& router,
                                 absl::Span<const float> weight,
                                 absl::Span<const float> scale,
                                 absl::Span<const double> popularity,
                                 uint64_t key) {
  const size_t n = static_cast<size_t>(router.num_experts);
  const size_t chosen = static_cast<size_t>(router.num_experts_per_tok);
  RF_CHECK(weight.size() == n * scale.size() && popularity.size() == n);
  const std::vector<float> logits =
      DrawLogits(LogitFactor(weight, scale, n), n, kMaxTokens, key);
  std::vector<float> scratch(3 * n);
  std::vector<int32_t> ids(kMaxTokens * chosen);
  std::vector<float> weights(kMaxTokens * chosen);
  std::vector<float> bias(n);
  for (const Stage& stage : kStages) {
    for (int round = 0; round < stage.rounds; ++round) {
      kernels::RouteLogits(router, logits.data(), stage.tokens, bias.data(),
                           scratch.data(), ids.data(), weights.data());
      std::vector<int64_t> counts(n);
      for (size_t i = 0; i < stage.tokens * chosen; ++i) ++counts[ids[i]];
      for (size_t e = 0; e < n; ++e) {
        // Half a token away from never and always, whose quantiles are
        // infinite.
        const double least = 0.5 / static_cast<double>(stage.tokens);
        const auto quantile = [least](double p) {
          return NormalQuantile(std::clamp(p, least, 1 - least));
        };
        const double observed =
            static_cast<double>(counts[e]) / static_cast<double>(stage.tokens);
        bias[e] +=
            static_cast<float>(stage.step * kScoreDeviation *
                               (quantile(popularity[e]) - quantile(observed)));
      }
    }
  }
  const float least = *std::min_element(bias.begin(), bias.end());
  for (float& value : bias) value -= least;
  return bias;
}

}  // namespace ringfleet::cluster
