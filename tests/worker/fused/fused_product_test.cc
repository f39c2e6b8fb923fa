// SPDX-License-Identifier: Apache-2.0
// Products that are fused with an exchange, over a network in memory: their
// schedule, their bits, and what happens when a rank is slow or dies.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <latch>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cluster/collectives/group_communicator.h"
#include "cluster/process/status_macros.h"
#include "kernels/dtype.h"
#include "kernels/mutex.h"
#include "tests/testing/collective_cases.h"
#include "tests/testing/count_allocations.h"
#include "tests/testing/fake_transport.h"
#include "tests/testing/fused_cases.h"
#include "tests/testing/grpc_world.h"
#include "tests/testing/sanitized.h"
#include "tests/testing/scripted_transport.h"
#include "tests/testing/soon.h"
#include "worker/fused/reduce_scatter_while.h"

namespace ringfleet::worker {
namespace {

using ::ringfleet::testing::AllocationCount;
using ::ringfleet::testing::FakeNetwork;
using ::ringfleet::testing::GatherCase;
using ::ringfleet::testing::GatherShape;
using ::ringfleet::testing::GrpcWorld;
using ::ringfleet::testing::kLayouts;
using ::ringfleet::testing::Layout;
using ::ringfleet::testing::LayoutName;
using ::ringfleet::testing::OutgoingFrame;
using ::ringfleet::testing::RankValues;
using ::ringfleet::testing::RunRanks;
using ::ringfleet::testing::ScatterCase;
using ::ringfleet::testing::ScatterShape;
using ::ringfleet::testing::ScriptedTransport;
using ::ringfleet::testing::SlowFrames;
using ::ringfleet::testing::Soon;
using ::ringfleet::testing::TestWeights;
using ::testing::Each;
using ::testing::HasSubstr;

using cluster::Algorithm;
using cluster::AlgorithmTable;
using cluster::GroupCommunicator;
using cluster::ShardPart;
using cluster::Side;
using cluster::Transport;
using cluster::Wire;
using kernels::Activations;
using kernels::ThreadPool;
using kernels::WeightForm;

absl::Status Named(const absl::Status& status, int ranks, int rank, size_t rows,
                   Layout layout) {
  return Annotate(status, absl::StrCat(ranks, " ranks, rank ", rank, ", ", rows,
                                       " rows, layout ", LayoutName(layout)));
}

// Records what a rank's two threads do, "kind step half" each.
class Trace final : public FusedObserver {
 public:
  void Sent(int step, ShardPart part) override { Add('s', step, part); }
  void Multiplied(int step, ShardPart part) override { Add('m', step, part); }
  void Written(int step, ShardPart part) override { Add('w', step, part); }

  // The halves of `kind` in `step`, as they came.
  std::string Of(char kind, int step) {
    MutexLock lock(&mu_);
    std::string all;
    for (const Event& event : events_) {
      if (event.kind != kind || event.step != step) continue;
      absl::StrAppend(&all, all.empty() ? "" : " ", event.part.shard,
                      event.part.side == Side::kLeft ? "L" : "R");
    }
    return all;
  }
  // Steps of one kind and direction never go back.
  bool InOrder() {
    MutexLock lock(&mu_);
    for (size_t i = 0; i < events_.size(); ++i) {
      for (size_t j = i + 1; j < events_.size(); ++j) {
        if (events_[i].kind == events_[j].kind &&
            events_[i].part.side == events_[j].part.side &&
            events_[i].step >= events_[j].step) {
          return false;
        }
      }
    }
    return true;
  }
  size_t size() {
    MutexLock lock(&mu_);
    return events_.size();
  }

 private:
  struct Event {
    char kind;
    int step;
    ShardPart part;
  };
  void Add(char kind, int step, ShardPart part) {
    MutexLock lock(&mu_);
    events_.push_back({kind, step, part});
  }

