// SPDX-License-Identifier: Apache-2.0
#include "coordinator/cli/run/batch_file.h"

#include <gtest/gtest.h>

#include "coordinator/batch/batch_lines.h"

namespace ringfleet::coordinator::cli {
namespace {

TEST(BatchSummaryTest, RatesHaveNoExponent) {
  v1::JobInfo job;
  v1::BatchInfo& batch = *job.mutable_batch();
  batch.set_state("in_progress");
  batch.set_total(4012);
  batch.set_completed(10);
  batch.set_failed(2);
  const auto summary = [&](double rate) {
    batch.set_lines_per_second(rate);
    return BatchSummary(job);
  };
  EXPECT_EQ(summary(0), "in_progress, 12 of 4012 lines, 2 failed");
  EXPECT_EQ(summary(0.03125),
            "in_progress, 12 of 4012 lines, 2 failed, 0.031 lines/s, "
            "35h33m20s left");
  EXPECT_EQ(summary(3.125),
            "in_progress, 12 of 4012 lines, 2 failed, 3.1 lines/s, 21m20s "
            "left");
  EXPECT_EQ(summary(125),
            "in_progress, 12 of 4012 lines, 2 failed, 125 lines/s, 32s left");
}

TEST(BatchSummaryTest, ABatchThatWaitsHasNoRate) {
  v1::JobInfo job;
  job.mutable_batch()->set_state("in_progress");
  job.mutable_batch()->set_total(400);
  job.mutable_batch()->set_completed(1);
  job.mutable_batch()->set_lines_per_second(3);
  job.set_waits_for("waits for the model tiny-v3");
  EXPECT_EQ(BatchSummary(job),
            "in_progress, 1 of 400 lines, waits for the model tiny-v3");
}

TEST(BatchRemarkTest, AnErrorKeepsNameAndCounts) {
  v1::JobInfo job;
  v1::BatchInfo& batch = *job.mutable_batch();
  batch.set_state("in_progress");
  EXPECT_EQ(BatchRemark(job), "in_progress");
  batch.set_name("night");
  batch.set_total(400);
  batch.set_completed(36);
  EXPECT_EQ(BatchRemark(job), "night: in_progress, 36 of 400 lines");
  batch.set_state("expired");
  batch.set_failed(364);
  job.set_error("the batch has expired");
  EXPECT_EQ(BatchRemark(job),
            "night: 36 of 400 lines completed, the batch has expired");
  batch.clear_total();
  job.set_error("the input has errors");
  EXPECT_EQ(BatchRemark(job), "night: the input has errors");
}

static_assert(kMostCheckErrors == kMostLineErrors);

}  // namespace
}  // namespace ringfleet::coordinator::cli
