// SPDX-License-Identifier: Apache-2.0
// gRPC channels between the processes of a fleet. Thread-safe.
#ifndef RINGFLEET_CLUSTER_RPC_CHANNEL_H_
#define RINGFLEET_CLUSTER_RPC_CHANNEL_H_

#include <grpc/grpc.h>
#include <grpcpp/channel.h>
#include <grpcpp/support/channel_arguments.h>

#include <memory>
#include <string>

#include "absl/time/time.h"

namespace ringfleet::cluster {

// What a connection reads into, of channels and of the servers that links come
// to: by these arguments, where ConfigureGrpcProcess() has turned off gRPC's
// own choice of 64 KiB. A frame that crosses the end of such a buffer is read
// in two parts, and between them the sender is told of room for the second, in
// a packet of its own.
inline constexpr int kReadBufferBytes = 256 << 10;
inline constexpr const char* kReadBufferArguments[] = {
    GRPC_ARG_TCP_READ_CHUNK_SIZE, GRPC_ARG_TCP_MIN_READ_CHUNK_SIZE,
    GRPC_ARG_TCP_MAX_READ_CHUNK_SIZE};

// What all channels share: a connection of its own, straight to the host, tried
// again soon after it failed.
grpc::ChannelArguments DirectArguments();

// Does not connect yet. `arguments` are DirectArguments() and more.
std::shared_ptr<grpc::Channel> OpenChannel(
    const std::string& address,
    const grpc::ChannelArguments& arguments = DirectArguments());

// What messages with a long prompt or the scores of a long text may have: they
// exceed gRPC's default of 4 MiB, and the bound keeps a broken peer from
// filling the memory.
inline constexpr int kMaxMessageBytes = 64 << 20;

// Long enough for several attempts; how much later an absent server is noticed.
inline constexpr absl::Duration kFirstConnection = absl::Milliseconds(500);

// Waits until the connection stands, at most `time`; whether it does. To be
// called before the first call that does not wait for the connection by itself:
// gRPC up to 1.60 at times takes an attempt that is under way for one that
// failed (it reads errno late, https://github.com/grpc/grpc/pull/35064), and
// only its next attempt finds the server.
bool AwaitConnection(grpc::Channel& channel,
                     absl::Duration time = kFirstConnection);

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_RPC_CHANNEL_H_
