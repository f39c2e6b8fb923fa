// SPDX-License-Identifier: Apache-2.0
#include "cluster/recording/trace_recorder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "cluster/collectives/group_communicator.h"
#include "cluster/process/status_macros.h"
#include "tests/testing/collective_cases.h"
#include "tests/testing/fake_transport.h"
#include "tests/testing/soon.h"
#include "tests/testing/trace_checks.h"

namespace ringfleet::cluster {
namespace {

using ::ringfleet::testing::EventsOf;
using ::ringfleet::testing::FakeNetwork;
using ::ringfleet::testing::RankValues;
using ::ringfleet::testing::Soon;
using ::ringfleet::testing::TotalNs;
using ::ringfleet::testing::TraceError;
using ::ringfleet::testing::TraceKind;
using ::testing::Each;
using ::testing::IsEmpty;
using ::testing::SizeIs;

TEST(TraceRecorderTest, RecordsNothingUntilItIsSwitchedOn) {
  TraceRecorder recorder;
  { const TraceScope scope(&recorder, "early"); }
  { const TraceScope scope(nullptr, "nowhere"); }
  EXPECT_FALSE(recorder.on());
  EXPECT_THAT(recorder.Stop().events, IsEmpty());
  ASSERT_TRUE(recorder.Start(10).ok());
  EXPECT_TRUE(recorder.on());
  EXPECT_THAT(recorder.Stop().events, IsEmpty());
  EXPECT_FALSE(recorder.on());
}

TEST(TraceRecorderTest, OneAtATimeAndWithinBounds) {
  TraceRecorder recorder;
  EXPECT_EQ(recorder.Start(0).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(recorder.Start(TraceRecorder::kMostEvents + 1).code(),
            absl::StatusCode::kInvalidArgument);
  ASSERT_TRUE(recorder.Start(1).ok());
  EXPECT_EQ(recorder.Start(1).code(), absl::StatusCode::kFailedPrecondition);
  recorder.Stop();
  EXPECT_TRUE(recorder.Start(1).ok());
}

TEST(TraceRecorderTest, EventsBelongToTheirStepAndLayer) {
  TraceRecorder recorder;
  ASSERT_TRUE(recorder.Start(10).ok());
  {
    const auto step = TraceScope::Step(&recorder, 7);
    {
      const auto layer = TraceScope::Layer(&recorder, 3);
      const TraceScope part(&recorder, "experts");
    }
    const TraceScope head(&recorder, "head");
  }
  const auto events = recorder.Stop().events;
  ASSERT_THAT(events, SizeIs(4));
  EXPECT_EQ(TraceError(events), "");
  EXPECT_EQ(events[0].name, "experts");
  EXPECT_EQ(events[0].layer, 3);
  EXPECT_EQ(events[1].kind, TraceKind::kLayer);
  EXPECT_EQ(events[1].layer, 3);
  EXPECT_EQ(events[2].name, "head");
  EXPECT_EQ(events[2].layer, -1);
  EXPECT_EQ(events[3].kind, TraceKind::kStep);
  for (const TraceEvent& event : events) {
    EXPECT_EQ(event.step, 7u);
    EXPECT_GE(event.begin_ns, events[3].begin_ns);
    EXPECT_LE(event.end_ns, events[3].end_ns);
  }
}

TEST(TraceRecorderTest, KeepsTheLatestAndCountsTheOthers) {
  for (const size_t added : {2, 3, 4, 8}) {
    TraceRecorder recorder;
    ASSERT_TRUE(recorder.Start(3).ok());
    for (size_t i = 0; i < added; ++i) recorder.Add({.bytes = i});
    const TraceRecorder::Trace trace = recorder.Stop();
    const size_t kept = std::min<size_t>(added, 3);
    EXPECT_EQ(trace.dropped, added - kept);
    ASSERT_THAT(trace.events, SizeIs(kept));
    for (size_t i = 0; i < kept; ++i) {
      EXPECT_EQ(trace.events[i].bytes, added - kept + i);
    }
  }
}

TEST(TraceRecorderTest, WhatOutlivesTheTraceIsLeftOut) {
  TraceRecorder recorder;
  ASSERT_TRUE(recorder.Start(3).ok());
  {
    const TraceScope scope(&recorder, "late");
    recorder.Stop();
  }
  ASSERT_TRUE(recorder.Start(3).ok());
  EXPECT_THAT(recorder.Stop().events, IsEmpty());
}

class TracedCollectivesTest : public ::testing::TestWithParam<Algorithm> {};

TEST_P(TracedCollectivesTest, FramesAndWaitsLieWithinTheirOperation) {
  constexpr int kRanks = 3;
  constexpr size_t kCount = 100'000;
  FakeNetwork network(kRanks);
  TraceRecorder recorders[kRanks];
  for (TraceRecorder& recorder : recorders) {
    ASSERT_TRUE(recorder.Start(10'000).ok());
  }
  const auto statuses = network.RunOnEveryRank([&](Transport& transport)
                                                   -> absl::Status {
    GroupCommunicator group(&transport, WorldGroup(kRanks),
                            AlgorithmTable::Only(GetParam()), nullptr,
                            &recorders[transport.rank()]);
    std::vector<float> values = RankValues(transport.rank(), kCount);
    const auto all = absl::MakeSpan(values);
    RF_RETURN_IF_ERROR(group.AllReduce(all, all, {Wire::kBf16, 0}, 0, Soon()));
    return group.Broadcast(all, 1, {Wire::kF32, 0}, Soon());
  });
  EXPECT_THAT(statuses, Each(absl::OkStatus()));

  uint64_t sent_bytes = 0;
  uint64_t received_bytes = 0;
  for (int rank = 0; rank < kRanks; ++rank) {
    const TraceRecorder::Trace trace = recorders[rank].Stop();
    EXPECT_EQ(trace.dropped, 0u);
    EXPECT_EQ(TraceError(trace.events), "");
    const auto operations = EventsOf(trace.events, TraceKind::kCollective);
    ASSERT_THAT(operations, SizeIs(2));
    EXPECT_EQ(operations[0].name, "all_reduce");
    EXPECT_EQ(operations[0].bytes, kCount * 2);
    EXPECT_EQ(operations[1].name, "broadcast");
    EXPECT_EQ(operations[1].bytes, kCount * 4);
    const auto sends = EventsOf(trace.events, TraceKind::kSend);
    const auto receives = EventsOf(trace.events, TraceKind::kReceive);
    const auto waits = EventsOf(trace.events, TraceKind::kWait);
    for (const TraceEvent& send : sends) {
      sent_bytes += send.bytes;
      EXPECT_NE(send.peer, rank);
    }
    for (const TraceEvent& receive : receives) {
      received_bytes += receive.bytes;
      EXPECT_NE(receive.peer, rank);
      EXPECT_GE(receive.peer, 0);
    }
    // Apart from each other, and within the operations.
    EXPECT_LE(TotalNs(waits) + TotalNs(receives), TotalNs(operations));
    for (const TraceEvent& event : trace.events) {
      EXPECT_TRUE(std::any_of(operations.begin(), operations.end(),
                              [&](const TraceEvent& operation) {
                                return event.begin_ns >= operation.begin_ns &&
                                       event.end_ns <= operation.end_ns;
                              }))
          << event.name;
    }
  }
  EXPECT_GT(sent_bytes, 0u);
  EXPECT_EQ(sent_bytes, received_bytes);
}

INSTANTIATE_TEST_SUITE_P(All, TracedCollectivesTest,
                         ::testing::Values(Algorithm::kOneShot,
                                           Algorithm::kTwoShot,
                                           Algorithm::kRing),
                         [](const auto& info) {
                           return std::string(AlgorithmText(info.param));
                         });

}  // namespace
}  // namespace ringfleet::cluster
