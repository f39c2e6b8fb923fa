// SPDX-License-Identifier: Apache-2.0
#include "coordinator/fleet/step_merge.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

namespace ringfleet::coordinator {
namespace {

v1::StepResult Result(uint64_t step, uint32_t slot, uint32_t token,
                      v1::FinishReason finish = v1::FINISH_REASON_UNSPECIFIED) {
  v1::StepResult result;
  result.set_epoch(3);
  result.set_step(step);
  auto* out = result.add_slots();
  out->set_slot(slot);
  out->add_tokens(token);
  out->set_finish(finish);
  return result;
}

// Of ranks 0, 1 and so on.
absl::StatusOr<v1::StepResult> MergeOfRanks(
    const std::vector<v1::StepResult>& results, size_t group_size) {
  std::vector<int> ranks(results.size());
  std::iota(ranks.begin(), ranks.end(), 0);
  return MergeStepResults(results, ranks, group_size);
}

TEST(MergeStepResultsTest, AgreementGivesRankZerosResult) {
  std::vector<v1::StepResult> results(3, Result(5, 2, 7));
  results[0].mutable_slots(0)->add_logprobs(-0.5f);
  results[0].mutable_slots(0)->mutable_score()->add_logprobs(-1);
  results[2].mutable_slots(0)->add_logprobs(-0.25f);
  const auto merged = MergeOfRanks(results, results.size());
  ASSERT_TRUE(merged.ok()) << merged.status();
  EXPECT_EQ(merged->slots(0).logprobs(0), -0.5f);
  EXPECT_EQ(merged->slots(0).score().logprobs_size(), 1);
}

TEST(MergeStepResultsTest, BytesReadAddUp) {
  std::vector<v1::StepResult> results(3, Result(5, 2, 7));
  for (int rank = 0; rank < 3; ++rank) {
    results[rank].set_bytes_read(10 << rank);
    results[rank].set_bytes_sent(1 << rank);
  }
  const auto merged = MergeOfRanks(results, results.size());
  EXPECT_EQ(merged->bytes_read(), 70u);
  EXPECT_EQ(merged->bytes_sent(), 7u);
}

TEST(MergeStepResultsTest, EntriesWithoutDecisionsMayBeAbsent) {
  std::vector<v1::StepResult> results(2, Result(5, 2, 7));
  auto* scored = results[0].add_slots();
  scored->set_slot(3);
  scored->mutable_score()->add_logprobs(-1);
  EXPECT_TRUE(MergeOfRanks(results, results.size()).ok());
}

TEST(MergeStepResultsTest, OrderOfSlotsDoesNotMatter) {
  std::vector<v1::StepResult> results = {Result(5, 1, 7), Result(5, 2, 8)};
  *results[0].add_slots() = results[1].slots(0);
  *results[1].add_slots() = results[0].slots(0);
  EXPECT_TRUE(MergeOfRanks(results, results.size()).ok());
}

TEST(MergeStepResultsTest, AnotherTokenNamesRanksStepSlotAndTokens) {
  const std::vector<v1::StepResult> results = {Result(5, 2, 7), Result(5, 2, 7),
                                               Result(5, 2, 9)};
  const absl::Status status = MergeOfRanks(results, results.size()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_EQ(status.message(),
            "step 5, slot 2: worker 2 has token 9, worker 0 has token 7");
}

TEST(MergeStepResultsTest, AnotherEndIsADifference) {
  const std::vector<v1::StepResult> results = {
      Result(5, 2, 7), Result(5, 2, 7, v1::FINISH_REASON_STOP)};
  EXPECT_EQ(MergeOfRanks(results, results.size()).status().message(),
            "step 5, slot 2: worker 1 has token 7 and the end "
            "FINISH_REASON_STOP, worker 0 has token 7");
}

TEST(MergeStepResultsTest, AMissingOrExtraSlotIsADifference) {
  v1::StepResult empty;
  empty.set_epoch(3);
  empty.set_step(5);
  EXPECT_EQ(MergeOfRanks({Result(5, 2, 7), empty}, 2).status().message(),
            "step 5, slot 2: worker 1 has nothing, worker 0 has token 7");
  EXPECT_EQ(MergeOfRanks({empty, Result(5, 2, 7)}, 2).status().message(),
            "step 5, slot 2: worker 1 has token 7, worker 0 has nothing");
}

TEST(MergeStepResultsTest, AnotherStepIsADifference) {
  EXPECT_EQ(
      MergeOfRanks({Result(5, 2, 7), Result(6, 2, 7)}, 2).status().message(),
      "worker 1 reports step 6 of epoch 3, worker 0 step 5 of epoch 3");
}

TEST(MergeStepResultsTest, GroupsHaveSlotsOfTheirOwn) {
  const std::vector<v1::StepResult> results = {
      Result(5, 1, 7), Result(5, 1, 7), Result(5, 6, 8), Result(5, 6, 8)};
  const auto merged = MergeOfRanks(results, 2);
  ASSERT_TRUE(merged.ok()) << merged.status();
  ASSERT_EQ(merged->slots_size(), 2);
  EXPECT_EQ(merged->slots(0).slot(), 1u);
  EXPECT_EQ(merged->slots(1).slot(), 6u);
  EXPECT_EQ(merged->slots(1).tokens(0), 8u);
}

TEST(MergeStepResultsTest, ADifferenceWithinALaterGroupIsFound) {
  EXPECT_EQ(MergeOfRanks({Result(5, 1, 7), Result(5, 1, 7), Result(5, 6, 8),
                          Result(5, 6, 9)},
                         2)
                .status()
                .message(),
            "step 5, slot 6: worker 3 has token 9, worker 2 has token 8");
  EXPECT_EQ(
      MergeOfRanks({Result(5, 1, 7), Result(4, 6, 7)}, 1).status().message(),
      "worker 1 reports step 4 of epoch 3, worker 0 step 5 of epoch 3");
}

TEST(MergeStepResultsTest, TwoGroupsWithOneSlotAreAnError) {
  EXPECT_EQ(
      MergeOfRanks({Result(5, 1, 7), Result(5, 1, 7)}, 1).status().message(),
      "step 5, slot 1: worker 1 reports it, which worker 0 has");
}

// Of four ranks, two are left.
TEST(MergeStepResultsTest, RanksHaveTheFleetsNames) {
  const std::vector<v1::StepResult> results = {Result(5, 2, 7),
                                               Result(5, 2, 8)};
  EXPECT_EQ(MergeStepResults(results, {2, 3}, 2).status().message(),
            "step 5, slot 2: worker 3 has token 8, worker 2 has token 7");
}

}  // namespace
}  // namespace ringfleet::coordinator
