// SPDX-License-Identifier: Apache-2.0
// The transport of one epoch over gRPC. PeerLanes holds the streams and moves
// frames, PeerOpening opens the streams, PeerFailure ends the epoch. PeerLinks
// wires the three: it waits for frames and hands each report of a stream to
// the object that it concerns.
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

// Functions marked [role] require the poller's role; the others take it.
class PeerLinks final : public Transport, private PeerStream::Events {
 public:
  // [role] `on_end` runs once, in the role, when the links are closed.
  PeerLinks(std::shared_ptr<CompletionPoller> poller, LinkConfig config,
            std::function<void()> on_end);
  ~PeerLinks() override;

  int rank() const override { return config_.rank(); }
  int world_size() const override { return config_.world_size(); }
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

  // Wakes a thread in Receive or AwaitReleased with `cause`, without waiting
  // for the role. Peers are told when the links are closed.
  void Interrupt(const absl::Status& cause);

  // [role] As in PeerOpening.
  void Dial() { opening_.Dial(); }
  void Admit(std::shared_ptr<ServerStream> stream,
             const StreamIdentity& caller) {
    opening_.Admit(std::move(stream), caller);
  }
  absl::Status AwaitConnected(Deadline deadline) {
    return opening_.AwaitConnected(deadline);
  }
  // [role] Acts on the passing of time: gives up peers that lost one of their
  // streams or are silent, repeats calls, sends heartbeats.
  void Housekeeping();
  // [role] Tells peers that this rank leaves, unless it aborted, and lets them
  // read what it has sent before, for a moment; closes all streams. Later calls
  // return `reason` or the earlier cause. Idempotent.
  void Close(const absl::Status& reason);

  // [role] Lanes whose frames go to shared memory.
  int shared_lanes() const { return lanes_.shared_lanes(); }
  // The end of the epoch; OK while nothing has ended it.
  absl::Status Cause() const { return cause_.status(); }
  // Frames of another epoch, which are dropped.
  uint64_t dropped_frames() const { return lanes_.dropped_frames(); }

 private:
  // Returns null when `unless_woken` and woken_.
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
  // The rank that the last error of Receive, or the reader of its frame,
  // blames.
  std::atomic<int> blamed_;

  // Guarded by the role.
  std::function<void()> on_end_;
  PeerMonitor monitor_;
  PeerLanes lanes_;
  PeerFailure failure_;
  PeerOpening opening_;
  absl::Span<const Source> awaited_;  // By Receive.
  bool releasing_ = false;            // AwaitReleased waits.
};

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_TRANSPORT_PEER_LINKS_H_
