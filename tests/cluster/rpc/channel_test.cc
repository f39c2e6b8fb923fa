// SPDX-License-Identifier: Apache-2.0
#include "cluster/rpc/channel.h"

#include <gtest/gtest.h>

#include <thread>

#include "absl/time/clock.h"
#include "tests/testing/late_server.h"
#include "tests/testing/soon.h"

namespace ringfleet::cluster {
namespace {

TEST(ChannelTest, AFailedFirstAttemptIsNotTheLast) {
  testing::LateServer server;
  const auto channel = OpenChannel(server.address());
  const Deadline deadline = testing::Soon();
  bool connected = false;
  std::thread client(
      [&] { connected = AwaitConnection(*channel, deadline.Remaining()); });
  while (channel->GetState(false) != GRPC_CHANNEL_TRANSIENT_FAILURE &&
         !deadline.Expired()) {
    absl::SleepFor(absl::Milliseconds(1));
  }
  EXPECT_TRUE(server.Start());
  client.join();
  EXPECT_TRUE(connected);
}

TEST(ChannelTest, NobodyThereIsNoticedInTime) {
  const auto channel = OpenChannel(testing::LateServer().address());
  const absl::Time start = absl::Now();
  EXPECT_FALSE(AwaitConnection(*channel, absl::Milliseconds(100)));
  EXPECT_GE(absl::Now() - start, absl::Milliseconds(99));
}

}  // namespace
}  // namespace ringfleet::cluster
