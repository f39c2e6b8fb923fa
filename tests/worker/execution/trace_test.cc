// SPDX-License-Identifier: Apache-2.0
// The trace of products that are fused with an exchange, and its messages.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "cluster/collectives/group_communicator.h"
#include "tests/testing/collective_cases.h"
#include "tests/testing/fake_transport.h"
#include "tests/testing/fused_cases.h"
#include "tests/testing/soon.h"
#include "tests/testing/trace_checks.h"
#include "worker/execution/trace_chunks.h"
#include "worker/fused/all_gather_matmul.h"
#include "worker/fused/matmul_reduce_scatter.h"

namespace ringfleet::worker {
namespace {

using ::ringfleet::testing::EventsOf;
using ::ringfleet::testing::FakeNetwork;
using ::ringfleet::testing::RankValues;
using ::ringfleet::testing::Soon;
using ::ringfleet::testing::TestWeights;
using ::ringfleet::testing::TraceError;
using ::ringfleet::testing::TraceKind;
using ::ringfleet::testing::TraceThread;
using ::testing::Each;
using ::testing::IsSupersetOf;
using ::testing::SizeIs;

constexpr size_t kTracedRows = 96;
constexpr size_t kTracedDepth = 64;
constexpr size_t kTracedColumns = 32;

// One rank's trace of either product of float32 numbers.
absl::Status RunTraced(cluster::Communicator& group, bool gathers) {
  const kernels::WeightMatrix w = TestWeights(
      kernels::WeightForm::kF32, kTracedDepth, kTracedColumns, /*seed=*/7);
  FusedTiles tiles = FusedTiles::Default(w);
  tiles.segment_bytes = 1024;  // Four rows.
  FusedWorkspace workspace;
  kernels::ThreadPool pool(1);
  const cluster::SplitRows parts(kTracedRows, group.size());
  const kernels::RowRange own = parts.Shard(group.rank());
  std::vector<float> y(kTracedRows * kTracedColumns);
  if (gathers) {
    const std::vector<float> values =
        RankValues(group.rank(), own.size() * kTracedDepth);
    kernels::Activations x;
    x.Assign(kernels::Activations::Form::kF32, values.data(), own.size(),
             kTracedDepth, kTracedDepth, pool);
    const std::vector<FusedOutput> products = {
        {.w = &w, .y = y.data(), .y_stride = kTracedColumns}};
    return AllGatherMatmul(
        {.rows = kTracedRows, .tiles = tiles, .x = &x, .products = products},
        group, workspace, pool, Soon());
  }
  const std::vector<float> x =
      RankValues(group.rank(), kTracedRows * kTracedDepth);
  return MatmulReduceScatter({.rows = kTracedRows,
                              .wire = cluster::Wire::kF32,
                              .tiles = tiles,
                              .x = x.data(),
                              .x_stride = kTracedDepth,
                              .w = &w,
                              .out = y.data()},
                             group, workspace, pool, Soon());
}

TEST(FusedTraceTest, ShowsBothThreadsAndWhatTravels) {
  for (const int ranks : {2, 3}) {
    for (const bool gathers : {true, false}) {
      FakeNetwork network(ranks);
      std::vector<cluster::TraceRecorder> recorders(ranks);
      for (auto& recorder : recorders) {
        ASSERT_TRUE(recorder.Start(10'000).ok());
      }
      const auto statuses =
          network.RunOnEveryRank([&](cluster::Transport& transport) {
            cluster::GroupCommunicator group(
                &transport, cluster::WorldGroup(ranks),
                cluster::AlgorithmTable::Default(), nullptr,
                &recorders[transport.rank()]);
            return RunTraced(group, gathers);
          });
      EXPECT_THAT(statuses, Each(absl::OkStatus()));
      for (auto& recorder : recorders) {
        const auto events = recorder.Stop().events;
        EXPECT_EQ(TraceError(events), "");
        std::set<std::string> names;
        for (const auto& event : events) {
          names.insert(std::string(event.name));
          const bool computes = event.kind == TraceKind::kCompute ||
                                event.name == kWaitForSends ||
                                (gathers && event.name == "wait for rows");
          EXPECT_EQ(event.thread, computes ? TraceThread::kExecutor
                                           : TraceThread::kCommunication)
              << event.name;
        }
        EXPECT_THAT(names, IsSupersetOf({"multiply", "wait for sends"}));
        if (gathers) {
          EXPECT_THAT(names, IsSupersetOf({"send left", "send right",
                                           "receive left", "receive right"}));
        } else {
          EXPECT_THAT(names, IsSupersetOf({"send", "receive"}));
        }
        const auto operations = EventsOf(events, TraceKind::kCollective);
        ASSERT_THAT(operations, SizeIs(1));
        EXPECT_EQ(operations[0].name,
                  gathers ? "all_gather_matmul" : "matmul_reduce_scatter");
        // (T - 1)/T of what is gathered or reduced leaves each rank.
        const auto sends = EventsOf(events, TraceKind::kSend);
        const uint64_t sent = std::accumulate(
            sends.begin(), sends.end(), uint64_t{0},
            [](uint64_t sum, const auto& send) { return sum + send.bytes; });
        const size_t row = gathers ? kTracedDepth : kTracedColumns;
        EXPECT_EQ(sent,
                  kTracedRows * row * sizeof(float) * (ranks - 1) / ranks);
        EXPECT_GE(sends.size(), 4u) << "parts travel in several frames";
      }
    }
  }
}

TEST(TraceChunksTest, NamesTravelOncePerChunk) {
  cluster::TraceRecorder::Trace trace;
  trace.dropped = 5;
  const size_t count = 2 * kEventsPerChunk + 1;
  for (size_t i = 0; i < count; ++i) {
    trace.events.push_back(
        {.name = i % 2 == 0 ? "send" : "experts",
         .kind = i % 2 == 0 ? TraceKind::kSend : TraceKind::kCompute,
         .thread = TraceThread::kCommunication,
         .layer = static_cast<int16_t>(i % 2 == 0 ? -1 : 3),
         .peer = i % 2 == 0 ? 1 : -1,
         .step = ~uint64_t{0},
         .bytes = ~uint64_t{0},
         .begin_ns = static_cast<int64_t>(i),
         .end_ns = static_cast<int64_t>(3 * i)});
  }
  std::vector<v1::TraceChunk> chunks;
  SendTrace(trace, [&](const v1::TraceChunk& chunk) {
    chunks.push_back(chunk);
    return true;
  });
  ASSERT_THAT(chunks, SizeIs(3));
  size_t i = 0;
  for (const v1::TraceChunk& chunk : chunks) {
    EXPECT_EQ(chunk.dropped(), 5u);
    EXPECT_LE(chunk.names_size(), 2);
    EXPECT_LT(chunk.ByteSizeLong(), size_t{1} << 20);
    for (const v1::TraceEvent& event : chunk.events()) {
      const bool sends = i % 2 == 0;
      EXPECT_EQ(chunk.names(static_cast<int>(event.name())),
                sends ? "send" : "experts");
      EXPECT_EQ(event.kind(), sends ? v1::TraceEvent::KIND_SEND
                                    : v1::TraceEvent::KIND_COMPUTE);
      EXPECT_EQ(event.thread(), v1::TraceEvent::THREAD_COMMUNICATION);
      EXPECT_EQ(event.has_layer(), !sends);
      EXPECT_EQ(event.has_peer(), sends);
      EXPECT_EQ(event.begin_ns(), static_cast<int64_t>(i));
      EXPECT_EQ(event.duration_ns(), 2 * i);
      ++i;
    }
  }
  EXPECT_EQ(i, count);
}

TEST(TraceChunksTest, AnEmptyTraceIsOneChunk) {
  int chunks = 0;
  SendTrace({}, [&](const v1::TraceChunk& chunk) {
    EXPECT_EQ(chunk.events_size(), 0);
    ++chunks;
    return true;
  });
  EXPECT_EQ(chunks, 1);
}

}  // namespace
}  // namespace ringfleet::worker
