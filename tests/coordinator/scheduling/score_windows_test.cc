// SPDX-License-Identifier: Apache-2.0
#include "coordinator/scheduling/score_windows.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ringfleet::coordinator {
namespace {

TEST(ScoreWindowsTest, EveryIdButTheFirstIsPredictedOnce) {
  for (size_t context = 2; context <= 9; ++context) {
    for (size_t ids = 1; ids <= 40; ++ids) {
      size_t begin = 0;
      size_t predicted = 0;
      while (true) {
        const auto window = NextScoreWindow(ids, begin, context, {});
        ASSERT_TRUE(window.ok());
        ASSERT_EQ(window->begin, begin);
        ASSERT_LE(window->end - window->begin, context);
        predicted += window->end - window->begin - 1;
        if (window->end == ids) break;
        ASSERT_EQ(window->end - window->begin, context);
        begin = window->end - 1;
      }
      EXPECT_EQ(predicted, ids - 1) << ids << " ids, context " << context;
    }
  }
}

TEST(ScoreWindowsTest, HiddenStatesAndMtpNeedOneWindow) {
  v1::ScoreOptions options;
  options.set_hidden(true);
  EXPECT_TRUE(NextScoreWindow(8, 0, 8, options).ok());
  EXPECT_EQ(NextScoreWindow(9, 0, 8, options).status().message(),
            "score: hidden: text of 9 tokens, want at most 8 (the context): "
            "only one window has them");
  options.set_hidden(false);
  options.set_mtp(true);
  EXPECT_EQ(NextScoreWindow(9, 0, 8, options).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(ScoreWindowsTest, AContextOfOnePositionScoresOneIdOnly) {
  EXPECT_TRUE(NextScoreWindow(1, 0, 1, {}).ok());
  EXPECT_EQ(NextScoreWindow(2, 0, 1, {}).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(ScoreWindowsTest, PartsAreAppendedReplacedOrSummed) {
  v1::ScoreResult total, part;
  part.add_logprobs(-1);
  part.add_mtp_top_ids(4);
  part.set_kl_sum(0.5);
  part.set_compared(1);
  part.set_top1_agreements(1);
  AppendScore(part, &total);
  part.add_top_ids(9);
  part.add_top_logprobs(-0.125f);
  part.add_hidden_states()->set_norm(2);
  AppendScore(part, &total);
  EXPECT_EQ(total.logprobs_size(), 2);
  EXPECT_EQ(total.mtp_top_ids_size(), 2);
  EXPECT_EQ(total.top_ids_size(), 1);
  EXPECT_EQ(total.top_logprobs_size(), 1);
  EXPECT_EQ(total.hidden_states_size(), 1);
  EXPECT_DOUBLE_EQ(total.kl_sum(), 1.0);
  EXPECT_EQ(total.compared(), 2u);
  EXPECT_EQ(total.top1_agreements(), 2u);
}

TEST(ScoreWindowsTest, PartsOfALongResultMergeIntoTheWhole) {
  for (const size_t size : {size_t{1}, kScorePartIds, kScorePartIds + 1,
                            2 * kScorePartIds, 3 * kScorePartIds - 7}) {
    SCOPED_TRACE(size);
    std::vector<uint32_t> ids(size);
    v1::ScoreResult score;
    for (size_t i = 0; i < size; ++i) {
      ids[i] = static_cast<uint32_t>(i * 7919 % 129280);
      if (i > 0) score.add_logprobs(-0.5f * static_cast<float>(i));
    }
    score.add_top_ids(3);
    score.add_top_logprobs(-1);
    score.set_kl_sum(0.25);
    score.set_compared(static_cast<uint32_t>(size));
    v1::ScoreEvent::Result merged;
    const auto parts = SplitScore(ids, score);
    EXPECT_EQ(parts.size(), (size + kScorePartIds - 1) / kScorePartIds);
    for (const v1::ScoreEvent::Result& part : parts) {
      EXPECT_LT(part.ByteSizeLong(), size_t{1} << 20);
      merged.MergeFrom(part);
    }
    EXPECT_THAT(merged.ids(), ::testing::ElementsAreArray(ids));
    EXPECT_EQ(merged.score().SerializeAsString(), score.SerializeAsString());
  }
}

}  // namespace
}  // namespace ringfleet::coordinator
