// SPDX-License-Identifier: Apache-2.0
// What a rank knows of its peers when nothing comes from them, and what it
// says about it. Every rank tells all others ten times a second which operation
// it is in and whose frames it waits for. A peer that is silent is asked by a
// probe whether its host still accepts connections, and a peer that only waits
// for somebody else passes the blame on: one stopped rank holds a whole ring,
// yet every rank of it names that one.
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

// What a rank does, by its own account.
struct Activity {
  bool known = false;  // Whether it keeps account of its operations.
  bool running = false;
  // The operation begun last, whether it runs or not; sequence 0: none.
  uint32_t group = 0;
  uint64_t sequence = 0;
  uint32_t op_descriptor = 0;
  std::vector<int> waiting_for;  // Ranks whose frames it waits for.
  std::vector<int> unheard;      // Ranks that it hears nothing of.

  bool operator==(const Activity&) const = default;
};

// Time is a parameter of everything; nothing here waits or asks a clock. Not
// thread-safe.
class PeerWatch {
 public:
  using Time = Deadline::Clock::time_point;

  static constexpr absl::Duration kHeartbeatPeriod = absl::Milliseconds(100);
  // A peer is silent once two heartbeats and a half are missing.
  static constexpr absl::Duration kSilent = absl::Milliseconds(250);
  // A silent peer is asked again and again, as a single first packet may be
  // lost; after each answer it is left alone for twice as long. A process that
  // is stopped does not take connections out of its kernel's queue, not even
  // those that were reset, and once it is full nobody gets an answer.
  static constexpr absl::Duration kProbePeriod = absl::Milliseconds(200);
  // Linux keeps 128 or more connections for whoever listens as gRPC does. When
  // all ranks may have filled half of that, no answer says nothing any more.
  static constexpr int kQueuedProbes = 64;
  // The rule by which a peer is lost before any deadline: it has been silent
  // for kGone, and its host refuses connections or did not answer the last
  // kUnanswered probes. A stopped process, which may go on, is not lost: its
  // host accepts connections. A rank that several peers are lost to, and that
  // reaches no other, is cut off itself.
  static constexpr absl::Duration kGone = absl::Seconds(1);
  static constexpr int kUnanswered = 3;

  struct Verdict {
    int suspect = -1;     // The rank to blame, in the world.
    bool certain = true;  // False when it only is slow, or waits as others do.
    std::string text;
  };

  // `addresses` are those of all ranks of the world, for messages.
  PeerWatch(int rank, std::vector<std::string> addresses);

  // From now on peers are expected to be heard.
  void Start(Time now);
  // A peer that has left is no longer expected to be.
  void Forget(int peer) { peers_[peer].left = true; }
  // Call often. A pause between two calls that is as long as kSilent means that
  // this process did not run: nobody else is blamed for that time.
  void Tick(Time now);

  // A frame has come. It counts from the next Tick on; this is as cheap as it
  // must be for every frame.
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
  // Whether it is time to begin a probe, which OnProbe must follow.
  bool WantsProbe(int peer, Time now) const;
  void OnProbeBegin(int peer, Time now);
  void OnProbe(int peer, ReachabilityProbe::Result result);

  absl::Duration SilentFor(int peer, Time now) const;
  // Peers that are silent.
  std::vector<int> Unheard(Time now) const;
  // What the last probe since `peer` was heard found; kUnknown if none did.
  ReachabilityProbe::Result Probed(int peer) const;
  // A peer that is lost by the rule above, or this rank.
  std::optional<Verdict> FindLost(Time now) const;
  // Who of `missing`, which is not empty, holds this rank up while it does
  // `own`, and why: "rank 3 (host:1), which waits for rank 2 (host:2), which is
  // stopped or starved: ...".
  Verdict Explain(absl::Span<const int> missing, const Activity& own,
                  Time now) const;
  // This process did not run for a while, and may have missed everything.
  bool WasAway(Time now) const;
  // What is known of a peer whose connections have ended; "" if nothing.
  std::string ExplainClosed(int peer) const;

  // "rank 2 (host:50052)".
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
  // How much explains a missing frame, ascending.
  enum class Weight { kNone, kWaits, kSlow, kElsewhere, kSilent, kGone };
  struct Finding {
    Weight weight = Weight::kNone;
    int rank = -1;
    std::string text;  // Follows "rank 2 (address), which ".
  };

  Finding Find(int peer, const Activity& own, Time now,
               std::vector<bool>& visited) const;
  bool Expected(int peer) const { return peer != rank_ && !peers_[peer].left; }
  // Its probes may have filled the queue of a stopped process.
  bool QueueMayBeFull(int peer) const;
  bool Unanswered(int peer, Time now) const;
  // At least two peers do not answer, and none is known to be in reach.
  bool CutOff(Time now) const;
  // "this rank reaches none of its 3 peers and suspects itself".
  std::string CutOffText() const;
  Finding FindSilent(int peer, Time now) const;
  Finding FindAlive(int peer, const Activity& own) const;

  const int rank_;
  const std::vector<std::string> addresses_;
  std::vector<Peer> peers_;
  Time last_tick_;
  // The last time that this process did not run, and until when.
  absl::Duration away_;
  Time away_until_ = Time::min();
};

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_TRANSPORT_PEER_WATCH_H_
