// SPDX-License-Identifier: Apache-2.0
#include "coordinator/scheduling/batch_budget.h"

#include <gtest/gtest.h>

namespace ringfleet::coordinator {
namespace {

using std::chrono::milliseconds;
using Rows = BatchBudget::Rows;

// Plans and executes a step, with all rows that a batch may have.
uint32_t StepOf(BatchBudget& budget, Rows rows, double without_ms,
                double row_ms) {
  rows.batch = budget.RowsBeside(rows, milliseconds(0));
  budget.OnPlan(rows);
  budget.Observe(std::chrono::duration_cast<BatchBudget::Duration>(
                     std::chrono::duration<double, std::milli>(
                         without_ms + row_ms * rows.batch)),
                 rows);
  return rows.batch;
}

TEST(BatchBudgetTest, RowsGrowToTheLimit) {
  BatchBudget budget;
  budget.SetLimit(milliseconds(100));
  EXPECT_EQ(StepOf(budget, {.decodes = 2}, 50, 2), 0u);  // Measured first.
  EXPECT_EQ(StepOf(budget, {.decodes = 2}, 50, 2), 1u);
  EXPECT_EQ(StepOf(budget, {.decodes = 2}, 50, 2), 3u);
  for (int i = 0; i < 5; ++i) StepOf(budget, {.decodes = 2}, 50, 2);
  EXPECT_EQ(StepOf(budget, {.decodes = 2}, 50, 2), 25u);
}

TEST(BatchBudgetTest, WithoutALimitAStepMayTakeHalfMore) {
  BatchBudget budget;
  for (int i = 0; i < 10; ++i) StepOf(budget, {.decodes = 2}, 60, 3);
  EXPECT_EQ(StepOf(budget, {.decodes = 2}, 60, 3), 10u);
}

TEST(BatchBudgetTest, OtherSequencesAreMeasuredAnew) {
  BatchBudget budget;
  for (int i = 0; i < 10; ++i) StepOf(budget, {.decodes = 2}, 60, 3);
  EXPECT_EQ(StepOf(budget, {.decodes = 8}, 120, 3), 0u);
  for (int i = 0; i < 10; ++i) StepOf(budget, {.decodes = 8}, 120, 3);
  EXPECT_EQ(StepOf(budget, {.decodes = 8}, 120, 3), 20u);
}

TEST(BatchBudgetTest, StepsWithoutABatchAreMeasuredFromTimeToTime) {
  BatchBudget budget;
  uint32_t without = 0;
  for (uint32_t i = 0; i < 10 * BatchBudget::kMeasureSteps; ++i) {
    if (StepOf(budget, {.decodes = 2}, 60, 3) == 0) ++without;
  }
  EXPECT_GE(without, 9u);
  EXPECT_LE(without, 11u);
}

TEST(BatchBudgetTest, PromptsLeaveABatchItsTurn) {
  BatchBudget budget;
  StepOf(budget, {.decodes = 2}, 60, 3);
  uint32_t rows = 0;
  for (uint32_t i = 0; i < 10 * BatchBudget::kTurnSteps; ++i) {
    const Rows beside = {.decodes = 2, .prompts = 100};
    const uint32_t batch = budget.RowsBeside(beside, milliseconds(400));
    budget.OnPlan({.decodes = 2, .prompts = 100, .batch = batch});
    rows += batch;
  }
  EXPECT_GE(rows, 8u);
  EXPECT_LE(rows, 10u);
}

TEST(BatchBudgetTest, AtZeroABatchHasNoTurn) {
  BatchBudget budget;
  budget.SetLimit(milliseconds(0));
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(StepOf(budget, {.decodes = 2}, 60, 3), 0u);
  }
}

}  // namespace
}  // namespace ringfleet::coordinator
