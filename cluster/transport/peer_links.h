// SPDX-License-Identifier: Apache-2.0
// The transport of one epoch over gRPC: to every other rank a Control stream
// and a Link stream for each lane, each on its own connection. Between ranks of
// one host frames go through shared memory instead, where the ends of a Link
// agree on it as it opens; the stream then only tells whether the peer lives.
#ifndef RINGFLEET_CLUSTER_TRANSPORT_PEER_LINKS_H_
#define RINGFLEET_CLUSTER_TRANSPORT_PEER_LINKS_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "cluster/transport/completion_poller.h"
#include "cluster/transport/link_message.h"
#include "cluster/transport/link_transport.h"
#include "cluster/transport/peer_monitor.h"
#include "cluster/transport/peer_stream.h"
#include "cluster/transport/ring_queue.h"
#include "cluster/transport/shared_lanes.h"
#include "cluster/transport/transport.h"
#include "kernels/mutex.h"

namespace ringfleet::cluster {

// Functions marked [role] require the poller's role; the others take it.
class PeerLinks final : public Transport,
                        private PeerStream::Events,
                        private SharedLanes::Events {
 public:
  struct Config {
    StreamIdentity self;
    CollectiveEndpoint::World world;
    size_t warm_up_bytes = 0;     // Per lane, as in CollectiveEndpoint.
    size_t max_queued_bytes = 0;  // Unconsumed, per lane of a peer.
    const FlightRecorder* recorder = nullptr;
  };
  // [role] `on_end` runs once, in the role, when the links are closed.
  PeerLinks(std::shared_ptr<CompletionPoller> poller, Config config,
            std::function<void()> on_end);
  ~PeerLinks() override;

  int rank() const override { return config_.self.source; }
  int world_size() const override { return static_cast<int>(peers_.size()); }
  uint64_t epoch() const override { return config_.self.epoch; }

  // FAILED_PRECONDITION: there is no such lane to `peer`.
  absl::Status Send(int peer, Lane lane, const FrameHeader& header,
                    absl::Span<const char> payload,
                    PayloadLedger& ledger) override;
  // Requires that `frame` came from this transport.
  absl::Status Forward(int peer, Lane lane, const FrameHeader& header,
                       const FrameBody& frame) override;
  // UNAVAILABLE when the peers of all sources have left.
  absl::StatusOr<ReceivedFrame> Receive(absl::Span<const Source> sources,
                                        Deadline deadline,
                                        size_t* index) override;
  absl::StatusOr<ReceivedFrame> ReceiveUnlessWoken(
      absl::Span<const Source> sources, Deadline deadline,
      size_t* index) override;
  void Wake() override;
  absl::Status AwaitReleased(const PayloadLedger& ledger,
                             Deadline deadline) override;
  void Blame(int peer) override { blamed_ = peer; }
  void Abort(const absl::Status& cause) override;

  // Wakes whoever waits in Receive or AwaitReleased with `cause`, without
  // waiting for the role; peers are told when the links are closed.
  void Interrupt(const absl::Status& cause);

  // [role] Dials the ranks below this one.
  void Dial();
  // [role] Accepts a stream of this epoch or refuses it.
  void Admit(std::shared_ptr<ServerStream> stream,
             const StreamIdentity& caller);
  // [role] Waits until every rank has opened all its links. On an error the
  // epoch is aborted.
  absl::Status AwaitConnected(Deadline deadline);
  // [role] Looks at what only time tells: peers that lost one of their
  // streams, that are silent, and calls to repeat; tells them what this rank
  // does.
  void Housekeeping();
  // [role] Tells peers that this rank leaves, unless it aborted, and lets them
  // read what it has sent before, for a moment; closes all streams. Later calls
  // return `reason` or the earlier cause. Idempotent.
  void Close(const absl::Status& reason);

  // [role] Lanes whose frames go to shared memory.
  int shared_lanes() const;
  // What has ended the epoch; OK while nothing has.
  absl::Status Cause();
  // Frames of another epoch, which are dropped.
  uint64_t dropped_frames() const { return dropped_frames_.load(); }

 private:
  // One stream with a peer. `stream` is null until dialled or accepted.
  struct End {
    bool wanted = false;  // Both sides open it.
    bool shared = false;  // Frames are written to shared memory.
    std::shared_ptr<PeerStream> stream;
    bool open = false;
    bool lost = false;
    std::optional<Deadline> redial;
    RingQueue<LinkFramePtr> frames;
    size_t queued_bytes = 0;
    bool read_due = false;  // No read is posted because too much is queued.
  };
  static constexpr int kControlEnd = kLanes;  // Behind the lanes.
  // Releases are no completions: looked for this often while blocked.
  static constexpr absl::Duration kReleaseSlice = absl::Milliseconds(1);
  struct Peer {
    std::array<End, kLanes + 1> ends;
    bool ready = false;  // It has opened all its links.
    bool left = false;
    bool heard = false;     // It has read why this rank ends the epoch.
    bool answered = false;  // It was told that its own reason was read.
    std::optional<Deadline> verdict;  // When lost streams count as a lost peer.
    // What ended, and how: "link, control", "Socket closed".
    std::vector<std::pair<std::string, std::string>> losses;

    End& lane(Lane lane) { return ends[static_cast<size_t>(lane)]; }
    End& control() { return ends[kControlEnd]; }
  };

  // Opening (peer_links_opening.cc).
  void WantRings();
  void ShareMemory();
  bool Listen(int peer, Lane lane);
  void DialOne(int peer, int end, bool share);
  void OnOpen(PeerStream& stream, const StreamIdentity& peer) override;
  void WarmUp(int peer, Lane lane);
  void LocatePeer(const PeerStream& stream);
  bool AllOpen() const;
  bool AllReady() const;
  bool LinksIdle() const;
  std::string MissingPeers() const;
  void SendReady(Peer& peer);

  // Moving frames (peer_links.cc).
  absl::Status CheckOpen(int peer, Lane lane);
  // Null when `unless_woken` and woken_.
  absl::StatusOr<ReceivedFrame> ReceiveFrame(absl::Span<const Source> sources,
                                             Deadline deadline,
                                             bool unless_woken, size_t* index);
  void WriteFrame(int peer, Lane lane, const FrameHeader& header,
                  absl::Span<const char> payload, PayloadLedger& ledger);
  bool WritesIdle(int peer, int end) const;
  std::vector<int> AwaitedPeers() const;
  absl::Status ExplainDelay(absl::string_view what);
  absl::Status AwaitLastWords(absl::Span<const Source> sources,
                              Deadline deadline);
  void OnMessage(PeerStream& stream, const grpc::ByteBuffer& message) override;
  bool WantsFrame(int peer, Lane lane) override;
  void OnSharedFrame(int peer, Lane lane, LinkFramePtr frame) override;
  void OnSharedError(int peer, const absl::Status& status) override;
  void OnFrame(int peer, Lane lane, LinkFramePtr frame);

  // Control and failure (peer_links_failure.cc).
  void OnControl(PeerStream& stream, const grpc::ByteBuffer& message);
  void AnswerHeard(int rank);
  void OnClosed(PeerStream& stream, const absl::Status& status) override;
  static void NoteLoss(Peer& peer, absl::string_view end,
                       const absl::Status& status);
  void OnPeerLost(int rank);
  void SendHeartbeats();
  void OnStartFailed(PeerStream& stream, const absl::Status& status);
  void WriteControl(Peer& peer, const v1::ControlMessage& message);
  v1::ControlMessage NewControl() const;
  bool aborted() const { return aborted_.load(std::memory_order_acquire); }
  // Keeps the first cause. `origin` is the text peers get to read.
  bool Record(const absl::Status& cause, const std::string& origin,
              int suspect);
  void AbortInRole(const absl::Status& cause, int suspect);
  void SpreadAbort();
  void DropWrites(int peer, int end);
  void DropFrames();
  // Ends the lanes, if the rank `leaves`, that have sent everything. How much
  // peers have not taken yet.
  size_t SayFarewell(bool leaves);
  void AwaitFarewell(bool leaves);

  int EndIndex(const PeerStream& stream) const {
    return stream.kind() == StreamKind::kControl
               ? kControlEnd
               : static_cast<int>(stream.lane());
  }
  End& EndOf(const PeerStream& stream) {
    return peers_[stream.peer()].ends[EndIndex(stream)];
  }
  std::string PeerName(int peer) const;
  std::string PeerNames(absl::Span<const Source> sources) const;
  void ForEachPeer(absl::FunctionRef<void(int, Peer&)> visit);

  const std::shared_ptr<CompletionPoller> poller_;
  const Config config_;
  MessagePool pool_;  // Guarded by the role; outlives the frames in peers_.
  std::atomic<bool> aborted_{false};
  std::atomic<bool> woken_{false};
  std::atomic<uint64_t> dropped_frames_{0};
  // Whom the last error blames, of Receive or of who looked at its frame.
  std::atomic<int> blamed_;

  // Guarded by the role.
  std::function<void()> on_end_;
  std::vector<Peer> peers_;              // By rank; the own entry stays empty.
  std::unique_ptr<SharedLanes> shared_;  // Null when streams carry all frames.
  PeerMonitor monitor_;
  absl::Span<const Source> awaited_;  // By Receive.
  bool releasing_ = false;            // AwaitReleased waits.
  bool ready_ = false;                // This rank has opened all its links.
  bool connected_ = false;
  bool abort_spread_ = false;
  bool closed_ = false;

  Mutex mu_;
  absl::Status cause_ ABSL_GUARDED_BY(mu_);
  std::string origin_ ABSL_GUARDED_BY(mu_);
  int suspect_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_TRANSPORT_PEER_LINKS_H_
