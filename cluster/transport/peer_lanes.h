// SPDX-License-Identifier: Apache-2.0
// The streams of one epoch and the frames that they carry. Each other rank has
// one end for every lane and one for Control. The frames of a lane go through
// shared memory once both ends of its stream have agreed on it; the stream then
// only tells whether the peer lives.
#ifndef RINGFLEET_CLUSTER_TRANSPORT_PEER_LANES_H_
#define RINGFLEET_CLUSTER_TRANSPORT_PEER_LANES_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "cluster/transport/completion_poller.h"
#include "cluster/transport/epoch_cause.h"
#include "cluster/transport/frame_queue.h"
#include "cluster/transport/link_message.h"
#include "cluster/transport/link_transport.h"
#include "cluster/transport/peer_monitor.h"
#include "cluster/transport/peer_stream.h"
#include "cluster/transport/shared_lanes.h"
#include "cluster/transport/transport.h"

namespace ringfleet::cluster {

// The links of one rank in one epoch.
struct LinkConfig {
  StreamIdentity self;
  CollectiveEndpoint::World world;
  size_t warm_up_bytes = 0;     // Per lane, as in CollectiveEndpoint.
  size_t max_queued_bytes = 0;  // Unconsumed, per lane of a peer.
  const FlightRecorder* recorder = nullptr;

  int rank() const { return self.source; }
  int world_size() const { return static_cast<int>(world.addresses.size()); }
  // Returns "rank 2 (host:50052)".
  std::string PeerName(int peer) const;
};

// Every function but dropped_frames requires the poller's role, which guards
// all state.
class PeerLanes final : private SharedLanes::Events {
 public:
  static constexpr int kControlEnd = kLanes;  // Behind the lanes.
  static constexpr int kEnds = kLanes + 1;
  // Runs in the role when `peer` sent what no rank sends.
  using ErrorHandler = std::function<void(const absl::Status&, int peer)>;

  // Wants Control and the direct lane of every peer, and the ring lanes of
  // neighbours in a ring. The references must outlive the lanes.
  PeerLanes(std::shared_ptr<CompletionPoller> poller, const LinkConfig& config,
            const EpochCause& cause, PeerMonitor& monitor,
            ErrorHandler on_error);

  static int EndIndex(const PeerStream& stream) {
    return stream.kind() == StreamKind::kControl
               ? kControlEnd
               : static_cast<int>(stream.lane());
  }

  // The state of an end. It is wanted when both sides open it, open from
  // SetOpen on and lost from SetLost on.
  bool wanted(int peer, int end) const { return peers_[peer][end].wanted; }
  bool lost(int peer, int end) const { return peers_[peer][end].lost; }
  bool has_stream(int peer, int end) const {
    return peers_[peer][end].stream != nullptr;
  }
  bool Holds(const PeerStream& stream) {
    return EndOf(stream).stream.get() == &stream;
  }
  // Begins the end anew. A null `stream` leaves it to be dialled or accepted.
  void SetStream(int peer, int end, std::shared_ptr<PeerStream> stream);
  void SetOpen(const PeerStream& stream) { EndOf(stream).open = true; }
  void SetLost(const PeerStream& stream) { EndOf(stream).lost = true; }
  // All wanted ends are open, of `peer` or of every peer.
  bool AllOpen(int peer) const;
  bool AllOpen() const;

  // Names this rank's shared memory to peers; "" when it has none.
  std::string offer() const {
    return shared_ != nullptr ? shared_->offer() : std::string();
  }
  // Moves the lane to the shared memory that `peer` offers. Returns false when
  // its frames stay in the stream.
  bool Share(int peer, Lane lane, absl::string_view offer);
  // The number of lanes whose frames this rank writes to shared memory.
  int shared_lanes() const;
  // Every end is open: tells the poller whether streams still carry frames.
  void SettleShared();

