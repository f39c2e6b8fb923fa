// SPDX-License-Identifier: Apache-2.0
// Summands of parts that go to their owners directly, without products: in
// any order of computing, of any number of ranks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cluster/collectives/group_communicator.h"
#include "tests/testing/collective_cases.h"
#include "tests/testing/fake_transport.h"
#include "tests/testing/sanitized.h"
#include "tests/testing/soon.h"

namespace ringfleet::cluster {
namespace {

using ::ringfleet::testing::FakeNetwork;
using ::ringfleet::testing::OutgoingFrame;
using ::ringfleet::testing::RankValues;
using ::ringfleet::testing::Soon;
using ::testing::Each;
using ::testing::HasSubstr;

constexpr size_t kSummandRow =
    100;  // A frame has 256 elements: a part has several.

// One rank's summands, which become ready row by row in the order of the steps,
// both parts of a step at random.
class Summands final : public StreamingSource {
 public:
  Summands(size_t rows, int ranks, int rank)
      : split_(rows, ranks),
        ranks_(ranks),
        rank_(rank),
        values_(RankValues(rank, rows * kSummandRow)),
        ready_(static_cast<size_t>(ranks) * 2) {}

  void Compute(Communicator& group, uint32_t seed) {
    std::minstd_rand random(seed);
    for (int step = 0; step < ranks_; ++step) {
      const ShardPart now[2] = {
          {(rank_ - 1 - step + 2 * ranks_) % ranks_, Side::kLeft},
          {(rank_ + 1 + step) % ranks_, Side::kRight}};
      size_t left[2] = {split_.Of(now[0]).size(), split_.Of(now[1]).size()};
      while (left[0] + left[1] > 0) {
        const bool first = left[1] == 0 || (left[0] > 0 && random() % 2 == 0);
        const size_t i = first ? 0 : 1;
        --left[i];
        ready_[Index(now[i])].fetch_add(1);
        if (random() % 4 == 0) std::this_thread::yield();
        if (random() % 3 == 0) group.Wake();
      }
      group.Wake();
    }
  }

  float* Partial(ShardPart which) override {
    return values_.data() + split_.Of(which).begin * kSummandRow;
  }
  size_t Ready(ShardPart which) override { return ready_[Index(which)]; }

  // Whether the own rows are the sum in the order of ranks, each summand
  // rounded.
  bool Right(Wire wire) {
    for (const Side side : {Side::kLeft, Side::kRight}) {
      const kernels::RowRange rows = split_.Of({rank_, side});
      std::vector<float> sum(rows.size() * kSummandRow);
      for (int rank = 0; rank < ranks_; ++rank) {
        const std::vector<float> all = RankValues(rank, values_.size());
        std::vector<float> side(rows.size() * kSummandRow);
        std::copy_n(all.data() + rows.begin * kSummandRow, side.size(),
                    side.data());
        testing::RoundToWire(wire, kSummandRow, side);
        for (size_t i = 0; i < sum.size(); ++i) {
          sum[i] = rank == 0 ? side[i] : sum[i] + side[i];
        }
      }
      if (!std::equal(sum.begin(), sum.end(), Partial({rank_, side}))) {
        return false;
      }
    }
    return true;
  }

 private:
  static size_t Index(ShardPart which) {
    return static_cast<size_t>(which.shard) * 2 +
           static_cast<size_t>(which.side);
  }

  const SplitRows split_;
  const int ranks_;
  const int rank_;
  std::vector<float> values_;
  std::vector<std::atomic<size_t>> ready_;
};

absl::Status ReduceSummands(GroupCommunicator& group, size_t rows, Wire wire) {
  Summands summands(rows, group.size(), group.rank());
  std::thread computing([&] {
    summands.Compute(group, static_cast<uint32_t>(rows) + 1 +
                                static_cast<uint32_t>(group.rank()));
  });
  const absl::Status status = group.StreamingReduceScatter(
      {.rows = rows, .row_size = kSummandRow, .segment_bytes = 1},
      {wire, kSummandRow}, summands, /*check=*/0, Soon());
  computing.join();
  if (!status.ok()) return status;
  if (summands.Right(wire)) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("rank ", group.rank(), " of ",
                                          group.size(), ", ", rows,
                                          " rows: another sum"));
}

TEST(DirectStreamingTest, SumsAreRightInAnyOrderOfComputing) {
  std::minstd_rand random(20261123);
  for (int ranks = 2; ranks <= (testing::kSanitized ? 6 : 16); ++ranks) {
    FakeNetwork network(ranks, /*piece_bytes=*/61);
    std::vector<size_t> rows = {0, 1, static_cast<size_t>(ranks)};
    while (rows.size() < 6) {
      rows.push_back(random() % static_cast<uint32_t>(20 * ranks));
    }
    EXPECT_THAT(network.RunOnEveryRank([&](Transport& transport) {
      GroupCommunicator group(&transport, WorldGroup(ranks),
                              AlgorithmTable::Only(Algorithm::kOneShot),
                              nullptr);
      absl::Status status;
      for (const size_t some : rows) {
        for (const Wire wire : {Wire::kF32, Wire::kBf16, Wire::kInt8}) {
          status.Update(ReduceSummands(group, some, wire));
        }
      }
      return status;
    }),
                Each(absl::OkStatus()));
  }
}

// After a frame that was lost comes one of another place, or of the other part;
// one that was changed on the way has another checksum.
TEST(DirectStreamingTest, LostAndChangedFramesAreFoundOut) {
  for (const bool lost : {true, false}) {
    FakeNetwork network(4);
    int frames = 0;
    network.set_script([&](OutgoingFrame& frame) {
      if (frame.from != 1 || frame.to != 3 || frames++ != 1) return true;
      ++frame.header.step;
      return !lost;
    });
    const auto statuses = network.RunOnEveryRank([&](Transport& transport) {
      GroupCommunicator group(&transport, WorldGroup(4),
                              AlgorithmTable::Only(Algorithm::kOneShot),
                              nullptr);
      return ReduceSummands(group, 64, Wire::kBf16);
    });
    // The others may have ended before.
    EXPECT_EQ(statuses[3].code(), lost ? absl::StatusCode::kFailedPrecondition
                                       : absl::StatusCode::kDataLoss)
        << statuses[3];
    EXPECT_THAT(std::string(statuses[3].message()), HasSubstr("rank 1"));
  }
}

}  // namespace
}  // namespace ringfleet::cluster
