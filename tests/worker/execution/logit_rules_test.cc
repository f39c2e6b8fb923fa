// SPDX-License-Identifier: Apache-2.0
#include "worker/execution/logit_rules.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "tests/testing/memory_communicator.h"
#include "tests/testing/rank_world.h"
#include "worker/execution/sampler.h"

namespace ringfleet::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr float kForbidden = -std::numeric_limits<float>::infinity();

v1::Admission AdmissionOf(const std::vector<uint32_t>& prompt,
                          const std::vector<uint32_t>& committed = {}) {
  v1::Admission admission;
  admission.mutable_prompt_ids()->Add(prompt.begin(), prompt.end());
  admission.mutable_committed_ids()->Add(committed.begin(), committed.end());
  return admission;
}

// The logits of ids [0, 6), of which a rank has [begin, end).
std::vector<float> Applied(const LogitRules& rules, int begin = 0,
                           int end = 6) {
  std::vector<float> logits = {1, -1, 2, -2, 3, -3};
  logits.resize(static_cast<size_t>(end));
  logits.erase(logits.begin(), logits.begin() + begin);
  rules.Apply({.begin = begin, .end = end}, absl::MakeSpan(logits));
  return logits;
}

TEST(LogitRulesTest, NothingIsActiveByDefault) {
  EXPECT_FALSE(LogitRules().active());
  LogitRules rules(AdmissionOf({1, 2}));
  rules.Add(3);
  EXPECT_FALSE(rules.active());
  EXPECT_THAT(Applied(rules), ElementsAre(1, -1, 2, -2, 3, -3));
}

TEST(LogitRulesTest, RepetitionCountsPromptAndDrawnIds) {
  v1::Admission admission = AdmissionOf({0, 1, 1}, {2});
  admission.mutable_sampling()->set_repetition_penalty(2);
  LogitRules rules(admission);
  EXPECT_TRUE(rules.active());
  rules.Add(3);
  rules.Add(3);
  EXPECT_THAT(Applied(rules), ElementsAre(0.5, -2, 1, -4, 3, -3));
}

TEST(LogitRulesTest, PresenceAndFrequencyCountDrawnIdsOnly) {
  v1::Admission admission = AdmissionOf({0, 5}, {2, 2});
  admission.mutable_sampling()->set_presence_penalty(0.5);
  admission.mutable_sampling()->set_frequency_penalty(0.25);
  LogitRules rules(admission);
  rules.Add(4);
  EXPECT_THAT(Applied(rules), ElementsAre(1, -1, 1, -2, 2.25, -3));
  // A rank changes its own ids.
  EXPECT_THAT(Applied(rules, 3, 5), ElementsAre(-2, 2.25));
}

TEST(LogitRulesTest, BiasComesBeforePenalties) {
  v1::Admission admission = AdmissionOf({1});
  admission.mutable_sampling()->set_repetition_penalty(2);
  for (const auto& [id, value] : {std::pair(1, 5.0f), std::pair(3, 1.0f)}) {
    v1::LogitBias* bias = admission.mutable_sampling()->add_logit_bias();
    bias->set_id(id);
    bias->set_bias(value);
  }
  EXPECT_THAT(Applied(LogitRules(admission)), ElementsAre(1, 2, 2, -1, 3, -3));
}

TEST(LogitRulesTest, StopIdsWaitForTheLeastTokens) {
  v1::Admission admission = AdmissionOf({0}, {5});
  admission.add_stop_ids(2);
  admission.add_stop_ids(4);
  admission.mutable_sampling()->set_min_tokens(2);
  LogitRules rules(admission);
  EXPECT_THAT(Applied(rules),
              ElementsAre(1, -1, kForbidden, -2, kForbidden, -3));
  rules.Add(0);
  EXPECT_FALSE(rules.active());
  EXPECT_THAT(Applied(rules), ElementsAre(1, -1, 2, -2, 3, -3));
}

