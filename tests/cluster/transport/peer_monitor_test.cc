// SPDX-License-Identifier: Apache-2.0
// What ranks say of each other when an operation does not end, over real
// streams.
#include "cluster/transport/peer_monitor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <vector>

#include "cluster/collectives/group_communicator.h"
#include "tests/testing/grpc_world.h"
#include "tests/testing/soon.h"

namespace ringfleet::cluster {
namespace {

using ::ringfleet::testing::GrpcWorld;
using ::ringfleet::testing::Soon;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// Long enough that heartbeats have told what they can.
Deadline Short() { return Deadline::After(absl::Milliseconds(500)); }

// Waits like a rank that computes for too long: until the epoch is over.
absl::Status WaitForAbort(Transport& transport, int peer) {
  const Source source{peer, Lane::kDirect};
  while (true) {
    size_t index = 0;
    const auto frame =
        transport.Receive(absl::MakeConstSpan(&source, 1), Soon(), &index);
    if (!frame.ok()) return frame.status();
  }
}

TEST(PeerMonitorTest, ARankThatHasNotEnteredIsNamedWithItsLastOperation) {
  GrpcWorld world(2);
  world.RunConnected([&](Transport& transport) {
    GroupCommunicator group(&transport, WorldGroup(2),
                            AlgorithmTable::Default(),
                            &world.recorder(transport.rank()));
    ASSERT_TRUE(group.Barrier(Soon()).ok());
    const absl::Status status = transport.rank() == 0
                                    ? group.Barrier(Short())
                                    : WaitForAbort(transport, 0);
    EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
    EXPECT_THAT(
        std::string(status.message()),
        AllOf(HasSubstr("barrier (one_shot, f32) #2"),
              HasSubstr("no frame from rank 1 (" + world.addresses()[1] +
                        "), which is alive, but idle: it has not entered this "
                        "operation, its last was barrier (one_shot, f32) #1")));
  });
}

// Two monitors whose clocks differ by an hour exchange heartbeats by hand.
TEST(PeerMonitorTest, HeartbeatsMeasureTheirRoundTrip) {
  const std::vector<std::string> addresses = {"a:1", "b:1"};
  RoundTrips trips;
  PeerMonitor here(3, 0, addresses, nullptr, &trips);
  PeerMonitor there(3, 1, addresses, nullptr, nullptr);
  const PeerMonitor::Time start{std::chrono::hours(2)};
  const auto at = [&start](int us) {
    return start + std::chrono::microseconds(us);
  };
  const auto there_at = [&at](int us) {
    return at(us) + std::chrono::hours(1);
  };
  // `here` sends at 0, which takes 40 us. `there` answers at 100, which takes
  // 60 us.
  PeerMonitor::Heartbeat heartbeat;
  here.AddEcho(1, at(0), &heartbeat);
  EXPECT_EQ(heartbeat.echo_ns(), 0u);
  there.OnHeartbeat(0, heartbeat, there_at(40));
  there.AddEcho(0, there_at(100), &heartbeat);
  here.OnHeartbeat(1, heartbeat, at(160));
  EXPECT_EQ(trips.Shortest(1), 100'000u);
  // A peer that claims to have kept it for longer is not believed.
  heartbeat.set_kept_ns(1'000'000'000);
  here.OnHeartbeat(1, heartbeat, at(170));
  EXPECT_EQ(trips.Shortest(1), 100'000u);
  // Another epoch has other peers.
  const PeerMonitor next(4, 0, addresses, nullptr, &trips);
  EXPECT_EQ(trips.Shortest(1), 0u);
}

// Its neighbours wait for it, rank 0 for one of them.
TEST(PeerMonitorTest, AllRanksOfARingNameTheOneThatHoldsItUp) {
  GrpcWorld world(4);
  std::vector<std::string> messages(4);
  world.RunConnected([&](Transport& transport) {
    const int rank = transport.rank();
    GroupCommunicator group(&transport, WorldGroup(4),
                            AlgorithmTable::Only(Algorithm::kRing),
                            &world.recorder(rank));
    ASSERT_TRUE(group.Barrier(Soon()).ok());
    std::vector<float> values(5000, 1.0f);
    const absl::Status status =
        rank == 2
            ? WaitForAbort(transport, 0)
            : group.AllReduce(values, absl::MakeSpan(values), {}, 0, Short());
    EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("rank 2 (" + world.addresses()[2] +
                          "), which is alive, but idle"));
  });
}

TEST(PeerMonitorTest, WithoutARecorderARankIsOnlyKnownToLive) {
  GrpcWorld world(2, {.spin = Spin::kNever, .warm_up_bytes = 0},
                  TransportKind::kGrpc, /*record=*/false);
  world.RunConnected([&](Transport& transport) {
    GroupCommunicator group(&transport, WorldGroup(2),
                            AlgorithmTable::Default(), nullptr);
    const absl::Status status = transport.rank() == 0
                                    ? group.Barrier(Short())
                                    : WaitForAbort(transport, 0);
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr("rank 1 (" + world.addresses()[1] +
                                "), which is alive"),
                      Not(HasSubstr("idle"))));
  });
}

TEST(PeerMonitorTest, ADeadlineOfAnEpochThatNeverRanIsExplainedToo) {
  GrpcWorld world(2);
  world.RunConnected([&](Transport& transport) {
    GroupCommunicator group(&transport, WorldGroup(2),
                            AlgorithmTable::Default(),
                            &world.recorder(transport.rank()));
    const absl::Status status = transport.rank() == 0
                                    ? group.Barrier(Short())
                                    : WaitForAbort(transport, 0);
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("idle: it has not entered any operation"));
  });
}

// The records of an earlier epoch say nothing about this one.
TEST(PeerMonitorTest, AnEarlierEpochsOperationIsNotTold) {
  GrpcWorld world(2);
  for (const uint64_t epoch : {1, 2}) {
    world.RunConnected(
        [&](Transport& transport) {
          GroupCommunicator group(&transport, WorldGroup(2),
                                  AlgorithmTable::Default(),
                                  &world.recorder(transport.rank()));
          if (epoch == 1) {
            EXPECT_TRUE(group.Barrier(Soon()).ok());
            return;
          }
          const absl::Status status = transport.rank() == 0
                                          ? group.Barrier(Short())
                                          : WaitForAbort(transport, 0);
          EXPECT_THAT(std::string(status.message()),
                      HasSubstr("has not entered any operation"));
        },
        epoch);
  }
}

}  // namespace
}  // namespace ringfleet::cluster
