// SPDX-License-Identifier: Apache-2.0
#include "cluster/rpc/channel.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>

#include <chrono>

#include "cluster/rpc/congestion_control.h"

namespace ringfleet::cluster {
namespace {

// A call pings a silent server after this time, and fails when no answer comes
// in this time.
constexpr int kKeepaliveMs = 10'000;

}  // namespace

grpc::ChannelArguments DirectArguments(absl::Duration longest_pause) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveMs);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveMs);
  // Else pings end after two of them without data.
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  // Equal channels would share a connection, its queues and its backoff.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 50);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS,
                   static_cast<int>(absl::ToInt64Milliseconds(longest_pause)));
  // gRPC's name for the time that one attempt is given.
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 3000);
  for (const char* argument : kReadBufferArguments) {
    arguments.SetInt(argument, kReadBufferBytes);
  }
  SetCongestionControl(arguments);
  return arguments;
}

std::shared_ptr<grpc::Channel> OpenChannel(
    const std::string& address, const grpc::ChannelArguments& arguments) {
  return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(),
                                   arguments);
}

bool AwaitConnection(grpc::Channel& channel, absl::Duration time) {
  return channel.WaitForConnected(std::chrono::system_clock::now() +
                                  absl::ToChronoMicroseconds(time));
}

}  // namespace ringfleet::cluster
