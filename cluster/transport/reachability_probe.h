// SPDX-License-Identifier: Apache-2.0
// A question to a host, without a message and without waiting: does a process
// still listen at an address? The probe is a TCP connection, which the other
// host's kernel completes even when the listening process is stopped.
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
    kConnected,  // The host answers, and a process listens.
    kRefused,    // The host answers, and no process listens.
    kNoAnswer,   // No answer within kTimeout, or no way to the host.
    kUnknown,    // The host is not a number, or no socket is left.
  };

  // A connection within a network takes a fraction of it. A lost first packet
  // is sent again after a second, and so looks like no answer.
  static constexpr absl::Duration kTimeout = absl::Milliseconds(150);

  // Begins to connect to HOST:PORT. The host must be a number, because looking
  // a name up blocks.
  explicit ReachabilityProbe(
      const std::string& address,
      Deadline::Clock::time_point now = Deadline::Clock::now());
  ~ReachabilityProbe();
  ReachabilityProbe(const ReachabilityProbe&) = delete;
  ReachabilityProbe& operator=(const ReachabilityProbe&) = delete;

  // Returns the result, which is final once it is not kPending.
  Result Poll(Deadline::Clock::time_point now = Deadline::Clock::now());

 private:
  void Settle(Result result);

  const Deadline deadline_;
  int socket_ = -1;
  Result result_ = Result::kPending;
};

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_TRANSPORT_REACHABILITY_PROBE_H_
