// SPDX-License-Identifier: Apache-2.0
// Products that are fused with an exchange, over a network in memory: their
// schedule, their bits, and what happens when a rank is slow or dies.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <latch>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cluster/collectives/group_communicator.h"
#include "cluster/process/status_macros.h"
#include "cluster/recording/trace_recorder.h"
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
using ::ringfleet::testing::kForms;
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
using cluster::Side;
using cluster::Transport;
using cluster::Wire;
using kernels::Activations;
using kernels::ThreadPool;
using kernels::WeightForm;

absl::Status Named(const absl::Status& status, int ranks, int rank, size_t rows,
                   WeightForm form) {
  return Annotate(
      status, absl::StrCat(ranks, " ranks, rank ", rank, ", ", rows, " rows, ",
                           kernels::WeightFormName(form)));
}

// Both ways of a reduction.
const AlgorithmTable kReductions[] = {AlgorithmTable::Only(Algorithm::kOneShot),
                                      AlgorithmTable::Only(Algorithm::kRing)};

// Notes the frames of all ranks as they are sent.
class FrameLog {
 public:
  explicit FrameLog(FakeNetwork& network) {
    network.set_script([this](OutgoingFrame& frame) {
      MutexLock lock(&mu_);
      steps_[frame.from].insert({frame.lane, frame.header.step, frame.to});
      changed_.NotifyAll();
      return true;
    });
  }

  // The different (lane, step, receiver) of a rank's frames.
  using Steps = std::set<std::tuple<cluster::Lane, uint32_t, int>>;
  Steps Of(int rank) {
    MutexLock lock(&mu_);
    return steps_[rank];
  }
  // False when a rank has not sent in so many steps after a minute.
  bool Await(int rank, size_t steps) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(1);
    MutexLock lock(&mu_);
    while (steps_[rank].size() < steps) {
      if (!changed_.WaitUntil(&mu_, end)) return false;
    }
    return true;
  }

 private:
  Mutex mu_;
  CondVar changed_;
  std::map<int, Steps> steps_ ABSL_GUARDED_BY(mu_);
};

// The parts of one side in the order in which their first rows have come.
std::vector<int> ShardsInOrder(const std::vector<size_t>& rows, size_t all_rows,
                               int ranks, Side side) {
  const cluster::SplitRows split(all_rows, ranks);
  std::vector<int> shards;
  for (const size_t row : rows) {
    for (int shard = 0; shard < ranks; ++shard) {
      const kernels::RowRange part = split.Of({shard, side});
      if (row == part.begin && part.size() > 0) shards.push_back(shard);
    }
  }
  return shards;
}

// The shards whose left and right parts rank r gets in steps 0, 1, ...: its
// own first.
std::vector<int> Upwards(int r, int ranks) {
  std::vector<int> shards;
  for (int step = 0; step < ranks; ++step) shards.push_back((r + step) % ranks);
  return shards;
}
std::vector<int> Downwards(int r, int ranks) {
  std::vector<int> shards;
  for (int step = 0; step < ranks; ++step) {
    shards.push_back((r - step + ranks) % ranks);
  }
  return shards;
}

TEST(AllGatherMatmulTest, EveryWorldSizeFollowsTheSchedule) {
  constexpr size_t kRows = 23;
  for (const int ranks : {1, 2, 3, 4, 5, 8}) {
    FakeNetwork network(ranks);
    FrameLog log(network);
    EXPECT_THAT(
        RunRanks(network,
                 [&](GroupCommunicator& group) {
                   const int r = group.rank();
                   GatherCase one(ranks, r, {kRows, 7, 3, /*attached=*/1},
                                  WeightForm::kF32);
                   absl::Status status = one.Run(group);
                   if (status.ok()) status = one.Check();
                   const std::vector<size_t> loaded = one.loaded();
                   EXPECT_EQ(ShardsInOrder(loaded, kRows, ranks, Side::kLeft),
                             Upwards(r, ranks));
                   EXPECT_EQ(ShardsInOrder(loaded, kRows, ranks, Side::kRight),
                             Downwards(r, ranks));
                   return status;
                 }),
        Each(absl::OkStatus()));
    for (int r = 0; r < ranks; ++r) {
      FrameLog::Steps want;
      for (uint32_t step = 0; step + 1 < static_cast<uint32_t>(ranks); ++step) {
        want.insert({cluster::Lane::kLeft, step, (r + ranks - 1) % ranks});
        want.insert({cluster::Lane::kRight, step, (r + 1) % ranks});
      }
      EXPECT_EQ(log.Of(r), want) << ranks << " ranks, rank " << r;
    }
  }
}

