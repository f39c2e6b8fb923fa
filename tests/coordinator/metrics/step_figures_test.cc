// SPDX-License-Identifier: Apache-2.0
#include "coordinator/metrics/step_figures.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>

#include "coordinator/metrics/histogram.h"

namespace ringfleet::coordinator {
namespace {

constexpr StepFigures::Time kStart{std::chrono::hours(1)};
StepFigures::Time At(int ms) { return kStart + std::chrono::milliseconds(ms); }

// A plan of one prompt's span, a replay's span and decodes of two slots.
v1::StepPlan MixedPlan() {
  v1::StepPlan plan;
  plan.add_prefills()->set_count(100);
  plan.add_replays()->set_count(7);
  plan.add_decodes()->set_slot(2);
  plan.add_decodes()->set_drafts(2);
  plan.add_admissions();
  plan.add_admissions()->add_committed_ids(5);
  return plan;
}

v1::StepPlan DecodePlan() {
  v1::StepPlan plan;
  plan.add_decodes();
  return plan;
}

v1::StepResult Result(int tokens, uint64_t bytes_sent) {
  v1::StepResult result;
  v1::SlotResult* const slot = result.add_slots();
  for (int i = 0; i < tokens; ++i) slot->add_tokens(1);
  result.set_bytes_read(1000);
  result.set_bytes_sent(bytes_sent);
  return result;
}

TEST(StepFiguresTest, CountTheWorkOfSteps) {
  StepFigures figures;
  figures.OnReady();
  figures.OnPlan(MixedPlan(), At(0));
  figures.OnPlan(DecodePlan(), At(10));  // Sent ahead.
  figures.OnResult(Result(3, 1110), At(40));
  // The second step begins with the first one's result.
  figures.OnResult(Result(1, 10), At(45));
  const v1::FleetFigures read = figures.Read();
  EXPECT_EQ(read.ready_epochs(), 1u);
  EXPECT_EQ(read.replays(), 1u);
  EXPECT_EQ(read.prompt_tokens(), 100u);
  EXPECT_EQ(read.replayed_tokens(), 7u);
  EXPECT_EQ(read.generated_tokens(), 4u);
  EXPECT_EQ(read.read_bytes(), 2000u);
  EXPECT_EQ(read.sent_bytes(), 1120u);
  EXPECT_EQ(CountOf(read.step_seconds()), 2u);
  EXPECT_NEAR(read.step_seconds().sum(), 0.045, 1e-9);
  EXPECT_EQ(read.step_sequences().sum(), 5);
  EXPECT_EQ(read.step_tokens().sum(), 112);
  // 111 tokens with 1110 bytes, then one with 10: both averages move alike.
  EXPECT_NEAR(read.sent_bytes_per_token(), 10, 1e-9);
}

TEST(StepFiguresTest, TimeBeforeAPlanIsNoStep) {
  StepFigures figures;
  figures.OnPlan(DecodePlan(), At(0));
  figures.OnResult(Result(1, 0), At(10));
  figures.OnPlan(DecodePlan(), At(5000));
  figures.OnResult(Result(1, 0), At(5010));
  EXPECT_NEAR(figures.Read().step_seconds().sum(), 0.02, 1e-9);
}

TEST(StepFiguresTest, AStepWithoutTokensDoesNotCount) {
  StepFigures figures;
  v1::StepPlan plan;
  plan.add_releases(1);
  figures.OnPlan(plan, At(0));
  figures.OnResult(v1::StepResult(), At(10));
  EXPECT_EQ(CountOf(figures.Read().step_seconds()), 0u);
  EXPECT_EQ(figures.Read().sent_bytes_per_token(), 0);
}

TEST(StepFiguresTest, PlansOfAFailedEpochAreForgotten) {
  StepFigures figures;
  figures.OnPlan(MixedPlan(), At(0));
  figures.OnEnd(/*failed=*/true);
  figures.OnPlan(DecodePlan(), At(10));
  figures.OnResult(Result(1, 0), At(20));
  const v1::FleetFigures read = figures.Read();
  EXPECT_EQ(read.failed_epochs(), 1u);
  EXPECT_EQ(read.prompt_tokens(), 0u);
  EXPECT_EQ(read.step_tokens().sum(), 1);
  figures.OnEnd(/*failed=*/false);
  EXPECT_EQ(figures.Read().failed_epochs(), 1u);
}

}  // namespace
}  // namespace ringfleet::coordinator
