// SPDX-License-Identifier: Apache-2.0
#include "cluster/transport/reachability_probe.h"

#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>

#include "cluster/rpc/host_address.h"

namespace ringfleet::cluster {
namespace {

using Result = ReachabilityProbe::Result;

Result ResultOf(int error) {
  switch (error) {
    case 0:
    case EISCONN:
      return Result::kConnected;
    case EINPROGRESS:
      return Result::kPending;
    case ECONNREFUSED:
    case ECONNRESET:
      return Result::kRefused;
    case ETIMEDOUT:
    case EHOSTUNREACH:
    case EHOSTDOWN:
    case ENETUNREACH:
    case ENETDOWN:
      return Result::kNoAnswer;
    default:
      return Result::kUnknown;
  }
}

}  // namespace

ReachabilityProbe::ReachabilityProbe(const std::string& address,
                                     Deadline::Clock::time_point now)
    : deadline_(Deadline::After(kTimeout, now)) {
  const absl::StatusOr<ServerAddress> parsed = ParseAddress(address);
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  if (!parsed.ok() ||
      getaddrinfo(parsed->host.c_str(), std::to_string(parsed->port).c_str(),
                  &hints, &found) != 0) {
    Settle(Result::kUnknown);
    return;
  }
  socket_ =
      socket(found->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (socket_ < 0) {
    Settle(Result::kUnknown);
  } else {
    // Closing resets the connection: a process that is stopped keeps no queue
    // of connections that nobody uses.
    const linger reset = {.l_onoff = 1, .l_linger = 0};
    setsockopt(socket_, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
    const int error =
        connect(socket_, found->ai_addr, found->ai_addrlen) == 0 ? 0 : errno;
    Settle(ResultOf(error));
  }
  freeaddrinfo(found);
}

ReachabilityProbe::~ReachabilityProbe() {
  if (socket_ >= 0) close(socket_);
}

void ReachabilityProbe::Settle(Result result) {
  result_ = result;
  if (result == Result::kPending || socket_ < 0) return;
  close(socket_);
  socket_ = -1;
}

ReachabilityProbe::Result ReachabilityProbe::Poll(
    Deadline::Clock::time_point now) {
  if (result_ != Result::kPending) return result_;
  pollfd ready = {.fd = socket_, .events = POLLOUT};
  if (poll(&ready, 1, 0) > 0) {
    int error = 0;
    socklen_t size = sizeof(error);
    getsockopt(socket_, SOL_SOCKET, SO_ERROR, &error, &size);
    Settle(ResultOf(error));
  } else if (deadline_.Expired(now)) {
    Settle(Result::kNoAnswer);
  }
  return result_;
}

}  // namespace ringfleet::cluster
