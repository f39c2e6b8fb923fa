// SPDX-License-Identifier: Apache-2.0
#include "kernels/sampling.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/kernels/each_isa.h"
#include "tests/kernels/random_floats.h"

namespace ringfleet::kernels {
namespace {

using ::testing::ElementsAre;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNotANumber = std::numeric_limits<float>::quiet_NaN();

std::vector<uint32_t> Ids(const std::vector<Candidate>& candidates) {
  std::vector<uint32_t> ids;
  for (const Candidate& candidate : candidates) ids.push_back(candidate.id);
  return ids;
}

// Known-answer vectors of the generator's authors (Random123, kat_vectors).
TEST(PhiloxTest, KnownAnswers) {
  EXPECT_THAT(Philox4x32({0, 0, 0, 0}, {0, 0}),
              ElementsAre(0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8));
  const uint32_t ones = 0xffffffff;
  EXPECT_THAT(Philox4x32({ones, ones, ones, ones}, {ones, ones}),
              ElementsAre(0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd));
  EXPECT_THAT(Philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
                         {0xa4093822, 0x299f31d0}),
              ElementsAre(0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1));
}

TEST(SamplingTest, NoiseDependsOnEveryPartOfTheKey) {
  const DrawKey key = {.seed = 1, .sample = 2, .position = 3};
  const double noise = GumbelNoise(key, 4);
  EXPECT_EQ(GumbelNoise(key, 4), noise);
  EXPECT_NE(GumbelNoise(key, 5), noise);
  for (const DrawKey& other :
       {DrawKey{2, 2, 3}, DrawKey{1, 3, 3}, DrawKey{1, 2, 4},
        DrawKey{1 + (uint64_t{1} << 32), 2, 3},
        DrawKey{1, 2, 3 + (uint64_t{1} << 32)}}) {
    EXPECT_NE(GumbelNoise(other, 4), noise);
  }
}

// Mean 0.577216 (Euler's constant), variance pi^2 / 6 = 1.644934. Over n draws
// the mean's standard error is 1.2825 / sqrt(n), the variance's about
// sqrt((5.4 - 1) / n) 1.645 (the distribution's kurtosis is 5.4).
TEST(SamplingTest, NoiseHasGumbelMoments) {
  const int n = 200000;
  double sum = 0;
  double squares = 0;
  for (int id = 0; id < n; ++id) {
    const double noise = GumbelNoise({.seed = 9}, id);
    ASSERT_TRUE(std::isfinite(noise));
    sum += noise;
    squares += noise * noise;
  }
  const double mean = sum / n;
  EXPECT_NEAR(mean, 0.577216, 5 * 1.2825 / std::sqrt(n));
  EXPECT_NEAR(squares / n - mean * mean, 1.644934,
              5 * std::sqrt(4.4 / n) * 1.645);
}

// Chi-square over 12 tokens: 11 degrees of freedom exceed 38.5 with
// probability 6.6e-5; the seeds are fixed, so the test gives one answer.
TEST(SamplingTest, DrawsFollowTheSoftmax) {
  const std::vector<float> logits = RandomFloats(12, 3, -2, 2);
  for (const float temperature : {0.5f, 1.0f, 2.0f}) {
    const SamplingFilter filter = {.temperature = temperature};
    const int n = 20000;
    std::vector<int> drawn(12, 0);
    for (int i = 0; i < n; ++i) {
      const DrawKey key = {.seed = 77, .position = static_cast<uint64_t>(i)};
      ++drawn[DrawFromShard(logits, 0, filter, key).id];
    }
    double total = 0;
    for (const float logit : logits) total += std::exp(logit / temperature);
    double chi_square = 0;
    for (size_t id = 0; id < 12; ++id) {
      const double expected = n * std::exp(logits[id] / temperature) / total;
      chi_square += std::pow(drawn[id] - expected, 2) / expected;
    }
    EXPECT_LT(chi_square, 38.5) << temperature;
  }
}

TEST(SamplingTest, SamplesOfOneSeedAreIndependent) {
  // Two equally likely tokens, two samples: four outcomes, 3 degrees of
  // freedom, 24.8 has probability 1.7e-5.
  const std::vector<float> logits = {0, 0};
  const SamplingFilter filter = {.temperature = 1};
  int outcomes[4] = {};
  const int n = 8000;
  for (int i = 0; i < n; ++i) {
    const uint64_t position = static_cast<uint64_t>(i);
    const uint32_t a = DrawFromShard(logits, 0, filter, {5, 0, position}).id;
    const uint32_t b = DrawFromShard(logits, 0, filter, {5, 1, position}).id;
    ++outcomes[2 * a + b];
  }
  double chi_square = 0;
  for (const int count : outcomes) {
    chi_square += std::pow(count - n / 4.0, 2) / (n / 4.0);
  }
  EXPECT_LT(chi_square, 24.8);
}

TEST(SamplingTest, AnySplitOfTheVocabularyDrawsTheSameToken) {
  const std::vector<float> logits = RandomFloats(1000, 5, -8, 8);
  for (const float temperature : {0.0f, 0.3f, 1.0f, 50.0f}) {
    const SamplingFilter filter = {.temperature = temperature};
    for (uint64_t position = 0; position < 50; ++position) {
      const DrawKey key = {.seed = 6, .position = position};
      const Candidate whole = DrawFromShard(logits, 0, filter, key);
      // Every candidate in turn, in another order.
      const std::vector<Candidate> all = TopCandidates(logits, 0, 1000);
      EXPECT_EQ(Draw(all, filter, key).id, whole.id);
      for (const size_t shards : {2, 3, 7}) {
        std::vector<Candidate> winners;
        for (size_t s = 0; s < shards; ++s) {
          const size_t begin = 1000 * s / shards;
          const size_t end = 1000 * (s + 1) / shards;
          winners.push_back(
              DrawFromShard(absl::MakeSpan(logits).subspan(begin, end - begin),
                            static_cast<uint32_t>(begin), filter, key));
        }
        std::sort(winners.begin(), winners.end(), Precedes);
        EXPECT_EQ(Draw(winners, filter, key).id, whole.id);
      }
    }
  }
}

// The definition, without bounds on what can win.
Candidate DrawFromAll(const std::vector<float>& logits, uint32_t first_id,
                      float temperature, const DrawKey& key) {
  Candidate best;
  double best_score = -std::numeric_limits<double>::infinity();
  for (size_t i = 0; i < logits.size(); ++i) {
    const uint32_t id = first_id + static_cast<uint32_t>(i);
    const double score =
        static_cast<double>(logits[i]) / temperature + GumbelNoise(key, id);
    if (score > best_score) {
      best = {.id = id, .logit = logits[i]};
      best_score = score;
    }
  }
  return best;
}

// Sizes beyond a block of the scan; flat and peaked distributions, huge
// logits, whose noise rounding swallows in part, and logits of no number.
TEST(SamplingTest, DrawsWhatLookingAtEveryIdDraws) {
  ForEachIsa([] {
    for (uint32_t i = 0; i < 60; ++i) {
      const size_t size = 1 + i * 997 % 7001;
      const float width = i % 4 == 0 ? 0.0f : i % 4 == 1 ? 2.0f : 25.0f;
      std::vector<float> logits = RandomFloats(size, i, -width, width);
      for (float& logit : logits) {
        if (i % 5 == 1) logit += 1e6f;
        if (i % 5 == 2) logit -= 3e15f;
      }
      for (size_t k = i; k < size; k += 50) {
        logits[k] = i % 2 == 0 ? kNotANumber : -kInf;
      }
      if (i % 6 == 5) logits[0] = logits.back() = width + 9;  // A tie.
      const DrawKey key = {.seed = i, .sample = i % 3, .position = i * i};
      for (const float temperature : {1e-30f, 0.05f, 0.6f, 1.0f, 30.0f}) {
        const uint32_t first_id = i * 1000;
        const Candidate drawn =
            DrawFromShard(logits, first_id, {.temperature = temperature}, key);
        const Candidate expected =
            DrawFromAll(logits, first_id, temperature, key);
        EXPECT_EQ(drawn.id, expected.id) << i << ' ' << temperature;
      }
    }
  });
}

TEST(SamplingTest, GreedyTakesTheLowestIdOfTheHighestLogit) {
  const SamplingFilter greedy;
  EXPECT_EQ(DrawFromShard({1.0f, 3.0f, 3.0f, 2.0f}, 10, greedy, {}).id, 11u);
  EXPECT_EQ(DrawFromShard({kNotANumber, -kInf, -5.0f}, 0, greedy, {}).id, 2u);
  EXPECT_EQ(Draw({{7, 2.0f}, {3, 1.0f}}, greedy, {}).id, 7u);
}

TEST(SamplingTest, NanIsNeverDrawnBesideANumber) {
  const SamplingFilter filter = {.temperature = 1};
  for (uint64_t position = 0; position < 20; ++position) {
    EXPECT_EQ(DrawFromShard({kNotANumber, -1.0f, kNotANumber}, 0, filter,
                            {0, 0, position})
                  .id,
              1u);
    EXPECT_EQ(Draw({{0, kNotANumber}, {1, -kInf}}, filter, {0, 0, position}).id,
              1u);
  }
  EXPECT_EQ(DrawFromShard({kNotANumber, kNotANumber}, 4, filter, {}).id, 4u);
}

TEST(SamplingTest, LogSumExpOfShardsMerges) {
  const std::vector<float> logits = RandomFloats(333, 7, -90, 90);
  for (const float temperature : {0.25f, 1.0f, 3.0f}) {
    double exact = 0;
    for (const float logit : logits) {
      exact += std::exp((static_cast<double>(logit) - 90) / temperature);
    }
    const double expected =
        std::log(exact) + 90 / static_cast<double>(temperature);
    const absl::Span<const float> span(logits);
    EXPECT_NEAR(ReduceLogSumExp(span, temperature).Value(), expected, 1e-11);
    LogSumExp merged = ReduceLogSumExp({}, temperature);
    for (size_t begin = 0; begin < 333; begin += 100) {
      merged =
          Merge(merged, ReduceLogSumExp(span.subspan(begin, 100), temperature));
    }
    EXPECT_NEAR(merged.Value(), expected, 1e-11);
  }
}

TEST(SamplingTest, LogSumExpOfNothingIsMinusInfinity) {
  const LogSumExp empty = ReduceLogSumExp({});
  EXPECT_EQ(empty.sum, 0);
  EXPECT_EQ(empty.max, -kInf);
  EXPECT_EQ(Merge(empty, empty).Value(), -kInf);
  EXPECT_EQ(ReduceLogSumExp({-kInf, kNotANumber}).Value(), -kInf);
  EXPECT_NEAR(ReduceLogSumExp({kNotANumber, 2.0f, -kInf}).Value(), 2, 1e-12);
  EXPECT_NEAR(Merge(empty, ReduceLogSumExp({1.0f})).Value(), 1, 1e-12);
}

TEST(SamplingTest, TopCandidatesAreThePrefixOfTheSortedShard) {
  std::vector<float> logits = RandomFloats(5000, 8, -3, 3);
  // Many ties, and values that are no numbers.
  for (float& logit : logits) logit = std::round(logit * 4) / 4;
  logits[17] = kNotANumber;
  logits[300] = kNotANumber;
  logits[44] = -kInf;
  logits[45] = kInf;
  std::vector<Candidate> sorted;
  for (uint32_t i = 0; i < 5000; ++i) sorted.push_back({1000 + i, logits[i]});
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const Candidate& a, const Candidate& b) {
                     if (std::isnan(a.logit)) return false;
                     return std::isnan(b.logit) || a.logit > b.logit;
                   });
  const std::vector<uint32_t> expected = Ids(sorted);
  EXPECT_EQ(expected.front(), 1045u);
  EXPECT_EQ(expected.back(), 1300u);
  ForEachIsa([&] {
    for (const size_t count : {0, 1, 2, 50, 499, 2100, 4999, 5000, 10000}) {
      const std::vector<uint32_t> top = Ids(TopCandidates(logits, 1000, count));
      const size_t size = std::min<size_t>(count, 5000);
      ASSERT_EQ(top.size(), size);
      EXPECT_TRUE(std::equal(top.begin(), top.end(), expected.begin()))
          << count;
    }
  });
  EXPECT_TRUE(TopCandidates({}, 0, 5).empty());
}

