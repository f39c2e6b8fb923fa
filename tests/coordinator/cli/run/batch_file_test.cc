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

}  // namespace
}  // namespace ringfleet::coordinator::cli
