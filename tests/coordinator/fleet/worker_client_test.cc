// SPDX-License-Identifier: Apache-2.0
#include "coordinator/fleet/worker_client.h"

#include <gtest/gtest.h>

#include <thread>

#include "absl/time/clock.h"
#include "cluster/rpc/channel.h"
#include "tests/testing/late_server.h"
#include "tests/testing/soon.h"

namespace ringfleet::coordinator {
namespace {

// What a worker that has just registered looks like when gRPC takes the first
// attempt to connect for a failed one.
TEST(WorkerClientTest, TheFirstCallOutlivesAFailedAttemptToConnect) {
  testing::LateServer server;
  WorkerClient client(server.address());
  std::thread starts([&server] {
    absl::SleepFor(cluster::kFirstConnection / 25);
    EXPECT_TRUE(server.Start());
  });
  const auto found =
      client.FindCheckpoint(v1::FindCheckpointRequest(), testing::Soon());
  starts.join();
  // It was reached: the server does not know the service.
  EXPECT_EQ(found.status().code(), absl::StatusCode::kUnimplemented)
      << found.status();
}

TEST(WorkerClientTest, AWorkerThatIsGoneIsUnavailable) {
  WorkerClient client(testing::LateServer().address());
  const auto found =
      client.FindCheckpoint(v1::FindCheckpointRequest(), testing::Soon());
  EXPECT_EQ(found.status().code(), absl::StatusCode::kUnavailable)
      << found.status();
}

}  // namespace
}  // namespace ringfleet::coordinator
