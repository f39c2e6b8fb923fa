// SPDX-License-Identifier: Apache-2.0
// The transport of one epoch over gRPC. PeerLanes has the streams and moves
// frames. PeerOpening opens the streams. PeerFailure ends the epoch. PeerLinks
// connects the three: it waits for frames and passes each event of a stream to
// one of them.
#ifndef RINGFLEET_CLUSTER_TRANSPORT_PEER_LINKS_H_
#define RINGFLEET_CLUSTER_TRANSPORT_PEER_LINKS_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cluster/transport/completion_poller.h"
#include "cluster/transport/epoch_cause.h"
#include "cluster/transport/peer_failure.h"
#include "cluster/transport/peer_lanes.h"
#include "cluster/transport/peer_monitor.h"
#include "cluster/transport/peer_opening.h"
#include "cluster/transport/peer_stream.h"
#include "cluster/transport/transport.h"

namespace ringfleet::cluster {

// Functions marked [role] require the poller's role. The other functions take
// it themselves.
class PeerLinks final : public Transport, private PeerStream::Events {
 public:
  // [role] `on_end` runs in the role, once, when the links are closed.
  PeerLinks(std::shared_ptr<CompletionPoller> poller, LinkConfig config,
            std::function<void()> on_end);
  ~PeerLinks() override;

  int rank() const override { return config_.rank(); }
  int world_size() const override { return config_.world_size(); }
  uint64_t epoch() const override { return config_.self.epoch; }

  // FAILED_PRECONDITION: this rank has no such lane to `peer`.
  absl::Status Send(int peer, Lane lane, const FrameHeader& header,
                    absl::Span<const char> payload,
                    PayloadLedger& ledger) override;
  // Requires that `frame` came from this transport.
  absl::Status Forward(int peer, Lane lane, const FrameHeader& header,
                       const FrameBody& frame) override;
  // UNAVAILABLE: the peers of all sources have left.
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

  // Ends the epoch with `cause` and wakes a thread in Receive or AwaitReleased.
  // Does not wait for the role. Peers are told when the links are closed.
  void Interrupt(const absl::Status& cause);

  // [role] These three call PeerOpening.
  void Dial() { opening_.Dial(); }
  void Admit(std::shared_ptr<ServerStream> stream,
             const StreamIdentity& caller) {
    opening_.Admit(std::move(stream), caller);
  }
  absl::Status AwaitConnected(Deadline deadline) {
    return opening_.AwaitConnected(deadline);
  }
  // [role] Does periodic work: gives up peers that are silent or have lost a
  // stream, redials streams, sends heartbeats.
  void Housekeeping();
  // [role] Tells peers that this rank leaves, unless the epoch has already
  // ended. Waits a short time until peers have read all sent frames, then
  // closes all streams. Later calls of Transport's functions return `reason` or
  // the earlier cause. Idempotent.
  void Close(const absl::Status& reason);

  // [role] Returns the number of lanes whose frames go to shared memory.
  int shared_lanes() const { return lanes_.shared_lanes(); }
  // Returns the cause of the epoch's end, or OK if it has not ended.
  absl::Status Cause() const { return cause_.status(); }
  // Returns the number of frames of other epochs that were dropped.
  uint64_t dropped_frames() const { return lanes_.dropped_frames(); }

 private:
  // Receives a frame. Returns null if `unless_woken` and woken_.
  absl::StatusOr<ReceivedFrame> ReceiveFrame(absl::Span<const Source> sources,
                                             Deadline deadline,
                                             bool unless_woken, size_t* index);
  std::vector<int> AwaitedPeers() const;
  absl::Status ExplainDelay(absl::string_view what);
  absl::Status AwaitLastWords(absl::Span<const Source> sources,
                              Deadline deadline);
  std::string PeerNames(absl::Span<const Source> sources) const;
  void SendHeartbeats();

  void OnOpen(PeerStream& stream, const StreamIdentity& peer) override;
  void OnMessage(PeerStream& stream, const grpc::ByteBuffer& message) override;
  void OnClosed(PeerStream& stream, const absl::Status& status) override;
  void OnControl(int peer, const grpc::ByteBuffer& message);

  const std::shared_ptr<CompletionPoller> poller_;
  const LinkConfig config_;
  EpochCause cause_;
  std::atomic<bool> woken_{false};
  // The rank that the last Blame, or the last error of Receive or
  // AwaitReleased, has named.
  std::atomic<int> blamed_;

  // The role guards the fields below.
  std::function<void()> on_end_;
  PeerMonitor monitor_;
  PeerLanes lanes_;
  PeerFailure failure_;
  PeerOpening opening_;
  absl::Span<const Source> awaited_;  // Sources of Receive.
  bool releasing_ = false;            // True in AwaitReleased.
};

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_TRANSPORT_PEER_LINKS_H_