  Mutex mu_;
  std::vector<Event> events_ ABSL_GUARDED_BY(mu_);
};

std::string Pair(int left, int right) {
  return absl::StrCat(left, "L ", right, "R");
}

// Both ways of a reduction.
const AlgorithmTable kReductions[] = {AlgorithmTable::Only(Algorithm::kOneShot),
                                      AlgorithmTable::Only(Algorithm::kRing)};

// The traces of all ranks of one gather, or one reduction, by rank.
template <typename Case, typename Shape, typename... Wires>
std::vector<std::unique_ptr<Trace>> TraceOf(const AlgorithmTable& table,
                                            int ranks, const Shape& shape,
                                            Wires... wire) {
  std::vector<std::unique_ptr<Trace>> traces(ranks);
  for (auto& trace : traces) trace = std::make_unique<Trace>();
  FakeNetwork network(ranks);
  EXPECT_THAT(RunRanks(
                  network,
                  [&](GroupCommunicator& group) {
                    return Case(ranks, group.rank(), shape, Layout::kF32,
                                wire...)
                        .Run(group, traces[group.rank()].get());
                  },
                  table),
              Each(absl::OkStatus()));
  return traces;
}

// The table of the published schedule for four ranks, column by column.
TEST(AllGatherMatmulTest, FollowsThePublishedScheduleOfFourRanks) {
  const auto traces =
      TraceOf<GatherCase>(AlgorithmTable::Default(), 4, GatherShape{64, 16, 5});
  const char* const kSentLeft[3][4] = {{"0L", "1L", "2L", "3L"},
                                       {"1L", "2L", "3L", "0L"},
                                       {"2L", "3L", "0L", "1L"}};
  const char* const kSentRight[3][4] = {{"0R", "1R", "2R", "3R"},
                                        {"3R", "0R", "1R", "2R"},
                                        {"2R", "3R", "0R", "1R"}};
  const char* const kMultiplied[4][4] = {{"0L 0R", "1L 1R", "2L 2R", "3L 3R"},
                                         {"1L 3R", "2L 0R", "3L 1R", "0L 2R"},
                                         {"2L 2R", "3L 3R", "0L 0R", "1L 1R"},
                                         {"3L 1R", "0L 2R", "1L 3R", "2L 0R"}};
  for (int rank = 0; rank < 4; ++rank) {
    Trace& trace = *traces[rank];
    for (int step = 0; step < 6; ++step) {
      SCOPED_TRACE(absl::StrCat("rank ", rank, ", step ", step));
      const std::string sent = trace.Of('s', step);
      if (step < 3) {
        EXPECT_THAT(sent, HasSubstr(kSentLeft[step][rank]));
        EXPECT_THAT(sent, HasSubstr(kSentRight[step][rank]));
      }
      EXPECT_EQ(sent.size(), step < 3 ? 5u : 0u);
      EXPECT_EQ(trace.Of('m', step),
                step >= 1 && step <= 4 ? kMultiplied[step - 1][rank] : "");
      EXPECT_EQ(trace.Of('w', step),
                step >= 2 ? kMultiplied[step - 2][rank] : "");
    }
  }
}

TEST(AllGatherMatmulTest, EveryWorldSizeFollowsTheSchedule) {
  for (const int ranks : {1, 2, 3, 4, 5, 8}) {
    const auto traces = TraceOf<GatherCase>(AlgorithmTable::Default(), ranks,
                                            GatherShape{23, 7, 3});
    for (int r = 0; r < ranks; ++r) {
      Trace& trace = *traces[r];
      EXPECT_TRUE(trace.InOrder());
      const auto left = [&](int o) { return (r + o) % ranks; };
      const auto right = [&](int o) { return (r - o + 2 * ranks) % ranks; };
      for (int step = 0; step <= ranks + 1; ++step) {
        SCOPED_TRACE(absl::StrCat(ranks, " ranks, rank ", r, ", step ", step));
        const std::string sent = trace.Of('s', step);
        if (step <= ranks - 2) {
          EXPECT_THAT(sent, HasSubstr(absl::StrCat(left(step), "L")));
          EXPECT_THAT(sent, HasSubstr(absl::StrCat(right(step), "R")));
        } else {
          EXPECT_EQ(sent, "");
        }
        const bool multiplies = step >= 1 && step <= ranks;
        EXPECT_EQ(trace.Of('m', step),
                  multiplies ? Pair(left(step - 1), right(step - 1)) : "");
        EXPECT_EQ(trace.Of('w', step),
                  step >= 2 ? Pair(left(step - 2), right(step - 2)) : "");
      }
      // Two halves sent in T - 1 steps, multiplied and written in T.
      EXPECT_EQ(trace.size(), static_cast<size_t>(2 * (3 * ranks - 1)));
    }
  }
}

void ExpectTheMirroredSchedule(const AlgorithmTable& table) {
  for (const int ranks : {1, 2, 3, 4, 5, 8}) {
    const auto traces =
        TraceOf<ScatterCase>(table, ranks, ScatterShape{23, 7, 3}, Wire::kF32);
    for (int r = 0; r < ranks; ++r) {
      Trace& trace = *traces[r];
      EXPECT_TRUE(trace.InOrder());
      for (int step = 0; step < ranks; ++step) {
        SCOPED_TRACE(absl::StrCat(ranks, " ranks, rank ", r, ", step ", step));
        const int left = (r - 1 - step + 2 * ranks) % ranks;
        const int right = (r + 1 + step) % ranks;
        EXPECT_EQ(trace.Of('m', step), Pair(left, right));
        const std::string sent = trace.Of('s', step);
        if (step < ranks - 1) {
          EXPECT_THAT(sent, HasSubstr(absl::StrCat(left, "L")));
          EXPECT_THAT(sent, HasSubstr(absl::StrCat(right, "R")));
        } else {
          EXPECT_EQ(sent, "");
        }
        EXPECT_EQ(trace.Of('w', step), step == ranks - 1 ? Pair(r, r) : "");
      }
      EXPECT_EQ(trace.size(), static_cast<size_t>(2 * (2 * ranks - 1) + 2));
    }
  }
}

TEST(MatmulReduceScatterTest, EveryWorldSizeFollowsTheMirroredSchedule) {
  for (const AlgorithmTable& table : kReductions) {
    ExpectTheMirroredSchedule(table);
  }
}

class FusedSweep : public ::testing::TestWithParam<Layout> {};

INSTANTIATE_TEST_SUITE_P(Layouts, FusedSweep, ::testing::ValuesIn(kLayouts),
                         [](const auto& info) {
                           return std::string(LayoutName(info.param));
                         });

// Fewer rows than ranks, odd ones, more than one batch of a panel; no rows, no
// inputs and no outputs too.
constexpr GatherShape kGatherShapes[] = {
    {0, 5, 3, 0},    {1, 1, 1, 1},     {3, 64, 65, 2}, {7, 130, 64, 0},
    {16, 200, 5, 9}, {129, 33, 70, 3}, {5, 0, 4, 2},   {6, 8, 0, 1}};

// How many ranks are tried, and how often: fewer where each thread takes tens
// of times as long.
std::vector<int> SweptRanks() {
  if (testing::kSlowdown > 4) return {1, 2, 3};
  return {1, 2, 3, 4, 8};
}
constexpr int kSweepRounds = testing::kSanitized ? 3 : 10;

// Runs `one` again and again; every result must be right.
template <typename Case>
absl::Status Sweep(Case& one, GroupCommunicator& group, size_t rows,
                   Layout layout) {
  for (int i = 0; i < kSweepRounds; ++i) {
    absl::Status status = one.Run(group);
    if (status.ok()) status = one.Check();
    if (!status.ok()) {
      return Named(status, group.size(), group.rank(), rows, layout);
    }
  }
  return absl::OkStatus();
}

TEST_P(FusedSweep, GatheringIsBitwiseWhatGatherThenMultiplyGives) {
  for (const int ranks : SweptRanks()) {
    for (const GatherShape& shape : kGatherShapes) {
      FakeNetwork network(ranks, /*piece_bytes=*/61);
      EXPECT_THAT(RunRanks(network,
                           [&](GroupCommunicator& group) {
                             GatherCase one(ranks, group.rank(), shape,
                                            GetParam(),
                                            /*threads=*/1 + ranks % 2);
                             one.tiles().segment_bytes = 600;
                             one.tiles().piece_rows = 1 + ranks;
                             return Sweep(one, group, shape.rows, GetParam());
                           }),
                  Each(absl::OkStatus()));
    }
  }
}

constexpr ScatterShape kScatterShapes[] = {
    {0, 5, 3},     {1, 1, 1},    {3, 64, 65}, {7, 130, 64}, {16, 200, 5},
    {129, 33, 70}, {250, 9, 40}, {5, 0, 4},   {6, 8, 0}};

void SweepReductions(Algorithm algorithm, Layout layout) {
  for (const int ranks : SweptRanks()) {
    for (const ScatterShape& shape : kScatterShapes) {
      FakeNetwork network(ranks, /*piece_bytes=*/61);
      EXPECT_THAT(
          RunRanks(
              network,
              [&](GroupCommunicator& group) -> absl::Status {
                for (const Wire wire : {Wire::kF32, Wire::kBf16, Wire::kInt8}) {
                  ScatterCase one(ranks, group.rank(), shape, layout, wire,
                                  /*threads=*/1 + ranks % 2, algorithm);
                  one.tiles().segment_bytes = 3000;
                  RF_RETURN_IF_ERROR(Sweep(one, group, shape.rows, layout));
                }
                return absl::OkStatus();
              },
              AlgorithmTable::Only(algorithm)),
          Each(absl::OkStatus()));
    }
  }
}

TEST_P(FusedSweep, ReducingIsBitwiseThePlainSumInTheStatedOrder) {
  SweepReductions(Algorithm::kOneShot, GetParam());
}

// The ring's sums travel as float32, whatever the wire is, in the same order.
TEST_P(FusedSweep, ReducingAlongTheRingRoundsNothing) {
  SweepReductions(Algorithm::kRing, GetParam());
}

// Tiles of one, two and three blocks each way; none changes a bit.
TEST(FusedTilesTest, TilesAndSegmentsChangeNoBit) {
  constexpr size_t kDepth = 96;
  constexpr size_t kColumns = 192;
  for (const Layout layout : {Layout::kInt8, Layout::kBf16, Layout::kInOut}) {
    for (const size_t columns : {size_t{64}, size_t{100}, kColumns}) {
      for (const size_t depth : {size_t{32}, size_t{50}, kDepth}) {
        for (const size_t segment : {size_t{1}, size_t{1} << 20}) {
          const auto set = [&](FusedTiles& tiles) {
            tiles = {.tile_columns = columns,
                     .tile_depth = depth,
                     .segment_bytes = segment,
                     .piece_rows = 1 + depth / 16};
          };
          FakeNetwork network(3);
          EXPECT_THAT(RunRanks(network,
                               [&](GroupCommunicator& group) -> absl::Status {
                                 GatherCase gather(3, group.rank(),
                                                   {31, kDepth, kColumns, 1},
                                                   layout);
                                 set(gather.tiles());
                                 RF_RETURN_IF_ERROR(gather.Run(group));
                                 RF_RETURN_IF_ERROR(gather.Check());
                                 ScatterCase scatter(3, group.rank(),
                                                     {31, kDepth, kColumns},
                                                     layout, Wire::kF32);
                                 set(scatter.tiles());
                                 RF_RETURN_IF_ERROR(scatter.Run(group));
                                 return scatter.Check();
                               }),
                      Each(absl::OkStatus()));
        }
      }
    }
  }
}

TEST(FusedTilesTest, TheDefaultFitsHalfOfALevel2Cache) {
  const FusedTiles wide = FusedTiles::Default(WeightForm::kInt8, 1536);
  EXPECT_EQ(wide.tile_columns % kernels::kPanelRows, 0u);
  EXPECT_GE(wide.tile_columns,
            FusedTiles::Default(WeightForm::kInt8, 7168).tile_columns);
  EXPECT_EQ(FusedTiles::Default(WeightForm::kF32, size_t{1} << 20).tile_columns,
            kernels::kPanelRows);
  EXPECT_EQ(FusedTiles::Default(WeightForm::kInt8, 0).tile_columns, 4096u);
  EXPECT_EQ(wide, FusedTiles::Default(WeightForm::kInt8, 1536));
  EXPECT_EQ(wide.piece_rows,
            kernels::BestProductRows(Activations::Form::kInt8).enough);
}

TEST(ScatterPiecesTest, BeginWithAFrameAndEndWithPartsOfAHalf) {
  using Sizes = std::pair<size_t, size_t>;
  const TestWeights narrow(Layout::kBf16, 1, 2048, 1);
  const TestWeights wide(Layout::kBf16, 1, 7168, 1);
  const auto pieces = [](const TestWeights& weights, size_t rows, int ranks,
                         size_t piece_rows = 8) {
    const worker::ScatterPieces found =
        worker::PiecesOf({.rows = rows,
                          .wire = cluster::Wire::kBf16,
                          .tiles = {.piece_rows = piece_rows},
                          .weights = weights.view()},
                         ranks, {.together = 1, .enough = 8});
    return Sizes(found.first, found.most);
  };
  // 64 KiB are 16 rows of bfloat16, and 4.
  EXPECT_EQ(pieces(narrow, 128, 2), Sizes(16, 16));
  EXPECT_EQ(pieces(narrow, 512, 2), Sizes(16, 48));
  EXPECT_EQ(pieces(wide, 128, 2), Sizes(4, 16));
  EXPECT_EQ(pieces(wide, 128, 4), Sizes(4, 8));
  EXPECT_EQ(pieces(wide, 0, 4), Sizes(4, 4));
  // Where more are worth a reading, 12 of each half: three frames.
  EXPECT_EQ(pieces(wide, 128, 2, 16), Sizes(12, 16));
  EXPECT_EQ(pieces(wide, 128, 4, 16), Sizes(12, 12));
  EXPECT_EQ(pieces(narrow, 128, 2, 16), Sizes(16, 16));
}

// 40 rows of a half are not cut in the middle of a tile.
TEST(ScatterPiecesTest, AreWholeTiles) {
  const TestWeights weights(Layout::kInt8, 1, 7168, 1);
  constexpr kernels::ProductRows kTiles = {.together = 16, .enough = 32};
  for (size_t rows = 0; rows < 1000; rows += 8) {
    const worker::ScatterPieces pieces = worker::PiecesOf(
        {.rows = rows, .tiles = {.piece_rows = 9}, .weights = weights.view()},
        4, kTiles);
    EXPECT_EQ(pieces.first, 16u);
    EXPECT_EQ(pieces.most, rows < 512 ? 16u : rows < 768 ? 32u : 48u) << rows;
  }
}

// Twice as many each time, then the rest; own rows are one.
TEST(ReduceScatterWhileTest, PiecesGrowUpToTheMost) {
  FakeNetwork network(2);
  std::vector<size_t> sizes;
  EXPECT_THAT(RunRanks(network,
                       [&](GroupCommunicator& group) -> absl::Status {
                         worker::FusedWorkspace workspace;
                         std::vector<float> out(50);
                         return worker::ReduceScatterWhile(
                             {.rows = 100,
                              .columns = 1,
                              .piece_rows = 3,
                              .most_piece_rows = 10,
                              .out = out.data()},
                             [&](absl::Span<const kernels::RowRange> rows,
                                 float* y, size_t first_y) {
                               for (const kernels::RowRange range : rows) {
                                 std::fill(y + (range.begin - first_y),
                                           y + (range.end - first_y), 1.0f);
                               }
                               if (group.rank() == 0)
                                 sizes.push_back(rows[0].size());
                             },
                             group, workspace, Soon());
                       }),
              Each(absl::OkStatus()));
  EXPECT_THAT(sizes, ::testing::ElementsAre(3, 6, 10, 6, 25));
}

// A row longer than a frame comes in several.
TEST(AllGatherMatmulTest, RowsLongerThanAFrameArrive) {
  FakeNetwork network(3, /*piece_bytes=*/100'003);
  EXPECT_THAT(
      RunRanks(
          network,
          [&](GroupCommunicator& group) -> absl::Status {
            GatherCase one(3, group.rank(), {5, 300'001, 2, 3}, Layout::kF32);
            RF_RETURN_IF_ERROR(one.Run(group));
            return one.Check();
          }),
      Each(absl::OkStatus()));
}

// Gathers and reductions follow each other, and one of the ranks, or one of
// the directions, is late with everything: neither bits nor calls get mixed up.
void RunWithDelays(int ranks, const AlgorithmTable& table, Wire wire) {
  struct Delay {
    int rank;
    bool left;
    bool right;
  };
  for (const Delay delay : {Delay{0, true, true}, Delay{1, true, false},
                            Delay{1, false, true}, Delay{-1, true, false}}) {
    FakeNetwork network(ranks);
    const auto statuses =
        network.RunOnEveryRank([&](Transport& transport) -> absl::Status {
          const bool slow = delay.rank < 0 || delay.rank == transport.rank();
          const auto delay_if = [&](bool late) {
            return slow && late ? absl::Microseconds(150)
                                : absl::ZeroDuration();
          };
          ScriptedTransport late(
              &transport,
              SlowFrames(ranks, delay_if(delay.right), delay_if(delay.left)));
          GroupCommunicator group(&late, cluster::WorldGroup(ranks), table,
                                  nullptr);
          GatherCase gather(ranks, group.rank(), {37, 70, 65, 2}, Layout::kInt8,
                            /*threads=*/2);
          ScatterCase scatter(
              ranks, group.rank(), {37, 70, 65}, Layout::kInt8, wire,
              /*threads=*/2,
              table.Choose(cluster::Operation::kMatmulReduceScatter,
                           /*bytes=*/0, ranks));
          gather.tiles().segment_bytes = 256;
          scatter.tiles().segment_bytes = 1200;
          for (int i = 0; i < 10; ++i) {
            RF_RETURN_IF_ERROR(gather.Run(group));
            RF_RETURN_IF_ERROR(gather.Check());
            RF_RETURN_IF_ERROR(gather.Run(group));
            RF_RETURN_IF_ERROR(scatter.Run(group));
            RF_RETURN_IF_ERROR(gather.Check());
            RF_RETURN_IF_ERROR(scatter.Check());
          }
          return absl::OkStatus();
        });
    EXPECT_THAT(statuses, Each(absl::OkStatus()));
  }
}

TEST(FusedDelayTest, LateRanksAndDirectionsChangeNoBit) {
  for (const int ranks : {2, 3, 4}) {
    RunWithDelays(ranks, AlgorithmTable::Only(Algorithm::kRing), Wire::kF32);
  }
}

TEST(FusedDelayTest, LateRanksChangeNoBitOfDirectSums) {
  for (const int ranks : {2, 3, 4, 5}) {
    RunWithDelays(ranks, AlgorithmTable::Only(Algorithm::kOneShot),
                  Wire::kBf16);
  }
}

// A rank from which and to which nothing gets through from the n-th frame on:
// nobody waits beyond the deadline, and all ranks get the error.
void ExpectSilenceIsAnError(bool gather, const AlgorithmTable& table) {
  for (const int survives : {0, 1, 3}) {
    FakeNetwork network(4);
    int frames = 0;
    network.set_script([&](OutgoingFrame& frame) {
      return (frame.from != 2 && frame.to != 2) || frames++ < survives;
    });
    const auto begin = std::chrono::steady_clock::now();
    const auto statuses = RunRanks(
        network,
        [&](GroupCommunicator& group) -> absl::Status {
          const cluster::Deadline deadline =
              cluster::Deadline::After(absl::Milliseconds(200));
          if (gather) {
            GatherCase one(4, group.rank(), {40, 64, 33, 0}, Layout::kInt8);
            return one.Run(group, nullptr, deadline);
          }
          ScatterCase one(4, group.rank(), {40, 64, 33}, Layout::kInt8,
                          Wire::kF32);
          return one.Run(group, nullptr, deadline);
        },
        table);
    for (const absl::Status& status : statuses) {
      EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
      EXPECT_THAT(
          std::string(status.message()),
          HasSubstr(gather ? "all_gather_matmul" : "matmul_reduce_scatter"));
    }
    EXPECT_LT(std::chrono::steady_clock::now() - begin,
              std::chrono::seconds(20));
  }
}

TEST(FusedFailureTest, ARankThatFallsSilentInTheMiddleIsAnErrorOnAllRanks) {
  ExpectSilenceIsAnError(/*gather=*/true, AlgorithmTable::Default());
  for (const AlgorithmTable& table : kReductions) {
    ExpectSilenceIsAnError(/*gather=*/false, table);
  }
}

TEST(FusedFailureTest, AnAbortWakesBothThreads) {
  FakeNetwork network(3);
  const absl::Status cause = absl::UnavailableError("rank 1: lease expired");
  const auto statuses =
      RunRanks(network, [&](GroupCommunicator& group) -> absl::Status {
        if (group.rank() == 1) {
          network.transport(1).Abort(cause);
          return cause;
        }
        GatherCase one(3, group.rank(), {9, 8, 3, 0}, Layout::kF32);
        return one.Run(group, nullptr, cluster::Deadline::Infinite());
      });
  EXPECT_THAT(statuses, Each(cause));
}

TEST(FusedFailureTest, DifferentSegmentsAreFoundOut) {
  FakeNetwork network(2);
  const auto statuses =
      RunRanks(network, [&](GroupCommunicator& group) -> absl::Status {
        GatherCase one(2, group.rank(), {9, 8, 3, 0}, Layout::kF32);
        one.tiles().segment_bytes += static_cast<size_t>(group.rank());
        return one.Run(group);
      });
  for (const absl::Status& status : statuses) {
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("different segments"));
  }
}

// Over real streams: right, and an error everywhere when a rank goes away while
// others are in a call.
TEST(FusedLinkTest, RunsOverStreamsAndEndsWithARank) {
  constexpr int kRanks = 3;
  for (const bool gathers : {true, false}) {
    GrpcWorld world(kRanks);
    std::vector<absl::Status> statuses(kRanks);
    std::latch all_were_right(kRanks);
    const auto begin = std::chrono::steady_clock::now();
    world.RunConnected([&](Transport& transport) {
      GroupCommunicator group(&transport, cluster::WorldGroup(kRanks),
                              cluster::AlgorithmTable::Default(), nullptr);
      const int rank = group.rank();
      GatherCase gather(kRanks, rank, {120, 700, 130, 5}, Layout::kInt8,
                        /*threads=*/2);
      ScatterCase scatter(kRanks, rank, {120, 700, 130}, Layout::kInt8,
                          Wire::kBf16, /*threads=*/2);
      gather.tiles().segment_bytes = 4000;
      for (int i = 0; i < 5; ++i) {
        EXPECT_EQ(gather.Run(group), absl::OkStatus());
        EXPECT_EQ(scatter.Run(group), absl::OkStatus());
        EXPECT_EQ(gather.Check(), absl::OkStatus());
        EXPECT_EQ(scatter.Check(), absl::OkStatus());
      }
      all_were_right.arrive_and_wait();
      if (rank == 1) return world.Kill(1);
      statuses[rank] = gathers ? gather.Run(group) : scatter.Run(group);
    });
    EXPECT_LT(std::chrono::steady_clock::now() - begin,
              std::chrono::seconds(50));
    EXPECT_EQ(statuses[0].code(), absl::StatusCode::kUnavailable)
        << statuses[0];
    EXPECT_EQ(statuses[2].code(), absl::StatusCode::kUnavailable)
        << statuses[2];
  }
}

TEST(FusedAllocationTest, WarmCallsAllocateNothing) {
  if (!testing::CountsAllocations()) {
    GTEST_SKIP() << "a sanitizer has the allocator";
  }
  FakeNetwork network(2);
  // How far ranks run ahead of each other differs from round to round; what a
  // call allocates shows in all of them.
  size_t least = ~size_t{0};
  EXPECT_THAT(
      RunRanks(network,
               [&](GroupCommunicator& group) -> absl::Status {
                 const TestWeights w(Layout::kInt8, 128, 64, 1);
                 const TestWeights back(Layout::kInt8, 64, 128, 2);
                 ThreadPool pool(1);
                 FusedWorkspace gathering, scattering;
                 const std::vector<float> values = RankValues(0, 20 * 128);
                 Activations x;
                 x.Assign(Activations::Form::kInt8, values.data(), 20, 128, 128,
                          pool);
                 std::vector<float> y(40 * 64), z(20 * 128);
                 const FusedOutput product = {
                     .weights = w.view(), .y = y.data(), .y_stride = 64};
                 for (int round = 0; round < 30; ++round) {
                   const size_t before = AllocationCount();
                   RF_RETURN_IF_ERROR(group.Barrier(Soon()));
                   RF_RETURN_IF_ERROR(AllGatherMatmul(
                       {.rows = 40, .x = &x, .products = {&product, 1}}, group,
                       gathering, pool, Soon()));
                   RF_RETURN_IF_ERROR(
                       MatmulReduceScatter({.rows = 40,
                                            .wire = Wire::kBf16,
                                            .x = y.data(),
                                            .x_stride = 64,
                                            .weights = back.view(),
                                            .out = z.data()},
                                           group, scattering, pool, Soon()));
                   RF_RETURN_IF_ERROR(group.Barrier(Soon()));
                   if (group.rank() == 0) {
                     least = std::min(least, AllocationCount() - before);
                   }
                 }
                 return absl::OkStatus();
               }),
      Each(absl::OkStatus()));
  EXPECT_EQ(least, 0u);
}

}  // namespace
}  // namespace ringfleet::worker
