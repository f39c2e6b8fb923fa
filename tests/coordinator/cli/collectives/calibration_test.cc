// SPDX-License-Identifier: Apache-2.0
#include "coordinator/cli/collectives/calibration.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>

namespace ringfleet::coordinator::cli {
namespace {

using cluster::Algorithm;
using cluster::AlgorithmTable;
using cluster::Operation;

constexpr uint64_t kUnlimited = std::numeric_limits<uint64_t>::max();

using Model = std::function<double(Algorithm, uint64_t bytes)>;

std::vector<CollectiveTiming> Timings(Operation operation, const Model& model) {
  std::vector<CollectiveTiming> timings;
  for (const uint64_t bytes : CalibrationLadder()) {
    for (const Algorithm algorithm :
         {Algorithm::kOneShot, Algorithm::kTwoShot, Algorithm::kRing}) {
      if (!cluster::Supports(operation, algorithm)) continue;
      timings.push_back({operation, algorithm, bytes, model(algorithm, bytes)});
    }
  }
  return timings;
}

// Microseconds of 4 ranks on the model's network; the ring has a fixed cost
// more and 5 % less per byte.
double FourRanks(Algorithm algorithm, uint64_t bytes) {
  const double n = static_cast<double>(bytes) * 0.87e-3;
  if (algorithm == Algorithm::kOneShot) return 56 + 3 * n;
  if (algorithm == Algorithm::kTwoShot) return 112 + 1.5 * n;
  return 240 + 1.425 * n;
}

TEST(CalibrationTest, LadderAndOperations) {
  const auto ladder = CalibrationLadder();
  EXPECT_EQ(ladder.front(), 1024u);
  EXPECT_EQ(ladder.back(), 16u << 20);
  EXPECT_EQ(ladder.size(), 15u);
  EXPECT_THAT(CalibratedOperations(),
              ::testing::UnorderedElementsAre(
                  Operation::kAllReduce, Operation::kAllGather,
                  Operation::kReduceScatter, Operation::kBroadcast));
}

// Crossings at 43 KB and 1.96 MB: borders lie between the neighbours on the
// ladder, at their geometric mean.
TEST(CalibrationTest, BordersLieBetweenTheSizesThatTheyPart) {
  const AlgorithmTable::Row row = FitRow(
      Operation::kAllReduce, 4, Timings(Operation::kAllReduce, FourRanks));
  EXPECT_EQ(row.operation, Operation::kAllReduce);
  EXPECT_EQ(row.size, 4);
  EXPECT_EQ(row.one_shot_max_bytes, 46340u);    // sqrt(32 Ki * 64 Ki)
  EXPECT_EQ(row.two_shot_max_bytes, 1482910u);  // sqrt(1 Mi * 2 Mi)
}

// A time that an interruption made four times as long makes no hole in the
// range of its algorithm and does not end it there.
TEST(CalibrationTest, AnOutlierFarFromABorderMovesNothing) {
  const AlgorithmTable::Row row = FitRow(
      Operation::kAllReduce, 4,
      Timings(Operation::kAllReduce, [](Algorithm algorithm, uint64_t bytes) {
        const bool hit = bytes == 2048 && algorithm == Algorithm::kOneShot;
        return FourRanks(algorithm, bytes) * (hit ? 4 : 1);
      }));
  EXPECT_EQ(row.one_shot_max_bytes, 46340u);
  EXPECT_EQ(row.two_shot_max_bytes, 1482910u);
}

TEST(CalibrationTest, AWinnerEverywhereLeavesTheOthersOut) {
  const auto best = [](Algorithm winner) {
    return FitRow(
        Operation::kAllReduce, 2,
        Timings(Operation::kAllReduce, [&](Algorithm algorithm, uint64_t) {
          return algorithm == winner ? 1.0 : 2.0;
        }));
  };
  EXPECT_EQ(best(Algorithm::kOneShot).one_shot_max_bytes, kUnlimited);
  EXPECT_EQ(best(Algorithm::kOneShot).two_shot_max_bytes, kUnlimited);
  EXPECT_EQ(best(Algorithm::kTwoShot).one_shot_max_bytes, 0u);
  EXPECT_EQ(best(Algorithm::kTwoShot).two_shot_max_bytes, kUnlimited);
  EXPECT_EQ(best(Algorithm::kRing).one_shot_max_bytes, 0u);
  EXPECT_EQ(best(Algorithm::kRing).two_shot_max_bytes, 0u);
}

TEST(CalibrationTest, TiesKeepTheAlgorithmOfFewerMessages) {
  const AlgorithmTable::Row row = FitRow(
      Operation::kAllReduce, 2,
      Timings(Operation::kAllReduce, [](Algorithm, uint64_t) { return 1.0; }));
  EXPECT_EQ(row.one_shot_max_bytes, kUnlimited);
}

// Every row is fit for a table; other operations' times are not looked at.
TEST(CalibrationTest, OperationsWithoutTwoShotHaveOneBorder) {
  for (const Operation operation : CalibratedOperations()) {
    std::vector<CollectiveTiming> timings = Timings(operation, FourRanks);
    timings.push_back({Operation::kBarrier, Algorithm::kOneShot, 0, 1});
    const AlgorithmTable::Row row = FitRow(operation, 4, timings);
    EXPECT_TRUE(AlgorithmTable::FromRows({row}).ok());
    if (operation == Operation::kAllReduce) continue;
    // 184 = 1.575 n: 131 KiB, between 128 and 256 KiB.
    EXPECT_EQ(row.one_shot_max_bytes, 185363u);
    EXPECT_EQ(row.two_shot_max_bytes, 185363u);
  }
}

}  // namespace
}  // namespace ringfleet::coordinator::cli