// Each filter in turn over the whole vocabulary, probabilities renormalised
// after each.
size_t NaiveSurvivors(const std::vector<Candidate>& sorted,
                      const SamplingFilter& filter) {
  std::vector<double> p;
  for (const Candidate& candidate : sorted) {
    p.push_back(std::exp(static_cast<double>(candidate.logit) /
                         static_cast<double>(filter.temperature)));
  }
  const auto keep = [&p](size_t count) {
    p.resize(std::max<size_t>(count, 1));
    double sum = 0;
    for (const double value : p) sum += value;
    for (double& value : p) value /= sum;
  };
  keep(p.size());
  if (filter.top_k > 0) keep(std::min<size_t>(filter.top_k, p.size()));
  if (filter.top_p > 0 && filter.top_p < 1) {
    size_t count = 0;
    double mass = 0;
    while (count < p.size() && mass < filter.top_p) mass += p[count++];
    keep(count);
  }
  if (filter.min_p > 0) {
    size_t count = 0;
    while (count < p.size() && p[count] >= filter.min_p * p[0]) ++count;
    keep(count);
  }
  return p.size();
}

TEST(SamplingTest, FiltersKeepWhatANaiveSequenceKeeps) {
  std::mt19937 generator(4);
  const size_t vocabulary = 60;
  int undecided = 0;
  for (int repeat = 0; repeat < 300; ++repeat) {
    std::vector<float> logits = RandomFloats(vocabulary, 100 + repeat, -6, 6);
    if (repeat % 3 == 0) {
      for (float& logit : logits) logit = std::round(logit);
    }
    const std::vector<Candidate> sorted = TopCandidates(logits, 0, vocabulary);
    // Odd fractions: no cut falls on a rounding error.
    const float top_ps[] = {0, 0.0371f, 0.3317f, 0.9143f, 0.9991f, 1};
    const float min_ps[] = {0, 0.00213f, 0.0517f, 0.7319f, 1.5f};
    const uint32_t top_ks[] = {0, 1, 5, 37, 60, 1000};
    const float temperatures[] = {0.31f, 1, 2.7f};
    const SamplingFilter filter = {.temperature = temperatures[generator() % 3],
                                   .top_k = top_ks[generator() % 6],
                                   .top_p = top_ps[generator() % 6],
                                   .min_p = min_ps[generator() % 5]};
    const double log_z = ReduceLogSumExp(logits, filter.temperature).Value();
    const size_t expected = NaiveSurvivors(sorted, filter);
    EXPECT_EQ(CountSurvivors(sorted, filter, log_z, /*complete=*/true),
              expected);
    // From a prefix: the same answer, or none yet.
    for (size_t size = 1; size <= vocabulary; ++size) {
      const size_t count =
          CountSurvivors(absl::MakeSpan(sorted).subspan(0, size), filter, log_z,
                         /*complete=*/false);
      if (count == 0) {
        ++undecided;
        // Enough candidates always decide.
        const bool enough_for_top_k = filter.top_k > 0 && size >= filter.top_k;
        EXPECT_FALSE(enough_for_top_k);
        EXPECT_TRUE(size <= expected || filter.top_k > 0);
      } else {
        EXPECT_EQ(count, expected) << size;
      }
    }
  }
  EXPECT_GT(undecided, 0);
}

