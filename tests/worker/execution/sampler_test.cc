// SPDX-License-Identifier: Apache-2.0
#include "worker/execution/sampler.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "kernels/thread_pool.h"
#include "tests/testing/memory_communicator.h"
#include "tests/testing/rank_world.h"

namespace ringfleet::worker {
namespace {

using kernels::Candidate;
using kernels::DrawKey;
using kernels::SamplingFilter;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

struct Row {
  DrawRequest request;
  std::vector<float> logits;  // Of the whole vocabulary.
};

// Calls `use` on every rank of a world of threads.
void OnEveryRank(int size,
                 const std::function<void(int, TimedCommunicator&)>& use) {
  ringfleet::testing::MemoryWorld world(size);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&world, &use, rank] {
      ringfleet::testing::MemoryCommunicator communicator(&world, rank);
      TimedCommunicator timed(&communicator, absl::Seconds(60));
      use(rank, timed);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// Each rank's result, over rows of the same vocabulary.
std::vector<absl::StatusOr<std::vector<DrawnToken>>> TryDraw(
    int size, const std::vector<Row>& rows) {
  const int vocab_size = static_cast<int>(rows[0].logits.size());
  std::vector<absl::StatusOr<std::vector<DrawnToken>>> results(size);
  OnEveryRank(size, [&](int rank, TimedCommunicator& communicator) {
    const cluster::Range vocab = cluster::SplitRange(vocab_size, size, rank);
    std::vector<DrawRequest> requests;
    std::vector<float> logits;
    for (const Row& row : rows) {
      requests.push_back(row.request);
      logits.insert(logits.end(), row.logits.begin() + vocab.begin,
                    row.logits.begin() + vocab.end);
    }
    kernels::ThreadPool pool(2);
    TokenDrawer drawer(&communicator, &pool);
    const auto drawn = drawer.Draw(requests, logits.data(), vocab, vocab_size);
    if (drawn.ok()) {
      results[rank] = std::vector<DrawnToken>(drawn->begin(), drawn->end());
    } else {
      results[rank] = drawn.status();
    }
  });
  return results;
}

// What all ranks agree on.
std::vector<DrawnToken> MustDraw(int size, const std::vector<Row>& rows) {
  const auto results = TryDraw(size, rows);
  for (const auto& result : results) {
    EXPECT_TRUE(result.ok()) << result.status();
    if (!result.ok() || !results[0].ok()) return {};
    for (size_t i = 0; i < rows.size(); ++i) {
      EXPECT_EQ((*result)[i].id, (*results[0])[i].id);
      EXPECT_EQ((*result)[i].logprob, (*results[0])[i].logprob);
    }
  }
  return *results[0];
}

// The filters' definition over the whole vocabulary, in float64, each on the
// renormalised survivors of the one before. Ids, likeliest first.
std::vector<uint32_t> NaiveSurvivors(const Row& row) {
  const SamplingFilter& filter = row.request.filter;
  const size_t usable =
      row.request.usable_vocab == 0
          ? row.logits.size()
          : std::min<size_t>(row.request.usable_vocab, row.logits.size());
  std::vector<uint32_t> ids(usable);
  for (size_t i = 0; i < usable; ++i) ids[i] = static_cast<uint32_t>(i);
  std::stable_sort(ids.begin(), ids.end(), [&](uint32_t a, uint32_t b) {
    return row.logits[a] > row.logits[b];
  });
  const auto probabilities = [&] {
    std::vector<double> p;
    double sum = 0;
    for (uint32_t id : ids) {
      p.push_back(
          std::exp((static_cast<double>(row.logits[id]) - row.logits[ids[0]]) /
                   filter.temperature));
      sum += p.back();
    }
    for (double& value : p) value /= sum;
    return p;
  };
  if (filter.top_k > 0 && filter.top_k < ids.size()) ids.resize(filter.top_k);
  if (filter.top_p > 0 && filter.top_p < 1) {
    const std::vector<double> p = probabilities();
    double mass = 0;
    size_t kept = 0;
    while (kept < ids.size() && mass < filter.top_p) mass += p[kept++];
    ids.resize(kept);
  }
  if (filter.min_p > 0) {
    const std::vector<double> p = probabilities();
    size_t kept = 1;
    while (kept < ids.size() && p[kept] >= filter.min_p * p[0]) ++kept;
    ids.resize(kept);
  }
  return ids;
}

uint32_t NaiveDraw(const Row& row) {
  const SamplingFilter& filter = row.request.filter;
  uint32_t best = 0;
  double best_score = -std::numeric_limits<double>::infinity();
  for (uint32_t id : NaiveSurvivors(row)) {
    const double score =
        static_cast<double>(row.logits[id]) / filter.temperature +
        kernels::GumbelNoise(row.request.key, id);
    if (score > best_score) {
      best_score = score;
      best = id;
    }
  }
  return best;
}

double NaiveLogprob(const std::vector<float>& logits, uint32_t id) {
  double sum = 0;
  for (float logit : logits) sum += std::exp(static_cast<double>(logit));
  return logits[id] - std::log(sum);
}

std::vector<float> NormalLogits(size_t size, double deviation, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<double> normal(0, deviation);
  std::vector<float> logits(size);
  for (float& logit : logits) logit = static_cast<float>(normal(random));
  return logits;
}

TEST(SamplerTest, DrawsTheNaiveTokenAtEveryWorldSize) {
  const std::vector<SamplingFilter> filters = {
      {.temperature = 1},
      {.temperature = 0.6, .top_p = 0.95},
      {.temperature = 1.5, .top_k = 40},
      {.temperature = 1, .top_k = 1},
      {.temperature = 0.8, .min_p = 0.05},
      {.temperature = 1.2, .top_k = 300, .top_p = 0.9, .min_p = 0.01},
      {.temperature = 0.02, .top_p = 0.7},
      {.temperature = 3, .top_p = 0.999},
      {.temperature = 1, .top_p = 1e-6},
      {.temperature = 1, .min_p = 1},
      {.temperature = 5, .top_k = 5000, .top_p = 0.5},
  };
  std::vector<Row> rows;
  for (const SamplingFilter& filter : filters) {
    for (uint64_t i = 0; i < 12; ++i) {
      for (const uint32_t usable : {0u, 1100u, 5000u}) {
        rows.push_back(
            {.request = {.filter = filter,
                         .key = {.seed = 99 + i, .sample = 3, .position = i},
                         .usable_vocab = usable},
             .logits = NormalLogits(1301, i % 3 == 0 ? 0.1 : 3.0, i)});
      }
    }
  }
  for (int size = 1; size <= 8; ++size) {
    SCOPED_TRACE(::testing::Message() << "world size " << size);
    const std::vector<DrawnToken> drawn = MustDraw(size, rows);
    ASSERT_EQ(drawn.size(), rows.size());
    for (size_t i = 0; i < rows.size(); ++i) {
      EXPECT_EQ(drawn[i].id, NaiveDraw(rows[i])) << "row " << i;
      EXPECT_NEAR(drawn[i].logprob, NaiveLogprob(rows[i].logits, drawn[i].id),
                  2e-6);
    }
  }
}

// Rows that are cut into parts, the last of them short.
TEST(SamplerTest, DrawsTheNaiveTokenFromALargeVocabulary) {
  std::vector<Row> rows;
  for (const SamplingFilter& filter :
       {SamplingFilter{}, SamplingFilter{.temperature = 1},
        SamplingFilter{.temperature = 0.6, .top_p = 0.95},
        SamplingFilter{.temperature = 1, .top_k = 700}}) {
    for (uint64_t i = 0; i < 4; ++i) {
      for (const uint32_t usable : {0u, 16000u, 32768u, 36000u}) {
        rows.push_back({.request = {.filter = filter,
                                    .key = {.seed = i, .position = i},
                                    .usable_vocab = usable},
                        .logits = NormalLogits(40000, 1.0 + 3.0 * i, i)});
      }
    }
  }
  for (int size : {1, 2}) {
    const std::vector<DrawnToken> drawn = MustDraw(size, rows);
    ASSERT_EQ(drawn.size(), rows.size());
    for (size_t i = 0; i < rows.size(); ++i) {
      const Row& row = rows[i];
      EXPECT_EQ(drawn[i].id, row.request.filter.greedy()
                                 ? NaiveSurvivors(row).front()
                                 : NaiveDraw(row))
          << "row " << i;
      EXPECT_NEAR(drawn[i].logprob, NaiveLogprob(row.logits, drawn[i].id),
                  4e-6);
    }
  }
}

// 2000 equal logits: a nucleus of 0.8337 holds 1668 of them, more than the
// first exchange brings. The nucleus keeps the lower ids.
TEST(SamplerTest, WidensTheExchangeUntilAFlatNucleusIsDecided) {
  std::vector<Row> rows;
  for (uint64_t i = 0; i < 200; ++i) {
    rows.push_back({.request = {.filter = {.temperature = 1, .top_p = 0.8337},
                                .key = {.seed = 5, .position = i}},
                    .logits = std::vector<float>(2000, 1.25f)});
  }
  uint32_t highest = 0;
  for (int size : {1, 3, 8}) {
    const std::vector<DrawnToken> drawn = MustDraw(size, rows);
    ASSERT_EQ(drawn.size(), rows.size());
    for (size_t i = 0; i < rows.size(); ++i) {
      EXPECT_EQ(drawn[i].id, NaiveDraw(rows[i]));
      highest = std::max(highest, drawn[i].id);
    }
  }
  EXPECT_LT(highest, 1668u);
  EXPECT_GT(highest, 1200u);  // Not only from the first candidates.
}

// At this temperature a logit near 30 becomes 3e5, where float32 numbers lie
// 0.03 apart: more than the nucleus may be off.
TEST(SamplerTest, LowTemperaturesKeepTheNucleusExact) {
  std::vector<Row> rows;
  for (int i = 0; i < 200; ++i) {
    std::vector<float> logits(50, 0.0f);
    logits[20] = 30 + 0.01f * static_cast<float>(i);
    logits[40] = logits[20] - 1.9e-5f;  // p about 0.547.
    rows.push_back(
        {.request = {.filter = {.temperature = 1e-4f, .top_p = 0.547f},
                     .key = {.seed = 7, .position = static_cast<uint64_t>(i)}},
         .logits = logits});
  }
  for (int size : {1, 2, 3}) {
    const std::vector<DrawnToken> drawn = MustDraw(size, rows);
    ASSERT_EQ(drawn.size(), rows.size());
    for (size_t i = 0; i < rows.size(); ++i) {
      EXPECT_EQ(drawn[i].id, NaiveDraw(rows[i])) << "row " << i;
    }
  }
}

// Tempered, these lie where exp() in float64 is 0.
TEST(SamplerTest, LogitsFarBelowZeroAreDrawnAlike) {
  std::vector<Row> rows;
  for (const SamplingFilter& filter :
       {SamplingFilter{}, SamplingFilter{.temperature = 1},
        SamplingFilter{.temperature = 0.01, .top_p = 0.9},
        SamplingFilter{.temperature = 1, .top_p = 0.9}}) {
    for (uint64_t i = 0; i < 40; ++i) {
      std::vector<float> logits = NormalLogits(500, 1, i);
      for (float& logit : logits) logit = filter.temperature * logit - 1000;
      rows.push_back({.request = {.filter = filter, .key = {.position = i}},
                      .logits = logits});
      // Greedy, too, is decided by one logit.
      if (filter.greedy()) rows.back().logits[i] = -998;
    }
  }
  for (int size : {1, 2, 5}) {
    const std::vector<DrawnToken> drawn = MustDraw(size, rows);
    ASSERT_EQ(drawn.size(), rows.size());
    for (size_t i = 0; i < rows.size(); ++i) {
      const Row& row = rows[i];
      EXPECT_EQ(drawn[i].id, row.request.filter.greedy() ? i : NaiveDraw(row))
          << "row " << i;
      std::vector<float> shifted = row.logits;
      for (float& logit : shifted) logit += 1000;
      EXPECT_NEAR(drawn[i].logprob, NaiveLogprob(shifted, drawn[i].id), 1e-4);
    }
  }
}

TEST(SamplerTest, GreedyTiesKeepTheLowerId) {
  std::vector<float> logits(64, -1.0f);
  for (uint32_t id : {13u, 30u, 31u, 63u}) logits[id] = 2.0f;
  for (int size = 1; size <= 8; ++size) {
    const auto drawn =
        MustDraw(size, {{.request = {}, .logits = logits},
                        {.request = {.usable_vocab = 13}, .logits = logits}});
    ASSERT_EQ(drawn.size(), 2u);
    EXPECT_EQ(drawn[0].id, 13u);
    EXPECT_EQ(drawn[1].id, 0u);  // All that is usable is equal.
  }
}

TEST(SamplerTest, UnusableIdsAreNeverDrawnButCountInLogprobs) {
  std::vector<float> logits(40, 0.0f);
  logits[39] = 20;
  for (const SamplingFilter& filter :
       {SamplingFilter{}, SamplingFilter{.temperature = 1},
        SamplingFilter{.temperature = 1, .top_p = 0.9},
        SamplingFilter{.temperature = 1, .top_k = 3}}) {
    std::vector<Row> rows;
    for (uint64_t i = 0; i < 50; ++i) {
      rows.push_back({.request = {.filter = filter,
                                  .key = {.seed = 1, .position = i},
                                  .usable_vocab = 10},
                      .logits = logits});
    }
    for (int size : {1, 4, 7}) {
      for (const DrawnToken& token : MustDraw(size, rows)) {
        EXPECT_LT(token.id, 10u);
        EXPECT_NEAR(token.logprob, -20, 1e-5);
      }
    }
  }
}

// Pearson's test at fixed seeds, so it passes always or never.
TEST(SamplerTest, FrequenciesFollowTheFilteredDistribution) {
  constexpr int kDraws = 8000;
  const std::vector<float> logits = NormalLogits(12, 1, 4);
  for (const SamplingFilter& filter :
       {SamplingFilter{.temperature = 1}, SamplingFilter{.temperature = 2},
        SamplingFilter{.temperature = 1.5, .top_k = 7},
        SamplingFilter{.temperature = 1, .top_p = 0.9},
        SamplingFilter{.temperature = 1, .min_p = 0.2}}) {
    std::vector<Row> rows;
    for (uint64_t i = 0; i < kDraws; ++i) {
      rows.push_back(
          {.request = {.filter = filter, .key = {.seed = 1234, .position = i}},
           .logits = logits});
    }
    std::vector<int> counts(logits.size());
    for (const DrawnToken& token : MustDraw(2, rows)) ++counts[token.id];
    const std::vector<uint32_t> survivors = NaiveSurvivors(rows[0]);
    double sum = 0;
    for (uint32_t id : survivors) {
      sum += std::exp(logits[id] / filter.temperature);
    }
    double chi_square = 0;
    int counted = 0;
    for (uint32_t id : survivors) {
      const double expected =
          kDraws * std::exp(logits[id] / filter.temperature) / sum;
      chi_square +=
          (counts[id] - expected) * (counts[id] - expected) / expected;
      counted += counts[id];
    }
    EXPECT_EQ(counted, kDraws) << "a token that the filters cut was drawn";
    // Mean df, deviation sqrt(2 df): four deviations.
    const double df = static_cast<double>(survivors.size()) - 1;
    EXPECT_LT(chi_square, df + 4 * std::sqrt(2 * df)) << survivors.size();
  }
}

TEST(SamplerTest, SeedSampleAndPositionEachChangeTheDraw) {
  const std::vector<float> logits(1000, 0.0f);
  const SamplingFilter filter = {.temperature = 1};
  std::vector<Row> rows;
  for (const DrawKey& key :
       {DrawKey{}, DrawKey{.seed = 1}, DrawKey{.seed = uint64_t{1} << 40},
        DrawKey{.sample = 1}, DrawKey{.position = 1}}) {
    rows.push_back(
        {.request = {.filter = filter, .key = key}, .logits = logits});
  }
  std::vector<uint32_t> ids;
  for (const DrawnToken& token : MustDraw(3, rows)) ids.push_back(token.id);
  std::sort(ids.begin(), ids.end());
  EXPECT_EQ(std::unique(ids.begin(), ids.end()), ids.end());
}

TEST(SamplerTest, RowsOfOnlyNanAreToldOnEveryRankAndChangeNoOther) {
  const std::vector<float> good = NormalLogits(600, 1, 2);
  const std::vector<float> bad(600, kNan);
  for (const SamplingFilter& filter :
       {SamplingFilter{}, SamplingFilter{.temperature = 1},
        SamplingFilter{.temperature = 1, .top_k = 5},
        SamplingFilter{.temperature = 1, .top_p = 0.9},
        SamplingFilter{.temperature = 1, .min_p = 0.1}}) {
    for (int size : {1, 2, 5}) {
      const auto results =
          TryDraw(size, {{.request = {.filter = filter}, .logits = good},
                         {.request = {.filter = filter}, .logits = bad}});
      const DrawnToken alone =
          MustDraw(size, {{.request = {.filter = filter}, .logits = good}})[0];
      for (const auto& result : results) {
        SCOPED_TRACE(absl::StrCat("world size ", size, ", temperature ",
                                  filter.temperature, ", top_k ", filter.top_k,
                                  ", top_p ", filter.top_p, ", min_p ",
                                  filter.min_p));
        ASSERT_TRUE(result.ok()) << result.status();
        ASSERT_EQ(result->size(), 2u);
        EXPECT_FALSE((*result)[0].nan);
        EXPECT_EQ((*result)[0].id, alone.id);
        EXPECT_EQ((*result)[0].logprob, alone.logprob);
        EXPECT_TRUE((*result)[1].nan);
      }
    }
  }
}

TEST(SamplerTest, SingleNanLogitsAreNeverDrawn) {
  std::vector<float> logits(30, kNan);
  logits[7] = logits[22] = -3;
  std::vector<Row> rows;
  for (const SamplingFilter& filter :
       {SamplingFilter{}, SamplingFilter{.temperature = 1},
        SamplingFilter{.temperature = 1, .top_k = 5},
        SamplingFilter{.temperature = 1, .top_p = 0.9},
        SamplingFilter{.temperature = 1, .min_p = 0.1}}) {
    for (uint64_t i = 0; i < 20; ++i) {
      rows.push_back({.request = {.filter = filter, .key = {.position = i}},
                      .logits = logits});
    }
  }
  for (int size : {1, 4}) {
    for (const DrawnToken& token : MustDraw(size, rows)) {
      EXPECT_TRUE(token.id == 7 || token.id == 22) << token.id;
      EXPECT_NEAR(token.logprob, -std::log(2.0), 1e-6);
    }
  }
}

TEST(SamplerTest, TopCandidatesOverRanksAreThoseOfTheWholeVocabulary) {
  std::vector<std::vector<float>> rows;
  for (uint64_t seed = 8; seed < 11; ++seed) {
    rows.push_back(NormalLogits(101, 1, seed));
    rows.back()[50] = rows.back()[3] = rows.back()[99];
  }
  for (int size = 1; size <= 8; ++size) {
    for (const size_t count : {0, 1, 8, 60, 101, 500}) {
      OnEveryRank(size, [&](int rank, TimedCommunicator& communicator) {
        const cluster::Range vocab = cluster::SplitRange(101, size, rank);
        std::vector<absl::Span<const float>> shards;
        for (const std::vector<float>& row : rows) {
          shards.push_back(
              absl::MakeConstSpan(row).subspan(vocab.begin, vocab.size()));
        }
        kernels::ThreadPool pool(2);
        const auto tops =
            GatherTopCandidates(shards, vocab, count, pool, communicator);
        ASSERT_TRUE(tops.ok()) << tops.status();
        ASSERT_EQ(tops->size(), rows.size());
        for (size_t row = 0; row < rows.size(); ++row) {
          const std::vector<Candidate>& top = (*tops)[row];
          const std::vector<Candidate> expected =
              kernels::TopCandidates(rows[row], 0, count);
          ASSERT_EQ(top.size(), expected.size());
          for (size_t i = 0; i < expected.size(); ++i) {
            EXPECT_EQ(top[i].id, expected[i].id);
            EXPECT_EQ(top[i].logit, expected[i].logit);
          }
        }
      });
    }
  }
}

// Rank 1 speaks of ids that there are not.
TEST(SamplerTest, AnIdBeyondTheVocabularyIsDataLossOnEveryRank) {
  constexpr int kVocab = 100;
  for (const float top_p : {1.0f, 0.9f}) {
    OnEveryRank(2, [&](int rank, TimedCommunicator& communicator) {
      DrawRequest request;
      request.filter = {.temperature = 1, .top_p = top_p};
      const std::vector<float> logits(kVocab / 2, rank == 0 ? 0.0f : 9.0f);
      kernels::ThreadPool pool(1);
      TokenDrawer drawer(&communicator, &pool);
      const int begin = rank == 0 ? 0 : 1000;
      const auto drawn =
          drawer.Draw({&request, 1}, logits.data(),
                      {.begin = begin, .end = begin + kVocab / 2}, kVocab);
      EXPECT_EQ(drawn.status().code(), absl::StatusCode::kDataLoss)
          << drawn.status();
    });
  }
}

TEST(SamplerTest, SeededGenerationIsTheSameAtEveryWorldSize) {
  const std::vector<uint32_t> prompt = {0, 17, 900, 2047, 5};
  v1::SamplingParams sampling;
  sampling.set_temperature(0.9f);
  sampling.set_top_p(0.95f);
  sampling.set_seed(0x123456789abcdef);
  std::vector<uint32_t> expected;
  for (int size = 1; size <= 8; ++size) {
    ringfleet::testing::RankWorld world(
        RINGFLEET_TEST_MODELS "/tiny-v3",
        {.mesh = {.tensor = size}, .context = 64});
    const auto generated =
        ringfleet::testing::GenerateTokens(world, prompt, sampling, 12, 4);
    if (size == 1) expected = generated.ids;
    EXPECT_EQ(generated.ids, expected) << "world size " << size;
  }
  EXPECT_EQ(expected.size(), 12u);
}

}  // namespace
}  // namespace ringfleet::worker