  // Returns the cause of the end of the epoch, UNAVAILABLE while the lane is
  // not open, or FAILED_PRECONDITION for a lane that does not exist.
  absl::Status CheckOpen(int peer, Lane lane) const;
  // Both require an open lane.
  void Write(int peer, Lane lane, const FrameHeader& header,
             absl::Span<const char> payload, PayloadLedger& ledger);
  void Forward(int peer, Lane lane, const FrameHeader& header,
               const LinkFrame& frame);
  // Writes to an open Control stream; fills epoch and source in.
  void WriteControl(int peer, v1::ControlMessage message);

  // Nothing that was written waits: of one end, of one peer, of all.
  bool WritesIdle(int peer, int end) const;
  bool LanesIdle(int peer) const;
  bool AllIdle() const;
  bool ControlIdle(int peer) const {
    const End& control = peers_[peer][kControlEnd];
    return control.open && control.stream->writes_idle();
  }

  // Takes a message of a Link stream in.
  void OnMessage(PeerStream& stream, const grpc::ByteBuffer& message);
  bool HasFrame(const Source& source) {
    return !LaneOf(source.peer, source.lane).frames.empty();
  }
  // The lane has ended, and nothing that the peer wrote to its ring before
  // that is unread.
  bool Drained(const Source& source) {
    return LaneOf(source.peer, source.lane).lost &&
           (shared_ == nullptr ||
            !shared_->has_unread(source.peer, source.lane));
  }
  // Requires HasFrame(source).
  LinkFramePtr TakeFrame(const Source& source);
  // Frames of another epoch, which are dropped. Thread-safe.
  uint64_t dropped_frames() const { return dropped_frames_.load(); }

  // Cancels the Link streams with `peer` and drops what is queued there.
  void CancelLanes(int peer);
  // Gives up frames for shared memory that there was no room for.
  void DropWrites(int peer, int end);
  // Drops received frames and reads on, so that the ends of lanes are seen.
  void DropFrames();
  // Ends the lanes to `peer` that have sent everything. Returns a count that
  // falls with all that the peer takes, to 0.
  size_t EndWrites(int peer);
  // The Control stream with `peer` is open and not lost.
  bool control_open(int peer) const {
    const End& control = peers_[peer][kControlEnd];
    return control.open && !control.lost;
  }
  // Cancels all streams and reports nothing of them any more.
  void Close();
  // gRPC points at no payload memory any more.
  bool released() const { return pool_.released(); }

 private:
  // One stream with a peer. `stream` is null until dialled or accepted.
  struct End {
    bool wanted = false;
    bool open = false;
    bool lost = false;
    std::shared_ptr<PeerStream> stream;
    // For lanes only:
    bool shared = false;  // Frames are written to shared memory.
    FrameQueue<LinkFramePtr> frames;
    size_t queued_bytes = 0;
    bool read_due = false;  // No read is posted because too much is queued.
  };

  void WantRings();
  void ShareMemory();
  End& EndOf(const PeerStream& stream) {
    return peers_[stream.peer()][EndIndex(stream)];
  }
  End& LaneOf(int peer, Lane lane) {
    return peers_[peer][static_cast<size_t>(lane)];
  }
  const End& LaneOf(int peer, Lane lane) const {
    return peers_[peer][static_cast<size_t>(lane)];
  }
  void OnFrame(int peer, Lane lane, LinkFramePtr frame);
  bool WantsFrame(int peer, Lane lane) override;
  void OnSharedFrame(int peer, Lane lane, LinkFramePtr frame) override;
  void OnSharedError(int peer, const absl::Status& status) override;

  const std::shared_ptr<CompletionPoller> poller_;
  const LinkConfig& config_;
  const EpochCause& cause_;
  PeerMonitor& monitor_;
  const ErrorHandler on_error_;
  MessagePool pool_;  // Outlives the frames in peers_.
  // By rank; the own entry stays empty.
  std::vector<std::array<End, kEnds>> peers_;
  std::unique_ptr<SharedLanes> shared_;  // Null when streams carry all frames.
  std::atomic<uint64_t> dropped_frames_{0};
};

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_TRANSPORT_PEER_LANES_H_