TEST(SamplingTest, TopPKeepsTheTokenThatCrosses) {
  // Probabilities 1/2, 1/4, 1/8, 1/8.
  const float ln2 = std::log(2.0f);
  const std::vector<Candidate> sorted = {
      {0, 0}, {1, -ln2}, {2, -2 * ln2}, {3, -2 * ln2}};
  const double log_z = std::log(2.0);
  const auto survivors = [&](float top_p) {
    return CountSurvivors(sorted, {.temperature = 1, .top_p = top_p}, log_z,
                          true);
  };
  EXPECT_EQ(survivors(0.01f), 1u);
  EXPECT_EQ(survivors(0.49f), 1u);
  EXPECT_EQ(survivors(0.51f), 2u);
  EXPECT_EQ(survivors(0.74f), 2u);
  EXPECT_EQ(survivors(0.76f), 3u);
  EXPECT_EQ(survivors(0.99f), 4u);
}

TEST(SamplingTest, TopPSeesTheMassThatTopKLeft) {
  // Probabilities 0.4, 0.3, 0.2, 0.1; of the first two 0.571 and 0.429.
  std::vector<Candidate> sorted;
  for (const double p : {0.4, 0.3, 0.2, 0.1}) {
    sorted.push_back({static_cast<uint32_t>(sorted.size()),
                      static_cast<float>(std::log(p))});
  }
  SamplingFilter filter = {.temperature = 1, .top_p = 0.5f};
  EXPECT_EQ(CountSurvivors(sorted, filter, 0, true), 2u);
  filter.top_k = 2;
  EXPECT_EQ(CountSurvivors(sorted, filter, 0, true), 1u);
}