// Rank 1 never sends. Rank 0 multiplies its own rows before it waits for
// others.
TEST(AllGatherMatmulTest, OwnRowsAreMultipliedBeforeOthersCome) {
  FakeNetwork network(2);
  network.set_script([](OutgoingFrame& frame) { return frame.from != 1; });
  cluster::TraceRecorder recorder;
  ASSERT_TRUE(recorder.Start(1000).ok());
  const auto statuses =
      network.RunOnEveryRank([&](Transport& transport) -> absl::Status {
        GroupCommunicator group(&transport, cluster::WorldGroup(2),
                                AlgorithmTable::Default(), nullptr,
                                transport.rank() == 0 ? &recorder : nullptr);
        GatherCase one(2, group.rank(), {40, 64, 33, 0}, WeightForm::kInt8);
        one.tiles().piece_rows = 1;
        return one.Run(group,
                       cluster::Deadline::After(absl::Milliseconds(200)));
      });
  EXPECT_EQ(statuses[0].code(), absl::StatusCode::kDeadlineExceeded);
  const auto events = recorder.Stop().events;
  EXPECT_EQ(std::count_if(
                events.begin(), events.end(),
                [](const auto& event) { return event.name == kMultiplyPiece; }),
            1);
}

// Rows are computed in the mirrored order, and sent while the own rows, the
// last ones, are computed.
void ExpectTheMirroredSchedule(Algorithm algorithm) {
  constexpr size_t kRows = 23;
  constexpr size_t kColumns = 3;
  for (const int ranks : {1, 2, 3, 4, 5, 8}) {
    const cluster::SplitRows split(kRows, ranks);
    FakeNetwork network(ranks);
    FrameLog log(network);
    EXPECT_THAT(
        RunRanks(
            network,
            [&](GroupCommunicator& group) {
              const int r = group.rank();
              FusedWorkspace workspace;
              std::vector<float> out(split.Shard(r).size() * kColumns);
              int step = 0;
              const auto compute = [&](absl::Span<const kernels::RowRange> rows,
                                       float* y, size_t first_y) {
                const kernels::RowRange left =
                    split.Of({(r - 1 - step + 2 * ranks) % ranks, Side::kLeft});
                const kernels::RowRange right =
                    split.Of({(r + 1 + step) % ranks, Side::kRight});
                EXPECT_THAT(rows, ::testing::UnorderedElementsAre(left, right))
                    << ranks << " ranks, rank " << r << ", step " << step;
                for (const kernels::RowRange range : rows) {
                  std::fill(y + (range.begin - first_y) * kColumns,
                            y + (range.end - first_y) * kColumns, r + 1.0f);
                }
                ++step;
                if (step < ranks) return;
                EXPECT_TRUE(log.Await(r, 2 * static_cast<size_t>(ranks) - 2));
              };
              const absl::Status status =
                  ReduceScatterWhile({.rows = kRows,
                                      .columns = kColumns,
                                      .piece_rows = kRows,
                                      .most_piece_rows = kRows,
                                      .out = out.data()},
                                     compute, group, workspace, Soon());
              EXPECT_EQ(step, ranks);
              EXPECT_THAT(out, Each(ranks * (ranks + 1) / 2.0f));
              return status;
            },
            AlgorithmTable::Only(algorithm)),
        Each(absl::OkStatus()));
    for (int r = 0; r < ranks; ++r) {
      FrameLog::Steps want;
      for (int step = 0; step < ranks - 1; ++step) {
        const auto number = static_cast<uint32_t>(step);
        if (algorithm == Algorithm::kRing) {
          want.insert({cluster::Lane::kLeft, number, (r + ranks - 1) % ranks});
          want.insert({cluster::Lane::kRight, number, (r + 1) % ranks});
        } else {
          want.insert({cluster::Lane::kDirect, 2 * number,
                       (r - 1 - step + ranks) % ranks});
          want.insert(
              {cluster::Lane::kDirect, 2 * number + 1, (r + 1 + step) % ranks});
        }
      }
      EXPECT_EQ(log.Of(r), want) << ranks << " ranks, rank " << r;
    }
  }
}

