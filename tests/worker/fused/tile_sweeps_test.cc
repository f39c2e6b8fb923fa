// SPDX-License-Identifier: Apache-2.0
#include "worker/fused/tile_sweeps.h"

#include <vector>

#include "gtest/gtest.h"
#include "tests/testing/fused_cases.h"

namespace ringfleet::worker {
namespace {

using cluster::ShardPart;
using cluster::Side;
using cluster::SplitRows;
using kernels::Activations;
using ::ringfleet::testing::Layout;
using ::ringfleet::testing::RankValues;
using ::ringfleet::testing::TestWeights;

constexpr size_t kRows = 40;  // Of two ranks: four halves of ten.
constexpr size_t kDepth = 16;
constexpr size_t kColumns = 3 * kernels::kPanelRows;
constexpr size_t kLeast = 8;
constexpr kernels::ProductRows kSingleRows = {.together = 1, .enough = kLeast};

// Sweeps over three tiles of int8 weights.
class TileSweepsTest : public ::testing::Test {
 protected:
  TileSweepsTest() {
    x_.Assign(Activations::Form::kInt8, values_.data(), kRows, kDepth, kDepth,
              pool_);
    progress_.Reset(2);
  }

  TileSweeps Sweeps(kernels::ProductRows best = kSingleRows) {
    return TileSweeps(tiles_, split_, 2, kLeast, best, progress_, multiplied_);
  }

  void Add(int shard, Side side, size_t rows) {
    progress_.Add({shard, side}, rows);
  }

  const TestWeights weights_{Layout::kInt8, kDepth, kColumns, 1};
  const std::vector<float> values_ = RankValues(0, kRows* kDepth);
  kernels::ThreadPool pool_{1};
  Activations x_;
  std::vector<float> y_ = std::vector<float>(kRows * kColumns, -7.0f);
  const FusedOutput output_ = {
      .weights = weights_.view(), .y = y_.data(), .y_stride = kColumns};
  const FusedTiles cut_ = {.tile_columns = kernels::kPanelRows};
  const OutputTiles tiles_{{&output_, 1}, x_, cut_};
  const SplitRows split_{kRows, 2};
  PartProgress progress_;
  std::vector<size_t> multiplied_;
};

TEST_F(TileSweepsTest, RowsThatComeDuringASweepReachTheTilesBehind) {
  Add(0, Side::kLeft, 10);
  Add(0, Side::kRight, 10);
  TileSweeps sweeps = Sweeps();
  std::vector<size_t> visits;  // How many rows a tile will have had.
  const auto visit = [&](absl::Span<const size_t> rows) {
    visits.push_back(rows[0] + rows[1] + rows[2] + rows[3]);
    if (visits.size() == 1) Add(1, Side::kRight, 10);
    if (visits.size() == 2) Add(1, Side::kLeft, 10);
  };
  EXPECT_EQ(sweeps.Wanted(), kLeast);
  sweeps.Sweep(pool_, visit);
  EXPECT_EQ(visits, std::vector<size_t>({20, 30, 40}));
  EXPECT_TRUE(sweeps.Complete({0, Side::kLeft}));
  EXPECT_FALSE(sweeps.Complete({1, Side::kRight}));
  EXPECT_GT(sweeps.Wanted(), 0u);
  visits = {0, 0};
  sweeps.Sweep(pool_, visit);
  EXPECT_EQ(visits, std::vector<size_t>({0, 0, 40, 40}));
  EXPECT_EQ(sweeps.Wanted(), 0u);
  EXPECT_TRUE(sweeps.Complete({1, Side::kRight}));
  EXPECT_EQ(y_, weights_.Product(values_, kRows));
}

TEST_F(TileSweepsTest, VisitsWaitForRowsThatAreWorthIt) {
  TileSweeps sweeps = Sweeps();
  size_t visits = 0;
  const auto count = [&](absl::Span<const size_t>) { ++visits; };
  Add(0, Side::kLeft, kLeast - 1);
  sweeps.Sweep(pool_, count);
  EXPECT_EQ(visits, 0u);
  Add(0, Side::kLeft, 1);
  sweeps.Sweep(pool_, count);
  EXPECT_EQ(visits, 3u);
  EXPECT_EQ(sweeps.Wanted(), 2 * kLeast);
  Add(0, Side::kRight, 10);
  Add(1, Side::kLeft, 10);
  sweeps.Sweep(pool_, count);
  EXPECT_EQ(visits, 6u);
  EXPECT_EQ(sweeps.Wanted(), 28 + kLeast);
  // With 10 that are left, 8 would leave 2 alone.
  Add(1, Side::kRight, 2);
  EXPECT_EQ(sweeps.Wanted(), 28 + kLeast);
  sweeps.Sweep(pool_, count);
  EXPECT_EQ(visits, 6u);
  Add(1, Side::kRight, 6);
  sweeps.Sweep(pool_, count);
  EXPECT_EQ(visits, 9u);
  EXPECT_EQ(sweeps.Wanted(), kRows) << "4 are left";
}

TEST_F(TileSweepsTest, RowsOfAnIncompleteTileOfRowsWait) {
  TileSweeps sweeps = Sweeps({.together = 4, .enough = kLeast});
  Add(0, Side::kLeft, 9);
  std::vector<size_t> rows_of_half;
  const auto visit = [&](absl::Span<const size_t> rows) {
    rows_of_half.push_back(rows[0]);
  };
  sweeps.Sweep(pool_, visit);
  EXPECT_EQ(rows_of_half, std::vector<size_t>({8, 8, 8}));
  // The rest of a half that has come whole waits for nothing.
  Add(0, Side::kLeft, 1);
  Add(1, Side::kLeft, 9);
  sweeps.Sweep(pool_, visit);
  EXPECT_EQ(rows_of_half, std::vector<size_t>({8, 8, 8, 10, 10, 10}));
}

TEST_F(TileSweepsTest, WithoutOutputsNothingIsWaitedFor) {
  const OutputTiles none({}, x_, cut_);
  TileSweeps sweeps(none, split_, 2, kLeast, kSingleRows, progress_,
                    multiplied_);
  EXPECT_EQ(sweeps.Wanted(), 0u);
}

}  // namespace
}  // namespace ringfleet::worker
