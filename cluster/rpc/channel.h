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

// The size of the buffers that a connection reads into. Channels, and servers
// that accept links, set it by these arguments; ConfigureGrpcProcess() turns
// off gRPC's own choice of 64 KiB. gRPC reads a frame that crosses the end of a
// buffer in two parts, and sends a packet of its own between them.
inline constexpr int kReadBufferBytes = 256 << 10;
inline constexpr const char* kReadBufferArguments[] = {
    GRPC_ARG_TCP_READ_CHUNK_SIZE, GRPC_ARG_TCP_MIN_READ_CHUNK_SIZE,
    GRPC_ARG_TCP_MAX_READ_CHUNK_SIZE};

// Returns the arguments of every channel: a connection of its own, straight to
// the host, tried again soon after it failed. Calls fail with UNAVAILABLE 20 s
// after the server's host has vanished without closing its sockets. Requires
// that a thread waits on a call, as else nobody reads the answers to pings: see
// ReadAhead. Pauses between attempts to connect grow to `longest_pause`.
// Setting GRPC_ARG_MAX_RECONNECT_BACKOFF_MS again has no effect: gRPC takes the
// first.
grpc::ChannelArguments DirectArguments(
    absl::Duration longest_pause = absl::Seconds(1));

// Opens a channel without connecting. `arguments` extend DirectArguments().
std::shared_ptr<grpc::Channel> OpenChannel(
    const std::string& address,
    const grpc::ChannelArguments& arguments = DirectArguments());

// The largest message. A long prompt and the scores of a long text exceed
// gRPC's default of 4 MiB. The bound keeps a broken peer from filling the
// memory.
inline constexpr int kMaxMessageBytes = 64 << 20;

// Time for a first connection, enough for several attempts. An absent server is
// noticed this much later.
inline constexpr absl::Duration kFirstConnection = absl::Milliseconds(500);

// Waits for the connection, at most for `time`. Returns true when it stands.
// Use it before the first call that does not wait for the connection by itself:
// gRPC up to 1.60 reads errno late (https://github.com/grpc/grpc/pull/35064).
// It then takes an attempt that is under way for a failed one, and only its
// next attempt finds the server.
bool AwaitConnection(grpc::Channel& channel,
                     absl::Duration time = kFirstConnection);

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_RPC_CHANNEL_H_
