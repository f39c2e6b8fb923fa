// SPDX-License-Identifier: Apache-2.0
// Tests whether a process listens at an address. The probe opens a TCP
// connection and sends no message. The other host's kernel completes the
// connection even if the listening process is stopped.
#ifndef RINGFLEET_CLUSTER_TRANSPORT_REACHABILITY_PROBE_H_
#define RINGFLEET_CLUSTER_TRANSPORT_REACHABILITY_PROBE_H_

#include <string>

#include "absl/time/time.h"
#include "cluster/process/deadline.h"

namespace ringfleet::cluster {

// One attempt to connect. Never blocks. Not thread-safe.
class ReachabilityProbe {
 public:
  enum class Result {
    kPending,
    kConnected,  // The host answers, and a process listens.
    kRefused,    // The host answers, and no process listens.
    kNoAnswer,   // No answer within kTimeout, or no route to the host.
    kUnknown,    // The host is not numeric, or no socket is free.
  };

  // A connection within a network takes a fraction of this time. A lost first
  // packet is repeated after a second, so the probe ends with kNoAnswer.
  static constexpr absl::Duration kTimeout = absl::Milliseconds(150);

  // Begins to connect to HOST:PORT. The host must be numeric, because looking
  // up a name blocks.
  explicit ReachabilityProbe(
      const std::string& address,
      Deadline::Clock::time_point now = Deadline::Clock::now());
  ~ReachabilityProbe();
  ReachabilityProbe(const ReachabilityProbe&) = delete;
  ReachabilityProbe& operator=(const ReachabilityProbe&) = delete;

  // Returns the result. It is final unless it is kPending.
  Result Poll(Deadline::Clock::time_point now = Deadline::Clock::now());

 private:
  void Settle(Result result);

  const Deadline deadline_;
  int socket_ = -1;
  Result result_ = Result::kPending;
};

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_TRANSPORT_REACHABILITY_PROBE_H_