TEST(SamplingTest, NoFilterKeepsEverything) {
  const std::vector<Candidate> sorted = {{0, 1}, {1, 0}};
  const SamplingFilter filter = {.temperature = 1};
  EXPECT_EQ(CountSurvivors(sorted, filter, 1.3133, true), 2u);
  EXPECT_EQ(CountSurvivors(sorted, filter, 1.3133, false), 0u);
  EXPECT_EQ(CountSurvivors(sorted, {}, 1.3133, false), 1u);
  EXPECT_EQ(CountSurvivors({}, filter, 0, true), 0u);
}

TEST(SamplingTest, BrokenLogitsLeaveAtLeastOneToken) {
  const SamplingFilter filter = {
      .temperature = 1, .top_k = 2, .top_p = 0.5f, .min_p = 0.1f};
  for (const float value : {kNotANumber, kInf, -kInf}) {
    const std::vector<Candidate> sorted = {
        {0, value}, {1, value}, {2, kNotANumber}};
    for (const double log_z : {0.0, double{kInf}, double{kNotANumber}}) {
      EXPECT_GE(CountSurvivors(sorted, filter, log_z, true), 1u);
      EXPECT_GE(CountSurvivors(sorted, {.temperature = 1, .top_p = 0.5f}, log_z,
                               true),
                1u);
    }
  }
}

}  // namespace
}  // namespace ringfleet::kernels
