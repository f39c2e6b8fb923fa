// SPDX-License-Identifier: Apache-2.0
// The knowledge of a rank about silent peers, and its explanation of missing
// frames. Every rank tells all others ten times a second which operation it is
// in and whose frames it waits for. A probe asks the host of a silent peer
// whether it still accepts connections. A peer that only waits for another rank
// passes the blame on: one stopped rank holds a whole ring, and every rank of
// the ring names it.
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

// The activity of a rank, by its own account.
struct Activity {
  bool known = false;  // The rank keeps account of its operations.
  bool running = false;
  // The operation begun last, whether it runs or not; sequence 0: none.
  uint32_t group = 0;
  uint64_t sequence = 0;
  uint32_t op_descriptor = 0;
  std::vector<int> waiting_for;  // Ranks whose frames it waits for.
  std::vector<int> unheard;      // Ranks that it hears nothing of.

  bool operator==(const Activity&) const = default;
};

// Functions take the time as a parameter. None waits or asks a clock. Not
// thread-safe.
class PeerWatch {
 public:
  using Time = Deadline::Clock::time_point;

  static constexpr absl::Duration kHeartbeatPeriod = absl::Milliseconds(100);
  // A peer is silent once two heartbeats and a half are missing.
  static constexpr absl::Duration kSilent = absl::Milliseconds(250);
  // A silent peer is probed again and again, because a single first packet may
  // be lost. After each answer it is left alone for twice as long. A stopped
  // process does not take connections out of its kernel's queue, not even reset
  // ones, and a full queue answers nobody.
  static constexpr absl::Duration kProbePeriod = absl::Milliseconds(200);
  // Linux keeps 128 or more connections for a server that listens as gRPC does.
  // When all ranks may have filled half of the queue, a missing answer says
  // nothing any more.
  static constexpr int kQueuedProbes = 64;
  // The rule by which a peer is lost before any deadline: it has been silent
  // for kGone, and its host refuses connections or left the last kUnanswered
  // probes without an answer. A stopped process, which may go on, is not lost:
  // its host accepts connections. A rank that loses several peers and reaches
  // no other is cut off itself.
  static constexpr absl::Duration kGone = absl::Seconds(1);
  static constexpr int kUnanswered = 3;

  struct Verdict {
    int suspect = -1;     // The rank to blame, in the world.
    bool certain = true;  // False when it only is slow, or waits as others do.
    std::string text;
  };

  // `addresses` are those of all ranks of the world, for messages.
  PeerWatch(int rank, std::vector<std::string> addresses);

  // Begins to expect the peers' heartbeats.
  void Start(Time now);
  // Expects nothing of a peer that has left.
  void Forget(int peer) { peers_[peer].left = true; }
  // Call often. After a pause of kSilent between two calls this process is
  // taken to have stood still, and no peer is blamed for that time.
  void Tick(Time now);

  // Notes a frame, which counts from the next Tick on. Runs for every frame, so
  // it is cheap.
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
  // True when a probe is due. Call OnProbeBegin and then OnProbe for it.
  bool WantsProbe(int peer, Time now) const;
  void OnProbeBegin(int peer, Time now);
  void OnProbe(int peer, ReachabilityProbe::Result result);

  absl::Duration SilentFor(int peer, Time now) const;
  // Returns the silent peers.
  std::vector<int> Unheard(Time now) const;
  // Returns the result of the last probe since `peer` was heard; kUnknown: none
  // has ended.
  ReachabilityProbe::Result Probed(int peer) const;
  // Returns a peer that is lost by the rule above, or this rank if it is cut
  // off.
  std::optional<Verdict> FindLost(Time now) const;
  // Explains which of the peers `missing`, which is not empty, holds this rank
  // up in its activity `own`: "rank 3 (host:1), which waits for rank 2
  // (host:2), which is stopped or starved: ...".
  Verdict Explain(absl::Span<const int> missing, const Activity& own,
                  Time now) const;
  // True when this process has stood still, and may have missed everything.
  bool WasAway(Time now) const;
  // Returns the knowledge of a peer whose connections have ended, or "".
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
    int unanswered = 0;  // Probes in a row since it was heard.
    int connected = 0;   // Probes since it was heard.
  };
  // How well a finding explains a missing frame, ascending.
  enum class Weight { kNone, kWaits, kSlow, kElsewhere, kSilent, kGone };
  struct Finding {
    Weight weight = Weight::kNone;
    int rank = -1;
    std::string text;  // Follows "rank 2 (address), which ".
  };

  Finding Find(int peer, const Activity& own, Time now,
               std::vector<bool>& visited) const;
  bool Expected(int peer) const { return peer != rank_ && !peers_[peer].left; }
  // True when probes may have filled the queue of a stopped process.
  bool QueueMayBeFull(int peer) const;
  bool Unanswered(int peer, Time now) const;
  // True when two peers or more do not answer, and none is in reach.
  bool CutOff(Time now) const;
  // Returns "this rank reaches none of its 3 peers and suspects itself".
  std::string CutOffText() const;
  Finding FindSilent(int peer, Time now) const;
  Finding FindAlive(int peer, const Activity& own) const;

  const int rank_;
  const std::vector<std::string> addresses_;
  std::vector<Peer> peers_;
  Time last_tick_;
  // The length and the end of the last time that this process stood still.
  absl::Duration away_;
  Time away_until_ = Time::min();
};

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_TRANSPORT_PEER_WATCH_H_
