// SPDX-License-Identifier: Apache-2.0
// The input of a PeerWatch for one epoch: heartbeats of peers and probes of
// silent peers. Makes this rank's own heartbeats too.
#ifndef RINGFLEET_CLUSTER_TRANSPORT_PEER_MONITOR_H_
#define RINGFLEET_CLUSTER_TRANSPORT_PEER_MONITOR_H_

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "cluster/recording/flight_recorder.h"
#include "cluster/transport/peer_watch.h"
#include "cluster/transport/reachability_probe.h"
#include "protos/collective.pb.h"

namespace ringfleet::cluster {

// Every function requires the poller's role.
class PeerMonitor {
 public:
  using Time = PeerWatch::Time;
  using Heartbeat = v1::ControlMessage::Heartbeat;

  // The time past a deadline that an explanation is worth.
  static constexpr absl::Duration kInquiryTime = absl::Milliseconds(100);

  // `recorder` holds this rank's operations. Null: peers are not told them.
  PeerMonitor(uint64_t epoch, int rank, std::vector<std::string> addresses,
              const FlightRecorder* recorder);

  // Begins to watch. Call it when all links are open.
  void Start(Time now);
  // Sets the target of probes of `peer`: HOST:PORT in numbers, where its
  // address has a name.
  void SetProbeAddress(int peer, std::string address);
  // Ends the watch of a peer that has left.
  void Forget(int peer) { watch_.Forget(peer); }

  void OnFrame(int peer, const FrameHeader& header) {
    watch_.OnFrame(peer, header);
  }
  void OnHeartbeat(int peer, const Heartbeat& heartbeat, Time now);
  // Runs the probes. Call it from every housekeeping. Returns a peer that is
  // lost by PeerWatch's rule.
  std::optional<PeerWatch::Verdict> Tick(Time now);
  // True when the next heartbeat is due. Counts it as sent.
  bool HeartbeatDue(Time now);
  // Makes the heartbeat of a rank that waits for `waiting_for`.
  Heartbeat MakeHeartbeat(absl::Span<const int> waiting_for, Time now) const;

  // Probes the peers that are silent at the end of a wait. True when more time
  // would not tell more about the missing frames.
  bool Settled(Time now);
  // Calls PeerWatch::Explain with this rank's activity.
  PeerWatch::Verdict Explain(absl::Span<const int> missing, Time now) const {
    return watch_.Explain(missing, OwnActivity(), now);
  }

  // Probes `peer`, whose connection has ended. True when its port is known to
  // be closed.
  bool AskClosed(int peer, Time now);
  // Returns "; its process has ended: ..." as far as is known, or "".
  std::string ExplainClosed(int peer, Time now);

 private:
  // Returns the ranks that exist and are not `peer`.
  std::vector<int> OtherRanks(
      const google::protobuf::RepeatedField<uint32_t>& ranks, int peer) const;
  Activity OwnActivity() const;
  void BeginProbe(int peer, Time now);
  void PollProbe(int peer, Time now);

  const uint64_t epoch_;
  const int rank_;
  const FlightRecorder* const recorder_;
  PeerWatch watch_;
  std::vector<std::string> probe_addresses_;
  std::vector<std::unique_ptr<ReachabilityProbe>> probes_;  // Under way.
  bool started_ = false;
  std::optional<Time> last_heartbeat_;
};

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_TRANSPORT_PEER_MONITOR_H_
