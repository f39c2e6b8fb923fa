// SPDX-License-Identifier: Apache-2.0
// Finds lost peers, and explains missing frames. Ten times a second every rank
// sends all others a heartbeat with its operation and the ranks whose frames it
// waits for. A probe tests whether the host of a silent peer still accepts
// connections. If a peer only waits for another rank, the other rank is blamed.
// So if one stopped rank stops a whole ring, every rank of the ring names the
// stopped rank.
#ifndef RINGFLEET_CLUSTER_TRANSPORT_PEER_WATCH_H_
#define RINGFLEET_CLUSTER_TRANSPORT_PEER_WATCH_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "cluster/process/deadline.h"
#include "cluster/transport/reachability_probe.h"
#include "cluster/wire/frame.h"

namespace ringfleet::cluster {

// The activity of a rank, as its heartbeat reports it.
struct Activity {
  bool known = false;  // False: the rank has no recorder.
  bool running = false;
  // The operation that began last. It runs if `running`. sequence 0: none.
  uint32_t group = 0;
  uint64_t sequence = 0;
  uint32_t op_descriptor = 0;
  std::vector<int> waiting_for;  // Ranks whose frames it waits for.
  std::vector<int> unheard;      // Peers that are silent for it.

  bool operator==(const Activity&) const = default;
};

// Functions take the time as a parameter. No function waits or reads a clock.
// Not thread-safe.
class PeerWatch {
 public:
  using Time = Deadline::Clock::time_point;

  static constexpr absl::Duration kHeartbeatPeriod = absl::Milliseconds(100);
  // A peer is silent if this rank has heard nothing from it for kSilent.
  static constexpr absl::Duration kSilent = absl::Milliseconds(250);
  // Time between two probes of a silent peer. Several probes are needed,
  // because the first packet of a probe may be lost. The time doubles after
  // each answer, so that probes fill the connection queue of a stopped process
  // slowly. A stopped process takes no connections out of its queue, not even
  // reset ones. Once the queue is full, no probe gets an answer.
  static constexpr absl::Duration kProbePeriod = absl::Milliseconds(200);
  // Number of answered probes, of all ranks together, from which on a missing
  // answer proves nothing: they may have filled half of a stopped process's
  // queue. Linux queues 128 or more connections for a server that listens as
  // gRPC does.
  static constexpr int kQueuedProbes = 64;
  // A peer is lost if it has been silent for kGone, and its host refuses
  // connections or has not answered the last kUnanswered probes. A lost peer
  // ends the epoch before any deadline. A stopped process is not lost, because
  // its host accepts connections and the process may go on. A rank that loses
  // two peers or more and reaches no other peer is cut off.
  static constexpr absl::Duration kGone = absl::Seconds(1);
  static constexpr int kUnanswered = 3;

  struct Verdict {
    int suspect = -1;     // The world rank to blame.
    bool certain = true;  // False: may only be slow or waiting.
    std::string text;
  };

  // `addresses` has the address of each rank of the world, for messages.
  PeerWatch(int rank, std::vector<std::string> addresses);

  // Begins to expect heartbeats of all peers.
  void Start(Time now);
  // Ends the watch of `peer`, which has left.
  void Forget(int peer) { peers_[peer].left = true; }
  // Must be called often. If kSilent passes between two calls, this process
  // itself counts as stopped for the time between the calls. Peers do not count
  // as silent for that time.
  void Tick(Time now);

  // Notes a frame of `peer`. The next Tick counts the peer as heard. Cheap,
  // because it runs for every frame.
  void OnFrame(int peer, const FrameHeader& header) {
    Peer& from = peers_[peer];
    from.frame_came = true;
    if (from.activity.group == header.group &&
        from.activity.sequence < header.sequence) {
      from.activity.running = true;
      from.activity.sequence = header.sequence;
      from.activity.op_descriptor = header.op_descriptor;
      from.activity.waiting_for.clear();
    }
  }
  void OnHeartbeat(int peer, Activity activity, Time now);
  // Returns true if a probe of `peer` is due. Call OnProbeBegin when the probe
  // begins and OnProbe when it ends.
  bool WantsProbe(int peer, Time now) const;
  void OnProbeBegin(int peer, Time now);
  void OnProbe(int peer, ReachabilityProbe::Result result);

  absl::Duration SilentFor(int peer, Time now) const;
  // Returns the silent peers.
  std::vector<int> Unheard(Time now) const;
  // Returns the result of the last probe that has ended since `peer` was heard,
  // or kUnknown if there is none.
  ReachabilityProbe::Result Probed(int peer) const;
  // Returns a lost peer (see kGone), or this rank if it is cut off.
  std::optional<Verdict> FindLost(Time now) const;
  // Explains why frames of the peers `missing` do not arrive while this rank is
  // in its activity `own`: "rank 3 (host:1), which waits for rank 2 (host:2),
  // which is stopped or starved: ...". `missing` must not be empty.
  Verdict Explain(absl::Span<const int> missing, const Activity& own,
                  Time now) const;
  // Returns true if this process was stopped a short time ago. It may have
  // missed any message then.
  bool WasAway(Time now) const;
  // Explains why the connections of a peer have ended. Returns "" if nothing is
  // known.
  std::string ExplainClosed(int peer) const;

  // Returns "rank 2 (host:50052)".
  std::string Name(int peer) const;

 private:
  struct Peer {
    Time heard;
    bool left = false;
    bool frame_came = false;
    Activity activity;
    Time probe_begin = Time::min();
    bool probing = false;
    ReachabilityProbe::Result probed = ReachabilityProbe::Result::kUnknown;
    Time probed_begin = Time::min();
    int unanswered = 0;  // Probes in a row, since the peer was heard.
    int connected = 0;   // Probes since the peer was heard.
  };
  // The strength with which a finding explains a missing frame, ascending.
  enum class Weight { kNone, kWaits, kSlow, kElsewhere, kSilent, kGone };
  struct Finding {
    Weight weight = Weight::kNone;
    int rank = -1;
    std::string text;  // Follows "rank 2 (address), which ".
  };

  Finding Find(int peer, const Activity& own, Time now,
               std::vector<bool>& visited) const;
  bool Expected(int peer) const { return peer != rank_ && !peers_[peer].left; }
  // Returns true if probes may have filled the queue of a stopped process.
  bool QueueMayBeFull(int peer) const;
  bool Unanswered(int peer, Time now) const;
  // Returns true if two peers or more do not answer and no peer is reachable.
  bool CutOff(Time now) const;
  // Returns "this rank reaches none of its 3 peers and suspects itself".
  std::string CutOffText() const;
  Finding FindSilent(int peer, Time now) const;
  Finding FindAlive(int peer, const Activity& own) const;

  const int rank_;
  const std::vector<std::string> addresses_;
  std::vector<Peer> peers_;
  Time last_tick_;
  // Duration and end of the last time that this process was stopped.
  absl::Duration away_;
  Time away_until_ = Time::min();
};

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_TRANSPORT_PEER_WATCH_H_
