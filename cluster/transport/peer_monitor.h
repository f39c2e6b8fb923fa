// SPDX-License-Identifier: Apache-2.0
// Keeps a PeerWatch fed for one epoch: heartbeats out and in, and probes of
// the peers that are silent.
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

  // How long past a deadline it is worth to wait for an explanation.
  static constexpr absl::Duration kInquiryTime = absl::Milliseconds(100);

  // `recorder` holds this rank's operations; null: peers are not told.
  PeerMonitor(uint64_t epoch, int rank, std::vector<std::string> addresses,
              const FlightRecorder* recorder);

  // All links are open: from now on silence means something.
  void Start(Time now);
  // Where probes of `peer` go: the HOST:PORT in numbers, if its address has a
  // name in it.
  void SetProbeAddress(int peer, std::string address);
  // Peers that have left are no longer watched.
  void Forget(int peer) { watch_.Forget(peer); }

  void OnFrame(int peer, const FrameHeader& header) {
    watch_.OnFrame(peer, header);
  }
  void OnHeartbeat(int peer, const Heartbeat& heartbeat, Time now);
  // Looks after the probes; call from every housekeeping. Returns a peer that
  // is lost, by PeerWatch's rule.
  std::optional<PeerWatch::Verdict> Tick(Time now);
  // Whether it is time to tell all peers of this rank.
  bool HeartbeatDue(Time now);
  // What to tell them, while it waits for `waiting_for`.
  Heartbeat MakeHeartbeat(absl::Span<const int> waiting_for, Time now) const;

  // For the end of a wait: whether more time would tell more about why frames
  // are missing. Begins to ask.
  bool Settled(Time now);
  // PeerWatch::Explain, given what this rank does.
  PeerWatch::Verdict Explain(absl::Span<const int> missing, Time now) const {
    return watch_.Explain(missing, OwnActivity(), now);
  }

  // A connection with `peer` has ended: asks whether it is still there. True
  // when it is known not to be.
  bool AskClosed(int peer, Time now);
  // "; its process has ended: ..." as far as is known, or "".
  std::string ExplainClosed(int peer, Time now);

 private:
  // Those that exist, and are not `peer` itself.
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
