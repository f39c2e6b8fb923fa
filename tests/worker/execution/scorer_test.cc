// SPDX-License-Identifier: Apache-2.0
#include "worker/execution/scorer.h"

#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/testing/bundled_model.h"
#include "tests/testing/rank_world.h"

namespace ringfleet::worker {
namespace {

using kernels::WeightForm;
using ringfleet::testing::BundledModel;
using ringfleet::testing::RankWorld;
using ringfleet::testing::ScorePrompt;

std::vector<uint32_t> RandomIds(int count) {
  std::mt19937_64 random(11);
  std::vector<uint32_t> ids(count);
  for (uint32_t& id : ids) id = static_cast<uint32_t>(random() % 2048);
  return ids;
}

// The two forms of attention, which spans of different lengths choose between,
// round differently: some 1e-6 of logits near 1.
TEST(ScorerTest, SpansOfAnyLengthGiveTheSameScores) {
  const std::vector<uint32_t> ids = RandomIds(133);
  RankWorld world(BundledModel("tiny-v3"), {.mesh = {.tensor = 2}});
  v1::ScoreOptions options;
  options.set_top(5);
  options.set_hidden(true);
  options.set_mtp(true);
  const v1::ScoreResult whole = ScorePrompt(world, ids, options, 512);
  ASSERT_EQ(whole.logprobs_size(), 132);
  ASSERT_EQ(whole.mtp_top_ids_size(), 132);
  ASSERT_EQ(whole.top_ids_size(), 5);
  ASSERT_EQ(whole.hidden_states_size(), world.spec().num_hidden_layers + 1);
  for (int span : {1, 7, 128, 132}) {
    SCOPED_TRACE(::testing::Message() << "spans of " << span);
    const v1::ScoreResult score = ScorePrompt(world, ids, options, span);
    ASSERT_EQ(score.logprobs_size(), 132);
    ASSERT_EQ(score.mtp_top_ids_size(), 132);
    ASSERT_EQ(score.top_ids_size(), 5);
    ASSERT_EQ(score.hidden_states_size(), whole.hidden_states_size());
    for (int i = 0; i < 132; ++i) {
      EXPECT_NEAR(score.logprobs(i), whole.logprobs(i), 5e-5) << i;
      EXPECT_NEAR(score.mtp_top_logprobs(i), whole.mtp_top_logprobs(i), 5e-5)
          << i;
    }
    for (int i = 0; i < 5; ++i) {
      EXPECT_EQ(score.top_ids(i), whole.top_ids(i));
      EXPECT_NEAR(score.top_logprobs(i), whole.top_logprobs(i), 5e-5);
    }
    for (int i = 0; i < whole.hidden_states_size(); ++i) {
      const double norm = whole.hidden_states(i).norm();
      EXPECT_NEAR(score.hidden_states(i).norm(), norm, 1e-5 * norm);
    }
  }
}

TEST(ScorerTest, SpansOfEqualLengthGiveTheSameBits) {
  const std::vector<uint32_t> ids = RandomIds(40);
  RankWorld world(BundledModel("tiny-v2"), {});
  v1::ScoreOptions options;
  options.set_top(3);
  EXPECT_EQ(ScorePrompt(world, ids, options, 7).SerializeAsString(),
            ScorePrompt(world, ids, options, 7).SerializeAsString());
}

TEST(ScorerTest, ASingleTokenHasTopCandidatesOnly) {
  RankWorld world(BundledModel("tiny-v3"), {.mesh = {.tensor = 3}});
  v1::ScoreOptions options;
  options.set_top(4000);  // More than there are.
  options.set_mtp(true);
  const v1::ScoreResult score = ScorePrompt(world, {5}, options, 1);
  EXPECT_EQ(score.logprobs_size(), 0);
  EXPECT_EQ(score.mtp_top_ids_size(), 0);
  ASSERT_EQ(score.top_ids_size(), 2048);
  double sum = 0;
  for (float logprob : score.top_logprobs()) sum += std::exp(logprob);
  EXPECT_NEAR(sum, 1, 1e-5);
}

TEST(ScorerTest, NothingIsAddedThatWasNotAskedFor) {
  RankWorld world(BundledModel("tiny-v3"), {.reference = true});
  const v1::ScoreResult score =
      ScorePrompt(world, RandomIds(9), v1::ScoreOptions(), 4);
  EXPECT_EQ(score.logprobs_size(), 8);
  EXPECT_EQ(score.top_ids_size(), 0);
  EXPECT_EQ(score.hidden_states_size(), 0);
  EXPECT_EQ(score.mtp_top_ids_size(), 0);
  EXPECT_EQ(score.compared(), 0u);
}

TEST(ScorerTest, TheReferencePathIsItsOwnReference) {
  v1::ScoreOptions options;
  options.set_reference(true);
  for (int tensor : {1, 3}) {
    RankWorld world(BundledModel("tiny-v3"),
                    {.mesh = {.tensor = tensor}, .reference = true});
    for (int span : {512, 33}) {
      const v1::ScoreResult score =
          ScorePrompt(world, RandomIds(70), options, span);
      EXPECT_EQ(score.compared(), 69u);
      EXPECT_EQ(score.top1_agreements(), 69u);
      EXPECT_EQ(score.kl_sum(), 0.0);
    }
  }
}

TEST(ScorerTest, Bf16DivergesALittleFromTheReference) {
  v1::ScoreOptions options;
  options.set_reference(true);
  double kl_of_one_rank = 0;
  for (int tensor : {1, 2}) {
    RankWorld world(BundledModel("tiny-v2-lite"), {.mesh = {.tensor = tensor},
                                                   .form = WeightForm::kBf16,
                                                   .reference = true});
    const v1::ScoreResult score =
        ScorePrompt(world, RandomIds(100), options, 64);
    ASSERT_EQ(score.compared(), 99u);
    const double mean_kl = score.kl_sum() / 99;
    EXPECT_GT(mean_kl, 0);
    EXPECT_LT(mean_kl, 0.01);
    EXPECT_GT(score.top1_agreements(), 90u);
    if (tensor == 1) kl_of_one_rank = mean_kl;
    EXPECT_NEAR(mean_kl, kl_of_one_rank, kl_of_one_rank / 10);
  }
}

// KL(p || q) against its definition on the whole vocabulary: the likeliest
// `vocab_size` candidates of both models are all probabilities.
TEST(ScorerTest, DivergenceIsThatOfTheWholeDistributions) {
  const std::vector<uint32_t> ids = {3, 1000};
  const auto distribution = [&](WeightForm form) {
    RankWorld world(BundledModel("tiny-v2"), {.form = form});
    v1::ScoreOptions options;
    options.set_top(2048);
    const v1::ScoreResult score = ScorePrompt(world, {3}, options, 1);
    std::vector<double> logprobs(2048);
    for (int i = 0; i < score.top_ids_size(); ++i) {
      logprobs[score.top_ids(i)] = score.top_logprobs(i);
    }
    return logprobs;
  };
  const std::vector<double> log_p = distribution(WeightForm::kF32);
  const std::vector<double> log_q = distribution(WeightForm::kBf16);
  double kl = 0;
  for (size_t i = 0; i < log_p.size(); ++i) {
    kl += std::exp(log_p[i]) * (log_p[i] - log_q[i]);
  }
  RankWorld world(BundledModel("tiny-v2"),
                  {.form = WeightForm::kBf16, .reference = true});
  v1::ScoreOptions options;
  options.set_reference(true);
  // In spans of one, as the distributions above were made.
  const v1::ScoreResult score = ScorePrompt(world, ids, options, 1);
  EXPECT_EQ(score.compared(), 1u);
  EXPECT_GT(kl, 0);
  EXPECT_NEAR(score.kl_sum(), kl, 2e-6);  // float32 log probabilities.
}

}  // namespace
}  // namespace ringfleet::worker
