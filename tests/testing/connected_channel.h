// SPDX-License-Identifier: Apache-2.0
// Channels for clients of a test that call at once.
#ifndef RINGFLEET_TESTS_TESTING_CONNECTED_CHANNEL_H_
#define RINGFLEET_TESTS_TESTING_CONNECTED_CHANNEL_H_

#include <memory>
#include <string>

#include "cluster/rpc/channel.h"
#include "kernels/check.h"

namespace ringfleet::testing {

// Returns a channel that is connected, so that no call fails on a connection
// that gRPC gives up too early (cluster::AwaitConnection). Requires a server at
// `address`.
inline std::shared_ptr<grpc::Channel> ConnectedChannel(
    const std::string& address) {
  std::shared_ptr<grpc::Channel> channel = cluster::OpenChannel(address);
  RF_CHECK(cluster::AwaitConnection(*channel, absl::Seconds(60)));
  return channel;
}

}  // namespace ringfleet::testing

#endif  // RINGFLEET_TESTS_TESTING_CONNECTED_CHANNEL_H_
