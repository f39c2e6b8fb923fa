// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_TESTS_TESTING_SCRIPTED_TRANSPORT_H_
#define RINGFLEET_TESTS_TESTING_SCRIPTED_TRANSPORT_H_

#include <algorithm>
#include <functional>
#include <utility>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "cluster/transport/transport.h"

namespace ringfleet::testing {

// A frame that a rank is about to send.
struct OutgoingFrame {
  int from = 0;
  int to = 0;
  cluster::Lane lane = cluster::Lane::kDirect;
  cluster::FrameHeader header;
  // Payload of the frame. Null for a forwarded frame, whose payload cannot be
  // changed.
  absl::Span<const char>* payload = nullptr;
  cluster::PayloadLedger* ledger = nullptr;
};

// Called before a frame is sent. May wait. May change the header, and payload
// and ledger together. The frame is lost if the script returns false.
using FrameScript = std::function<bool(OutgoingFrame& frame)>;

// Links that call a script before each frame. `links` must outlive the object.
// Not thread-safe.
class ScriptedTransport final : public cluster::Transport {
 public:
  ScriptedTransport(cluster::Transport* links, FrameScript script)
      : links_(links), script_(std::move(script)) {}

  int rank() const override { return links_->rank(); }
  int world_size() const override { return links_->world_size(); }
  uint64_t epoch() const override { return links_->epoch(); }
  absl::Status Send(int peer, cluster::Lane lane,
                    const cluster::FrameHeader& header,
                    absl::Span<const char> payload,
                    cluster::PayloadLedger& ledger) override {
    OutgoingFrame frame{rank(), peer, lane, header, &payload, &ledger};
    if (!script_(frame)) return absl::OkStatus();
    return links_->Send(peer, lane, frame.header, payload, *frame.ledger);
  }
  absl::Status Forward(int peer, cluster::Lane lane,
                       const cluster::FrameHeader& header,
                       const cluster::FrameBody& body) override {
    OutgoingFrame frame{rank(), peer, lane, header};
    if (!script_(frame)) return absl::OkStatus();
    return links_->Forward(peer, lane, frame.header, body);
  }
  absl::StatusOr<cluster::ReceivedFrame> Receive(
      absl::Span<const cluster::Source> sources, cluster::Deadline deadline,
      size_t* index) override {
    return links_->Receive(sources, deadline, index);
  }
  absl::StatusOr<cluster::ReceivedFrame> ReceiveUnlessWoken(
      absl::Span<const cluster::Source> sources, cluster::Deadline deadline,
      size_t* index) override {
    return links_->ReceiveUnlessWoken(sources, deadline, index);
  }
  void Wake() override { links_->Wake(); }
  absl::Status AwaitReleased(const cluster::PayloadLedger& ledger,
                             cluster::Deadline deadline) override {
    return links_->AwaitReleased(ledger, deadline);
  }
  void Blame(int peer) override { links_->Blame(peer); }
  void Abort(const absl::Status& cause) override { links_->Abort(cause); }

 private:
  cluster::Transport* const links_;
  const FrameScript script_;
};

// Returns a script that delays every frame to the right neighbour in a ring of
// all ranks by `right`, and every frame to the left neighbour by `left`.
inline FrameScript SlowFrames(int world_size, absl::Duration right,
                              absl::Duration left) {
  return [=](OutgoingFrame& frame) {
    const bool direct = frame.lane == cluster::Lane::kDirect;
    absl::Duration delay;
    if (direct ? frame.to == (frame.from + 1) % world_size
               : frame.lane == cluster::Lane::kRight) {
      delay = right;
    }
    if (direct ? frame.to == (frame.from + world_size - 1) % world_size
               : frame.lane == cluster::Lane::kLeft) {
      delay = std::max(delay, left);
    }
    if (delay > absl::ZeroDuration()) absl::SleepFor(delay);
    return true;
  };
}

}  // namespace ringfleet::testing

#endif  // RINGFLEET_TESTS_TESTING_SCRIPTED_TRANSPORT_H_
