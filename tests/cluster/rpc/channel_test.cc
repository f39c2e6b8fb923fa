// SPDX-License-Identifier: Apache-2.0
#include "cluster/rpc/channel.h"

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <thread>

#include "absl/time/clock.h"
#include "protos/health.grpc.pb.h"
#include "tests/testing/late_server.h"
#include "tests/testing/sockets.h"
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

// The host takes the call and is then gone, without a packet of its end. The
// call has no deadline. Keepalive takes 20 s.
TEST(ChannelTest, ACallEndsWhenTheServersHostHasVanished) {
  const testing::Socket listening =
      testing::BoundSocket("127.0.0.1:0", SOCK_STREAM);
  testing::Socket connection;
  std::thread server([&] {
    connection = testing::AcceptFrom(listening);
    const char settings[9] = {0, 0, 0, 4, 0, 0, 0, 0, 0};  // An empty frame.
    EXPECT_EQ(send(connection.fd(), settings, sizeof(settings), MSG_NOSIGNAL),
              static_cast<ssize_t>(sizeof(settings)));
  });
  const auto stub = grpc::health::v1::Health::NewStub(
      OpenChannel(testing::LocalAddress(listening)));
  grpc::ClientContext context;
  grpc::health::v1::HealthCheckResponse response;
  const grpc::Status status =
      stub->Check(&context, grpc::health::v1::HealthCheckRequest(), &response);
  server.join();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE)
      << status.error_message();
}

}  // namespace
}  // namespace ringfleet::cluster
