// SPDX-License-Identifier: Apache-2.0
#include "worker/fused/tile_sweeps.h"

#include <algorithm>
#include <vector>

#include "gtest/gtest.h"
#include "tests/testing/fused_cases.h"

namespace ringfleet::worker {
namespace {

using cluster::Side;
using cluster::SplitRows;
using kernels::Activations;
using ::ringfleet::testing::Product;
using ::ringfleet::testing::RankValues;
using ::ringfleet::testing::TestWeights;

constexpr size_t kRows = 40;  // Of two ranks: four parts of ten.
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

  // Rows that a tile has had of each part, by PartProgress::Index.
  std::vector<size_t> RowsOf(size_t tile) const {
    return {multiplied_.begin() + tile * 4, multiplied_.begin() + tile * 4 + 4};
  }

  const kernels::WeightMatrix weights_ =
      TestWeights(kernels::WeightForm::kInt8, kDepth, kColumns, 1);
  const std::vector<float> values_ = RankValues(0, kRows* kDepth);
  kernels::ThreadPool pool_{1};
  Activations x_;
  std::vector<float> y_ = std::vector<float>(kRows * kColumns, -7.0f);
  const FusedOutput output_ = {
      .w = &weights_, .y = y_.data(), .y_stride = kColumns};
  const FusedTiles cut_ = {.tile_columns = kernels::kPanelRows};
  const OutputTiles tiles_{{&output_, 1}, x_, cut_};
  const SplitRows split_{kRows, 2};
  PartProgress progress_;
  std::vector<size_t> multiplied_;
};

TEST_F(TileSweepsTest, RowsThatComeDuringASweepReachTheTilesBehind) {
  using Rows = std::vector<size_t>;
  Add(0, Side::kLeft, 10);
  Add(0, Side::kRight, 10);
  TileSweeps sweeps = Sweeps();
  EXPECT_EQ(sweeps.Wanted(), kLeast);
  sweeps.Visit(0);
  Add(1, Side::kRight, 10);
  sweeps.Visit(1);
  Add(1, Side::kLeft, 10);
  sweeps.Visit(2);
  EXPECT_EQ(RowsOf(0), Rows({10, 10, 0, 0}));
  EXPECT_EQ(RowsOf(1), Rows({10, 10, 0, 10}));
  EXPECT_EQ(RowsOf(2), Rows({10, 10, 10, 10}));
  EXPECT_GT(sweeps.Wanted(), 0u);
  sweeps.Sweep(pool_);
  EXPECT_EQ(multiplied_, Rows(12, 10));
  EXPECT_EQ(sweeps.Wanted(), 0u);
  EXPECT_EQ(y_, Product(weights_, values_, kRows));
}

TEST_F(TileSweepsTest, VisitsWaitForRowsThatAreWorthIt) {
  TileSweeps sweeps = Sweeps();
  // Sweeps, and returns how many tiles were multiplied by more rows.
  const auto visits = [&] {
    const std::vector<size_t> before = multiplied_;
    sweeps.Sweep(pool_);
    size_t count = 0;
    for (size_t tile = 0; tile < tiles_.size(); ++tile) {
      count +=
          !std::equal(before.begin() + tile * 4, before.begin() + tile * 4 + 4,
                      multiplied_.begin() + tile * 4);
    }
    return count;
  };
  Add(0, Side::kLeft, kLeast - 1);
  EXPECT_EQ(visits(), 0u);
  Add(0, Side::kLeft, 1);
  EXPECT_EQ(visits(), 3u);
  EXPECT_EQ(sweeps.Wanted(), 2 * kLeast);
  Add(0, Side::kRight, 10);
  Add(1, Side::kLeft, 10);
  EXPECT_EQ(visits(), 3u);
  EXPECT_EQ(sweeps.Wanted(), 28 + kLeast);
  // With 10 that are left, 8 would leave 2 alone.
  Add(1, Side::kRight, 2);
  EXPECT_EQ(sweeps.Wanted(), 28 + kLeast);
  EXPECT_EQ(visits(), 0u);
  Add(1, Side::kRight, 6);
  EXPECT_EQ(visits(), 3u);
  EXPECT_EQ(sweeps.Wanted(), kRows) << "4 are left";
}

TEST_F(TileSweepsTest, RowsOfAnIncompleteTileOfRowsWait) {
  TileSweeps sweeps = Sweeps({.together = 4, .enough = kLeast});
  Add(0, Side::kLeft, 9);
  sweeps.Sweep(pool_);
  for (size_t tile = 0; tile < 3; ++tile) EXPECT_EQ(RowsOf(tile)[0], 8u);
  // The rest of a part that has come whole waits for nothing.
  Add(0, Side::kLeft, 1);
  Add(1, Side::kLeft, 9);
  sweeps.Sweep(pool_);
  for (size_t tile = 0; tile < 3; ++tile) EXPECT_EQ(RowsOf(tile)[0], 10u);
}

TEST_F(TileSweepsTest, WithoutOutputsNothingIsWaitedFor) {
  const OutputTiles none({}, x_, cut_);
  TileSweeps sweeps(none, split_, 2, kLeast, kSingleRows, progress_,
                    multiplied_);
  EXPECT_EQ(sweeps.Wanted(), 0u);
}

}  // namespace
}  // namespace ringfleet::worker