TEST(ReduceScatterWhileTest, EveryWorldSizeFollowsTheMirroredSchedule) {
  ExpectTheMirroredSchedule(Algorithm::kOneShot);
  ExpectTheMirroredSchedule(Algorithm::kRing);
}

class FusedSweep : public ::testing::TestWithParam<WeightForm> {};

INSTANTIATE_TEST_SUITE_P(Forms, FusedSweep, ::testing::ValuesIn(kForms),
                         [](const auto& info) {
                           return std::string(
                               kernels::WeightFormName(info.param));
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
                   WeightForm form) {
  for (int i = 0; i < kSweepRounds; ++i) {
    absl::Status status = one.Run(group);
    if (status.ok()) status = one.Check();
    if (!status.ok()) {
      return Named(status, group.size(), group.rank(), rows, form);
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

void SweepReductions(Algorithm algorithm, WeightForm form) {
  for (const int ranks : SweptRanks()) {
    for (const ScatterShape& shape : kScatterShapes) {
      FakeNetwork network(ranks, /*piece_bytes=*/61);
      EXPECT_THAT(
          RunRanks(
              network,
              [&](GroupCommunicator& group) -> absl::Status {
                for (const Wire wire : {Wire::kF32, Wire::kBf16, Wire::kInt8}) {
                  ScatterCase one(ranks, group.rank(), shape, form, wire,
                                  /*threads=*/1 + ranks % 2, algorithm);
                  one.tiles().segment_bytes = 3000;
                  RF_RETURN_IF_ERROR(Sweep(one, group, shape.rows, form));
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
TEST(FusedTilesTest, TilesAndSegmentBytesChangeNoBit) {
  constexpr size_t kDepth = 96;
  constexpr size_t kColumns = 192;
  for (const WeightForm form : {WeightForm::kInt8, WeightForm::kBf16}) {
    for (const size_t columns : {size_t{64}, size_t{100}, kColumns}) {
      for (const size_t piece_rows : {3, 4, 7}) {
        for (const size_t segment_bytes : {size_t{1}, size_t{1} << 20}) {
          const auto set = [&](FusedTiles& tiles) {
            tiles = {.tile_columns = columns,
                     .segment_bytes = segment_bytes,
                     .piece_rows = piece_rows};
          };
          FakeNetwork network(3);
          EXPECT_THAT(RunRanks(network,
                               [&](GroupCommunicator& group) -> absl::Status {
                                 GatherCase gather(3, group.rank(),
                                                   {31, kDepth, kColumns, 1},
                                                   form);
                                 set(gather.tiles());
                                 RF_RETURN_IF_ERROR(gather.Run(group));
                                 RF_RETURN_IF_ERROR(gather.Check());
                                 ScatterCase scatter(3, group.rank(),
                                                     {31, kDepth, kColumns},
                                                     form, Wire::kF32);
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
  const kernels::WeightMatrix narrow =
      TestWeights(WeightForm::kBf16, 1, 2048, 1);
  const kernels::WeightMatrix wide = TestWeights(WeightForm::kBf16, 1, 7168, 1);
  const auto pieces = [](const kernels::WeightMatrix& weights, size_t rows,
                         int ranks, size_t piece_rows = 8) {
    const worker::ScatterPieces found =
        worker::PiecesOf({.rows = rows,
                          .wire = cluster::Wire::kBf16,
                          .tiles = {.piece_rows = piece_rows},
                          .w = &weights},
                         ranks, {.together = 1, .enough = 8});
    return Sizes(found.first, found.most);
  };
  // 64 KiB are 16 rows of bfloat16, and 4.
  EXPECT_EQ(pieces(narrow, 128, 2), Sizes(16, 16));
  EXPECT_EQ(pieces(narrow, 512, 2), Sizes(16, 48));
  EXPECT_EQ(pieces(wide, 128, 2), Sizes(4, 16));
  EXPECT_EQ(pieces(wide, 128, 4), Sizes(4, 8));
  EXPECT_EQ(pieces(wide, 0, 4), Sizes(4, 4));
  // Where more are worth a reading, 12 of each part: three frames.
  EXPECT_EQ(pieces(wide, 128, 2, 16), Sizes(12, 16));
  EXPECT_EQ(pieces(wide, 128, 4, 16), Sizes(12, 12));
  EXPECT_EQ(pieces(narrow, 128, 2, 16), Sizes(16, 16));
}

// 40 rows of a part are not cut in the middle of a tile.
TEST(ScatterPiecesTest, AreWholeTiles) {
  const kernels::WeightMatrix weights =
      TestWeights(WeightForm::kInt8, 1, 7168, 1);
  constexpr kernels::ProductRows kTiles = {.together = 16, .enough = 32};
  for (size_t rows = 0; rows < 1000; rows += 8) {
    const worker::ScatterPieces pieces = worker::PiecesOf(
        {.rows = rows, .tiles = {.piece_rows = 9}, .w = &weights}, 4, kTiles);
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
  EXPECT_THAT(RunRanks(network,
                       [&](GroupCommunicator& group) -> absl::Status {
                         GatherCase one(3, group.rank(), {5, 300'001, 2, 3},
                                        WeightForm::kF32);
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
          GatherCase gather(ranks, group.rank(), {37, 70, 65, 2},
                            WeightForm::kInt8,
                            /*threads=*/2);
          ScatterCase scatter(
              ranks, group.rank(), {37, 70, 65}, WeightForm::kInt8, wire,
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
            GatherCase one(4, group.rank(), {40, 64, 33, 0}, WeightForm::kInt8);
            return one.Run(group, deadline);
          }
          ScatterCase one(4, group.rank(), {40, 64, 33}, WeightForm::kInt8,
                          Wire::kF32);
          return one.Run(group, deadline);
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
        GatherCase one(3, group.rank(), {9, 8, 3, 0}, WeightForm::kF32);
        return one.Run(group, cluster::Deadline::Infinite());
      });
  EXPECT_THAT(statuses, Each(cause));
}

TEST(FusedFailureTest, DifferentSharesAreFoundOut) {
  FakeNetwork network(2);
  const auto statuses =
      RunRanks(network, [&](GroupCommunicator& group) -> absl::Status {
        GatherCase one(2, group.rank(), {9, 8, 3, 0}, WeightForm::kF32);
        one.tiles().segment_bytes += static_cast<size_t>(group.rank());
        return one.Run(group);
      });
  for (const absl::Status& status : statuses) {
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("different shares"));
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
      GatherCase gather(kRanks, rank, {120, 700, 130, 5}, WeightForm::kInt8,
                        /*threads=*/2);
      ScatterCase scatter(kRanks, rank, {120, 700, 130}, WeightForm::kInt8,
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
                 const kernels::WeightMatrix w =
                     TestWeights(WeightForm::kInt8, 128, 64, 1);
                 const kernels::WeightMatrix back =
                     TestWeights(WeightForm::kInt8, 64, 128, 2);
                 ThreadPool pool(1);
                 FusedWorkspace gathering, scattering;
                 const std::vector<float> values = RankValues(0, 20 * 128);
                 Activations x;
                 x.Assign(Activations::Form::kInt8, values.data(), 20, 128, 128,
                          pool);
                 std::vector<float> y(40 * 64), z(20 * 128);
                 const FusedOutput product = {
                     .w = &w, .y = y.data(), .y_stride = 64};
                 for (int round = 0; round < 30; ++round) {
                   const size_t before = AllocationCount();
                   RF_RETURN_IF_ERROR(group.Barrier(Soon()));
                   RF_RETURN_IF_ERROR(AllGatherMatmul(
                       {.rows = 40, .x = &x, .products = {&product, 1}}, group,
                       gathering, pool, Soon()));
                   RF_RETURN_IF_ERROR(MatmulReduceScatter({.rows = 40,
                                                           .wire = Wire::kBf16,
                                                           .x = y.data(),
                                                           .x_stride = 64,
                                                           .w = &back,
                                                           .out = z.data()},
                                                          group, scattering,
                                                          pool, Soon()));
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
