// SPDX-License-Identifier: Apache-2.0
// Asks whether anybody still listens at an address, without a message and
// without waiting: a TCP connection that the kernel of the other host completes
// even when the process that listens is stopped.
#ifndef RINGFLEET_CLUSTER_TRANSPORT_REACHABILITY_PROBE_H_
#define RINGFLEET_CLUSTER_TRANSPORT_REACHABILITY_PROBE_H_

#include <string>

#include "absl/time/time.h"
#include "cluster/process/deadline.h"

namespace ringfleet::cluster {

// One attempt. Not thread-safe; never blocks.
class ReachabilityProbe {
 public:
  enum class Result {
    kPending,
    kConnected,  // The host is there, and somebody listens.
    kRefused,    // The host is there, and nobody listens.
    kNoAnswer,   // No answer within kTimeout, or no way to the host.
    kUnknown,    // Not a number, or this process has no sockets left.
  };

  // A connection of a host nearby takes a fraction; a lost first packet, which
  // is sent again after a second, looks like no answer.
  static constexpr absl::Duration kTimeout = absl::Milliseconds(150);

  // Begins to connect to HOST:PORT, where the host is a number: names are not
  // looked up, because that blocks.
  explicit ReachabilityProbe(
      const std::string& address,
      Deadline::Clock::time_point now = Deadline::Clock::now());
  ~ReachabilityProbe();
  ReachabilityProbe(const ReachabilityProbe&) = delete;
  ReachabilityProbe& operator=(const ReachabilityProbe&) = delete;

  // Final once it is not kPending.
  Result Poll(Deadline::Clock::time_point now = Deadline::Clock::now());

 private:
  void Settle(Result result);

  const Deadline deadline_;
  int socket_ = -1;
  Result result_ = Result::kPending;
};

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_TRANSPORT_REACHABILITY_PROBE_H_
