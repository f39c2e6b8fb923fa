// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_TESTS_TESTING_SLOW_TRANSPORT_H_
#define RINGFLEET_TESTS_TESTING_SLOW_TRANSPORT_H_

#include <algorithm>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "cluster/transport/transport.h"

namespace ringfleet::testing {

// A rank that is late with every frame it sends along one direction of a ring,
// or both, and with direct ones to the neighbours in these directions.
class SlowTransport final : public cluster::Transport {
 public:
  SlowTransport(cluster::Transport* links, absl::Duration right,
                absl::Duration left)
      : links_(links), right_(right), left_(left) {}

  int rank() const override { return links_->rank(); }
  int world_size() const override { return links_->world_size(); }
  uint64_t epoch() const override { return links_->epoch(); }
  absl::Status Send(int peer, cluster::Lane lane,
                    const cluster::FrameHeader& header,
                    absl::Span<const char> payload,
                    cluster::PayloadLedger& ledger) override {
    Delay(peer, lane);
    return links_->Send(peer, lane, header, payload, ledger);
  }
  absl::Status Forward(int peer, cluster::Lane lane,
                       const cluster::FrameHeader& header,
                       const cluster::FrameBody& frame) override {
    Delay(peer, lane);
    return links_->Forward(peer, lane, header, frame);
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
  void Delay(int peer, cluster::Lane lane) const {
    const bool direct = lane == cluster::Lane::kDirect;
    const int world = world_size();
    absl::Duration delay;
    if (direct ? peer == (rank() + 1) % world : lane == cluster::Lane::kRight) {
      delay = right_;
    }
    if (direct ? peer == (rank() + world - 1) % world
               : lane == cluster::Lane::kLeft) {
      delay = std::max(delay, left_);
    }
    if (delay > absl::ZeroDuration()) absl::SleepFor(delay);
  }

  cluster::Transport* const links_;
  const absl::Duration right_;
  const absl::Duration left_;
};

}  // namespace ringfleet::testing

#endif  // RINGFLEET_TESTS_TESTING_SLOW_TRANSPORT_H_
