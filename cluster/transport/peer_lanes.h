// SPDX-License-Identifier: Apache-2.0
// The streams of one epoch and their frames. An end is one stream with one
// other rank: one end for each lane, and one for Control. If both ranks agree
// on shared memory, a lane's frames go through shared memory. The lane's stream
// then only shows that the peer lives.
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

// The settings of one rank's links in one epoch.
struct LinkConfig {
  StreamIdentity self;
  CollectiveEndpoint::World world;
  size_t warm_up_bytes = 0;     // As in CollectiveEndpoint.
  size_t max_queued_bytes = 0;  // Per lane of a peer.
  const FlightRecorder* recorder = nullptr;
  RoundTrips* round_trips = nullptr;

  int rank() const { return self.source; }
  int world_size() const { return static_cast<int>(world.addresses.size()); }
  // Returns "rank 2 (host:50052)".
  std::string PeerName(int peer) const;
};

// Every function but dropped_frames requires the poller's role. The role guards
// all state.
class PeerLanes final : private SharedLanes::Events {
 public:
  static constexpr int kControlEnd = kLanes;  // Follows the lanes.
  static constexpr int kEnds = kLanes + 1;
  // Runs in the role if `peer` sent bytes that are no valid message.
  using ErrorHandler = std::function<void(const absl::Status&, int peer)>;

  // Wants the Control and direct ends of every peer, and the ring lanes of
  // neighbours in a ring. The references must outlive the lanes.
  PeerLanes(std::shared_ptr<CompletionPoller> poller, const LinkConfig& config,
            const EpochCause& cause, PeerMonitor& monitor,
            ErrorHandler on_error);

  static int EndIndex(const PeerStream& stream) {
    return stream.kind() == StreamKind::kControl
               ? kControlEnd
               : static_cast<int>(stream.lane());
  }

  // Return the state of an end. `end` is a lane's number or kControlEnd. A
  // wanted end must be opened. An end is open after SetOpen and lost after
  // SetLost.
  bool wanted(int peer, int end) const { return peers_[peer][end].wanted; }
  bool lost(int peer, int end) const { return peers_[peer][end].lost; }
  bool has_stream(int peer, int end) const {
    return peers_[peer][end].stream != nullptr;
  }
  bool Holds(const PeerStream& stream) {
    return EndOf(stream).stream.get() == &stream;
  }
  // Resets an end and gives it `stream`. A null `stream` means that the end
  // must still be dialled or accepted.
  void SetStream(int peer, int end, std::shared_ptr<PeerStream> stream);
  void SetOpen(const PeerStream& stream) { EndOf(stream).open = true; }
  void SetLost(const PeerStream& stream) { EndOf(stream).lost = true; }
  // Return true if all wanted ends are open: of `peer`, or of every peer.
  bool AllOpen(int peer) const;
  bool AllOpen() const;

  // Returns the text by which peers open this rank's shared memory, or "" if it
  // has none.
  std::string offer() const {
    return shared_ != nullptr ? shared_->offer() : std::string();
  }
  // Makes this rank write the lane's frames to the shared memory that `peer`
  // offers. Returns false if the frames stay in the stream.
  bool Share(int peer, Lane lane, absl::string_view offer);
  // Returns the number of lanes on which this rank writes frames to shared
  // memory.
  int shared_lanes() const;
  // Tells the poller whether streams carry frames. Call it when all ends are
  // open.
  void SettleShared();

  // Returns OK if the lane is open. Errors: the cause, if the epoch has ended.
  // UNAVAILABLE: the lane is not open. FAILED_PRECONDITION: there is no such
  // lane.
  absl::Status CheckOpen(int peer, Lane lane) const;
  // Queue a frame as Transport::Send and Transport::Forward do. The lane must
  // be open.
  void Write(int peer, Lane lane, const FrameHeader& header,
             absl::Span<const char> payload, PayloadLedger& ledger);
  void Forward(int peer, Lane lane, const FrameHeader& header,
               const LinkFrame& frame);
  // Sets epoch and source of `message` and writes it to the Control stream,
  // which must be open.
  void WriteControl(int peer, v1::ControlMessage message);

  // Return true if no written message waits to be sent: on one end, on all
  // lanes of a peer, on all ends of all peers.
  bool WritesIdle(int peer, int end) const;
  bool LanesIdle(int peer) const;
  bool AllIdle() const;
  bool ControlIdle(int peer) const {
    const End& control = peers_[peer][kControlEnd];
    return control.open && control.stream->writes_idle();
  }

  // Takes a message that arrived on a Link stream.
  void OnMessage(PeerStream& stream, const grpc::ByteBuffer& message);
  bool HasFrame(const Source& source) {
    return !LaneOf(source.peer, source.lane).frames.empty();
  }
  // Returns true if the lane has ended and all bytes that the peer wrote to its
  // ring have been read.
  bool Drained(const Source& source) {
    return LaneOf(source.peer, source.lane).lost &&
           (shared_ == nullptr ||
            !shared_->has_unread(source.peer, source.lane));
  }
  // Requires HasFrame(source).
  LinkFramePtr TakeFrame(const Source& source);
  // Returns the number of frames of other epochs that were dropped.
  // Thread-safe.
  uint64_t dropped_frames() const { return dropped_frames_.load(); }

  // Cancels the Link streams with `peer` and drops their queued frames.
  void CancelLanes(int peer);
  // Drops an end's frames that wait for room in shared memory.
  void DropWrites(int peer, int end);
  // Drops all received frames and reads on, so that the end of each lane is
  // noticed.
  void DropFrames();
  // Ends the lanes to `peer` that have sent all their frames. Returns a number
  // that falls to 0 as the peer reads all that was sent.
  size_t EndWrites(int peer);
  // Returns true if the Control stream with `peer` is open and not lost.
  bool control_open(int peer) const {
    const End& control = peers_[peer][kControlEnd];
    return control.open && !control.lost;
  }
  // Cancels all streams. Their events are not reported any more.
  void Close();
  // Returns true if gRPC has released all payload memory.
  bool released() const { return pool_.released(); }

 private:
  // One stream with a peer. `stream` is null until it is dialled or accepted.
  struct End {
    bool wanted = false;
    bool open = false;
    bool lost = false;
    std::shared_ptr<PeerStream> stream;
    // The fields below are for lanes only.
    bool shared = false;  // Frames are written to shared memory.
    FrameQueue<LinkFramePtr> frames;
    size_t queued_bytes = 0;
    bool read_due = false;  // No read is posted: too many bytes are queued.
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
  MessagePool pool_;  // Must outlive the frames in peers_.
  // Indexed by rank; this rank's entry is unused.
  std::vector<std::array<End, kEnds>> peers_;
  std::unique_ptr<SharedLanes> shared_;  // Null: streams carry all frames.
  std::atomic<uint64_t> dropped_frames_{0};
};

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_TRANSPORT_PEER_LANES_H_