TEST(LogitRulesTest, BadWordsEndBehindTheirBeginning) {
  v1::Admission admission = AdmissionOf({0, 1, 2}, {1});
  const auto word = [&admission](const std::vector<uint32_t>& ids) {
    admission.mutable_sampling()->add_bad_words()->mutable_ids()->Add(
        ids.begin(), ids.end());
  };
  word({5});
  word({1, 2, 3});
  LogitRules rules(admission);
  EXPECT_THAT(Applied(rules), ElementsAre(1, -1, 2, -2, 3, kForbidden));
  rules.Add(2);
  EXPECT_THAT(Applied(rules), ElementsAre(1, -1, 2, kForbidden, 3, kForbidden));
  rules.Add(4);
  EXPECT_THAT(Applied(rules), ElementsAre(1, -1, 2, -2, 3, kForbidden));
}

TEST(LogitRulesTest, FieldsOutOfRangeAreNamed) {
  const auto message =
      [](const std::function<void(v1::Admission*)>& change) -> std::string {
    v1::Admission admission = AdmissionOf({1});
    change(&admission);
    const absl::Status status = LogitRules::Check(admission, 100);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_TRUE(LogitRules::Check(AdmissionOf({1}), 100).ok());
  EXPECT_THAT(message([](v1::Admission* a) {
                a->mutable_sampling()->set_repetition_penalty(-1);
              }),
              HasSubstr("repetition_penalty -1"));
  EXPECT_THAT(message([](v1::Admission* a) {
                a->mutable_sampling()->set_frequency_penalty(
                    std::numeric_limits<float>::quiet_NaN());
              }),
              HasSubstr("frequency_penalty nan"));
  EXPECT_THAT(message([](v1::Admission* a) {
                a->mutable_sampling()->add_logit_bias()->set_id(100);
              }),
              HasSubstr("logit_bias of id 100, want below 100"));
  EXPECT_THAT(
      message([](v1::Admission* a) { a->mutable_sampling()->add_bad_words(); }),
      HasSubstr("an empty word"));
  EXPECT_THAT(message([](v1::Admission* a) {
                a->mutable_sampling()->add_bad_words()->add_ids(100);
              }),
              HasSubstr("bad_words: id 100, want below 100"));
  EXPECT_THAT(message([](v1::Admission* a) { a->set_top_logprobs(101); }),
              HasSubstr("top_logprobs 101, want at most 100"));
}

struct Drawn {
  DrawnToken token;
  std::vector<TokenLogprob> top;
};

// Draws from rows of one vocabulary on `size` ranks, which must agree.
std::vector<Drawn> DrawOn(int size, const std::vector<DrawRequest>& requests,
                          const std::vector<std::vector<float>>& rows) {
  const int vocab_size = static_cast<int>(rows[0].size());
  ringfleet::testing::MemoryWorld world(size);
  std::vector<std::vector<Drawn>> results(size);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      ringfleet::testing::MemoryCommunicator communicator(&world, rank);
      TimedCommunicator timed(&communicator, absl::Seconds(60));
      const cluster::Range vocab = cluster::SplitRange(vocab_size, size, rank);
      std::vector<float> logits;
      for (const std::vector<float>& row : rows) {
        logits.insert(logits.end(), row.begin() + vocab.begin,
                      row.begin() + vocab.end);
      }
      kernels::ThreadPool pool(1);
      TokenDrawer drawer(&timed, &pool);
      const auto drawn =
          drawer.Draw(requests, logits.data(), vocab, vocab_size);
      ASSERT_TRUE(drawn.ok()) << drawn.status();
      for (const DrawnToken& token : *drawn) {
        results[rank].push_back({token, {token.top.begin(), token.top.end()}});
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::vector<Drawn>& result : results) {
    EXPECT_EQ(result.size(), rows.size());
    for (size_t i = 0; i < std::min(result.size(), rows.size()); ++i) {
      EXPECT_EQ(result[i].token.id, results[0][i].token.id);
      EXPECT_EQ(result[i].token.logprob, results[0][i].token.logprob);
      EXPECT_EQ(result[i].token.forbidden, results[0][i].token.forbidden);
    }
  }
  return results[0];
}

// Rules change what is drawn as if the logits were so; what is told of the
// tokens is the model's.
TEST(RuledDrawTest, TheDrawIsThatOfChangedLogitsAndTheProbabilityTheModels) {
  constexpr int kVocab = 300;
  std::vector<float> logits(kVocab);
  for (int id = 0; id < kVocab; ++id) {
    logits[id] = static_cast<float>(3 * std::sin(id * 12.9898));
  }
  v1::Admission admission = AdmissionOf({7, 8}, {20, 20, 21});
  v1::SamplingParams& sampling = *admission.mutable_sampling();
  sampling.set_repetition_penalty(1.3f);
  sampling.set_presence_penalty(0.4f);
  sampling.set_frequency_penalty(0.3f);
  for (uint32_t id = 0; id < 100; ++id) sampling.add_bad_words()->add_ids(id);
  sampling.add_logit_bias()->set_id(150);
  sampling.mutable_logit_bias(0)->set_bias(4);
  const LogitRules rules(admission);
  std::vector<float> changed = logits;
  rules.Apply({.begin = 0, .end = kVocab}, absl::MakeSpan(changed));
  double sum = 0;
  for (const float logit : logits) sum += std::exp(double{logit});
  for (const kernels::SamplingFilter& filter :
       {kernels::SamplingFilter{}, kernels::SamplingFilter{.temperature = 0.7},
        kernels::SamplingFilter{.temperature = 1, .top_k = 40, .top_p = 0.9},
        kernels::SamplingFilter{.temperature = 1, .top_p = 0.99}}) {
    std::vector<DrawRequest> ruled;
    std::vector<DrawRequest> plain;
    std::vector<std::vector<float>> raw_rows;
    std::vector<std::vector<float>> changed_rows;
    for (uint64_t position = 0; position < 20; ++position) {
      plain.push_back({.filter = filter, .key = {.position = position}});
      ruled.push_back(plain.back());
      raw_rows.push_back(logits);
      changed_rows.push_back(changed);
      // Rows without rules lie between those with rules.
      if (position % 3 == 0) {
        changed_rows.back() = logits;
      } else {
        ruled.back().rules = &rules;
      }
      ruled.back().top = 3;
    }
    for (const int size : {1, 3, 4}) {
      const std::vector<Drawn> want = DrawOn(size, plain, changed_rows);
      const std::vector<Drawn> got = DrawOn(size, ruled, raw_rows);
      for (size_t i = 0; i < got.size(); ++i) {
        EXPECT_EQ(got[i].token.id, want[i].token.id) << "row " << i;
        EXPECT_NEAR(got[i].token.logprob,
                    logits[got[i].token.id] - std::log(sum), 1e-5);
        ASSERT_EQ(got[i].top.size(), 3u);
        EXPECT_NEAR(
            got[i].top[0].logprob,
            *std::max_element(logits.begin(), logits.end()) - std::log(sum),
            1e-5);
        for (const TokenLogprob& likely : got[i].top) {
          if (likely.id == got[i].token.id) {
            EXPECT_EQ(likely.logprob, got[i].token.logprob);
          }
        }
      }
    }
  }
}

TEST(RuledDrawTest, ARowWithoutAnAllowedIdIsTold) {
  v1::Admission admission = AdmissionOf({1});
  for (uint32_t id = 0; id < 8; ++id) {
    admission.mutable_sampling()->add_bad_words()->add_ids(id);
  }
  const LogitRules rules(admission);
  const std::vector<float> row(8, 1.0f);
  for (const kernels::SamplingFilter& filter :
       {kernels::SamplingFilter{}, kernels::SamplingFilter{.temperature = 1},
        kernels::SamplingFilter{.temperature = 1, .top_k = 3}}) {
    for (const int size : {1, 3}) {
      const std::vector<Drawn> drawn = DrawOn(
          size, {{.filter = filter, .rules = &rules}, {.filter = filter}},
          {row, row});
      EXPECT_TRUE(drawn[0].token.forbidden);
      EXPECT_FALSE(drawn[1].token.forbidden);
      EXPECT_NEAR(drawn[1].token.logprob, -std::log(8.0), 1e-6);
    }
  }
}

}  // namespace
}  // namespace ringfleet::worker
