// SPDX-License-Identifier: Apache-2.0
// Feeds the PeerWatch of one epoch with heartbeats of peers and probes of
// silent peers. Also makes this rank's own heartbeats.
#ifndef RINGFLEET_CLUSTER_TRANSPORT_PEER_MONITOR_H_
#define RINGFLEET_CLUSTER_TRANSPORT_PEER_MONITOR_H_

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "cluster/recording/flight_recorder.h"
#include "cluster/recording/round_trips.h"
#include "cluster/transport/peer_watch.h"
#include "cluster/transport/reachability_probe.h"
#include "protos/collective.pb.h"

namespace ringfleet::cluster {

// Every function requires the poller's role.
class PeerMonitor {
 public:
  using Time = PeerWatch::Time;
  using Heartbeat = v1::ControlMessage::Heartbeat;

  // Time after a missed deadline that may be spent to explain it.
  static constexpr absl::Duration kInquiryTime = absl::Milliseconds(100);

  // `recorder` has this rank's operations, for heartbeats. Null: heartbeats
  // have no operation. `round_trips` is cleared and then gets the times of
  // heartbeats. Null: they are not kept.
  PeerMonitor(uint64_t epoch, int rank, std::vector<std::string> addresses,
              const FlightRecorder* recorder, RoundTrips* round_trips);

  // Begins to watch all peers. Call it when all links are open.
  void Start(Time now);
  // Sets the address at which `peer` is probed: HOST:PORT with a numeric host.
  // The default is the peer's address, which may have a name.
  void SetProbeAddress(int peer, std::string address);
  // Ends the watch of `peer`, which has left.
  void Forget(int peer) { watch_.Forget(peer); }

  void OnFrame(int peer, const FrameHeader& header) {
    watch_.OnFrame(peer, header);
  }
  void OnHeartbeat(int peer, const Heartbeat& heartbeat, Time now);
  // Runs the probes. Call it from every housekeeping. Returns the result of
  // PeerWatch::FindLost.
  std::optional<PeerWatch::Verdict> Tick(Time now);
  // Returns true if the next heartbeat is due. The caller must then send one.
  bool HeartbeatDue(Time now);
  // Returns this rank's heartbeat. `waiting_for` has the ranks whose frames it
  // waits for.
  Heartbeat MakeHeartbeat(absl::Span<const int> waiting_for, Time now) const;
  // Sets the fields of a heartbeat by which `peer` measures its round trip.
  void AddEcho(int peer, Time now, Heartbeat* heartbeat) const;

  // Probes silent peers after a missed deadline. Returns true if waiting longer
  // would not explain more about the missing frames.
  bool Settled(Time now);
  // Calls PeerWatch::Explain with this rank's activity.
  PeerWatch::Verdict Explain(absl::Span<const int> missing, Time now) const {
    return watch_.Explain(missing, OwnActivity(), now);
  }

  // Probes `peer`, whose connection has ended. Returns true if its port is
  // known to be closed.
  bool AskClosed(int peer, Time now);
  // Explains why the connection of a peer has ended, as text to append: "; its
  // process has ended: ...". Returns "" if nothing is known.
  std::string ExplainClosed(int peer, Time now);

 private:
  // Returns `ranks` without `peer` and without ranks that do not exist.
  std::vector<int> OtherRanks(
      const google::protobuf::RepeatedField<uint32_t>& ranks, int peer) const;
  Activity OwnActivity() const;
  void BeginProbe(int peer, Time now);
  void PollProbe(int peer, Time now);

  const uint64_t epoch_;
  const int rank_;
  // The latest heartbeat of a peer.
  struct Heard {
    uint64_t sent_ns = 0;  // By the peer's clock; 0: none so far.
    Time at;
  };

  const FlightRecorder* const recorder_;
  RoundTrips* const round_trips_;
  PeerWatch watch_;
  std::vector<Heard> heard_;  // By peer.
  std::vector<std::string> probe_addresses_;
  std::vector<std::unique_ptr<ReachabilityProbe>> probes_;  // Null: none.
  bool started_ = false;
  std::optional<Time> last_heartbeat_;
};

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_TRANSPORT_PEER_MONITOR_H_
