// SPDX-License-Identifier: Apache-2.0
#include "tests/testing/fake_transport.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cluster/status_macros.h"

namespace ringfleet::testing {

using cluster::CheckCrc;
using cluster::Deadline;
using cluster::FrameHeader;
using cluster::ReceivedFrame;

class FakeNetwork::Rank : public cluster::Transport {
 public:
  Rank(FakeNetwork* network, int rank) : network_(network), rank_(rank) {}

  int rank() const override { return rank_; }
  int world_size() const override { return network_->world_size_; }
  uint64_t epoch() const override { return 1; }

  absl::Status Send(int peer, const FrameHeader& header,
                    absl::Span<const char> payload) override {
    MutexLock lock(&network_->mu_);
    if (!network_->cause_.ok()) return network_->cause_;
    FrameHeader sent = header;
    if (network_->tamper_ && !network_->tamper_(rank_, peer, sent)) {
      return absl::OkStatus();
    }
    Queue(rank_, peer).push_back({sent, payload});
    network_->changed_.NotifyAll();
    return absl::OkStatus();
  }

  absl::StatusOr<ReceivedFrame> Receive(int peer, Deadline deadline) override {
    ReceivedFrame frame;
    {
      MutexLock lock(&network_->mu_);
      auto& queue = Queue(peer, rank_);
      while (network_->cause_.ok() && queue.empty()) {
        if (!Wait(deadline)) {
          return absl::DeadlineExceededError(
              absl::StrCat("no frame from rank ", peer));
        }
      }
      if (!network_->cause_.ok()) return network_->cause_;
      Copy(queue.front(), &frame);
      queue.pop_front();
      network_->changed_.NotifyAll();
    }
    RF_RETURN_IF_ERROR(CheckCrc(frame, peer));
    return frame;
  }

  absl::Status Flush(Deadline deadline) override {
    MutexLock lock(&network_->mu_);
    const auto unread = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(network_->mu_) {
      for (int peer = 0; peer < world_size(); ++peer) {
        if (!Queue(rank_, peer).empty()) return true;
      }
      return false;
    };
    while (network_->cause_.ok() && unread()) {
      if (!Wait(deadline))
        return absl::DeadlineExceededError("frames of this rank are unread");
    }
    return network_->cause_;
  }

  void Abort(const absl::Status& cause) override {
    MutexLock lock(&network_->mu_);
    if (network_->cause_.ok()) network_->cause_ = cause;
    for (auto& queue : network_->queues_) queue.clear();
    network_->changed_.NotifyAll();
  }

 private:
  std::deque<Sent>& Queue(int from, int to)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(network_->mu_) {
    return network_->queues_[from * network_->world_size_ + to];
  }

  bool Wait(Deadline deadline) ABSL_EXCLUSIVE_LOCKS_REQUIRED(network_->mu_) {
    if (deadline.infinite()) {
      network_->changed_.Wait(&network_->mu_);
      return true;
    }
    return network_->changed_.WaitUntil(&network_->mu_, deadline.when());
  }

  void Copy(const Sent& sent, ReceivedFrame* frame) {
    auto copy =
        std::make_shared<std::string>(sent.payload.data(), sent.payload.size());
    frame->header = sent.header;
    frame->payload_bytes = copy->size();
    for (size_t i = 0; i < copy->size(); i += network_->piece_bytes_) {
      frame->payload.push_back(
          absl::MakeConstSpan(*copy).subspan(i, network_->piece_bytes_));
    }
    frame->owner = std::move(copy);
  }

  FakeNetwork* const network_;
  const int rank_;
};

FakeNetwork::FakeNetwork(int world_size, size_t piece_bytes)
    : world_size_(world_size),
      piece_bytes_(piece_bytes),
      queues_(static_cast<size_t>(world_size) * world_size) {
  for (int rank = 0; rank < world_size; ++rank) {
    ranks_.push_back(std::make_unique<Rank>(this, rank));
  }
}

FakeNetwork::~FakeNetwork() = default;

cluster::Transport& FakeNetwork::transport(int rank) { return *ranks_[rank]; }

void FakeNetwork::set_tamper(Tamper tamper) {
  MutexLock lock(&mu_);
  tamper_ = std::move(tamper);
}

std::vector<absl::Status> FakeNetwork::RunOnEveryRank(
    const std::function<absl::Status(cluster::Transport&)>& body) {
  std::vector<absl::Status> statuses(world_size_);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world_size_; ++rank) {
    threads.emplace_back([&, rank] { statuses[rank] = body(*ranks_[rank]); });
  }
  for (std::thread& thread : threads) thread.join();
  return statuses;
}

}  // namespace ringfleet::testing
