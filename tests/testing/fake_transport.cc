// SPDX-License-Identifier: Apache-2.0
#include "tests/testing/fake_transport.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cluster/process/status_macros.h"

namespace ringfleet::testing {

using cluster::CheckCrc;
using cluster::Deadline;
using cluster::FrameBody;
using cluster::FrameHeader;
using cluster::Lane;
using cluster::PayloadLedger;
using cluster::ReceivedFrame;
using cluster::Source;

class FakeNetwork::Rank : public cluster::Transport {
 public:
  Rank(FakeNetwork* network, int rank) : network_(network), rank_(rank) {}

  int rank() const override { return rank_; }
  int world_size() const override { return network_->world_size_; }
  uint64_t epoch() const override { return 1; }

  absl::Status Send(int peer, Lane lane, const FrameHeader& header,
                    absl::Span<const char> payload,
                    PayloadLedger& ledger) override {
    return Post(peer, lane, header, payload, ledger.Hold(), nullptr);
  }

  absl::Status Forward(int peer, Lane lane, const FrameHeader& header,
                       const FrameBody& frame) override {
    ReceivedFrame copy(NewBody(frame.payload));
    const absl::Span<const char> payload = MemoryOf(*copy);
    return Post(peer, lane, header, payload, nullptr, std::move(copy));
  }

  absl::StatusOr<ReceivedFrame> Receive(absl::Span<const Source> sources,
                                        Deadline deadline,
                                        size_t* index) override {
    return ReceiveFrame(sources, deadline, /*unless_woken=*/false, index);
  }

  absl::StatusOr<ReceivedFrame> ReceiveUnlessWoken(
      absl::Span<const Source> sources, Deadline deadline,
      size_t* index) override {
    return ReceiveFrame(sources, deadline, /*unless_woken=*/true, index);
  }

  void Wake() override {
    MutexLock lock(&network_->mu_);
    woken_ = true;
    network_->changed_.NotifyAll();
  }

  absl::StatusOr<ReceivedFrame> ReceiveFrame(absl::Span<const Source> sources,
                                             Deadline deadline,
                                             bool unless_woken, size_t* index) {
    Sent sent;
    {
      MutexLock lock(&network_->mu_);
      while (network_->cause_.ok() && !Find(sources, index)) {
        if (unless_woken && woken_) {
          woken_ = false;
          return ReceivedFrame();
        }
        if (!Wait(deadline)) {
          return absl::DeadlineExceededError(
              sources.empty()
                  ? "this rank has not computed its rows yet"
                  : absl::StrCat("no frame from rank ", sources[0].peer));
        }
      }
      if (!network_->cause_.ok()) return network_->cause_;
      sent =
          Queue(sources[*index].peer, rank_, sources[*index].lane).pop_front();
    }
    ReceivedFrame frame = std::move(sent.body);
    if (frame == nullptr) frame.reset(NewBody({&sent.payload, 1}));
    CutIntoPieces(*frame);
    frame->header = sent.header;
    if (sent.reference != nullptr) {
      PayloadLedger::Drop(sent.reference);
      MutexLock lock(&network_->mu_);
      network_->changed_.NotifyAll();
    }
    RF_RETURN_IF_ERROR(CheckCrc(frame.get(), sources[*index].peer));
    return frame;
  }

  absl::Status AwaitReleased(const PayloadLedger& ledger,
                             Deadline deadline) override {
    MutexLock lock(&network_->mu_);
    // After an abort too: a receiver may still be reading what it had taken.
    while (!ledger.released()) {
      if (!Wait(deadline)) {
        if (!network_->cause_.ok()) break;
        return absl::DeadlineExceededError("frames of this rank are unread");
      }
    }
    return network_->cause_;
  }

  void Abort(const absl::Status& cause) override {
    MutexLock lock(&network_->mu_);
    if (network_->cause_.ok()) network_->cause_ = cause;
    for (auto& queue : network_->queues_) {
      while (!queue.empty()) Discard(queue.pop_front());
    }
    network_->changed_.NotifyAll();
  }

 private:
  static void Discard(Sent sent) {
    if (sent.reference != nullptr) PayloadLedger::Drop(sent.reference);
  }

  static absl::Span<const char> MemoryOf(const FrameBody& body) {
    return static_cast<const Body&>(body).memory;
  }

  absl::Status Post(int peer, Lane lane, FrameHeader header,
                    absl::Span<const char> payload, void* reference,
                    ReceivedFrame body) {
    Sent sent{header, payload, reference, std::move(body)};
    MutexLock lock(&network_->mu_);
    OutgoingFrame frame{rank_, peer, lane, sent.header};
    const bool lost = !network_->cause_.ok() ||
                      (network_->script_ && !network_->script_(frame));
    sent.header = frame.header;
    if (lost) {
      Discard(std::move(sent));
      return network_->cause_;
    }
    Queue(rank_, peer, lane).push_back(std::move(sent));
    network_->changed_.NotifyAll();
    return absl::OkStatus();
  }

  bool Find(absl::Span<const Source> sources, size_t* index)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(network_->mu_) {
    for (*index = 0; *index < sources.size(); ++*index) {
      const Source& source = sources[*index];
      if (!Queue(source.peer, rank_, source.lane).empty()) return true;
    }
    return false;
  }

  cluster::FrameQueue<Sent>& Queue(int from, int to, Lane lane)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(network_->mu_) {
    return network_
        ->queues_[(from * network_->world_size_ + to) * cluster::kLanes +
                  static_cast<int>(lane)];
  }

  bool Wait(Deadline deadline) ABSL_EXCLUSIVE_LOCKS_REQUIRED(network_->mu_) {
    if (deadline.infinite()) {
      network_->changed_.Wait(&network_->mu_);
      return true;
    }
    return network_->changed_.WaitUntil(&network_->mu_, deadline.when());
  }

  Body* NewBody(absl::Span<const absl::Span<const char>> pieces) {
    Body* const body = network_->bodies_.Take();
    body->network = network_;
    body->memory.clear();
    for (const auto piece : pieces) {
      body->memory.insert(body->memory.end(), piece.begin(), piece.end());
    }
    return body;
  }

  void CutIntoPieces(FrameBody& frame) {
    const absl::Span<const char> memory = MemoryOf(frame);
    frame.payload.clear();
    frame.payload_bytes = memory.size();
    for (size_t i = 0; i < memory.size(); i += network_->piece_bytes_) {
      frame.payload.push_back(memory.subspan(i, network_->piece_bytes_));
    }
  }

  FakeNetwork* const network_;
  const int rank_;
  bool woken_ = false;  // Guarded by the network's lock.
};

FakeNetwork::FakeNetwork(int world_size, size_t piece_bytes)
    : world_size_(world_size),
      piece_bytes_(piece_bytes),
      queues_(static_cast<size_t>(world_size) * world_size * cluster::kLanes) {
  for (int rank = 0; rank < world_size; ++rank) {
    ranks_.push_back(std::make_unique<Rank>(this, rank));
  }
}

FakeNetwork::~FakeNetwork() = default;

cluster::Transport& FakeNetwork::transport(int rank) { return *ranks_[rank]; }

void FakeNetwork::set_script(FrameScript script) {
  MutexLock lock(&mu_);
  script_ = std::move(script);
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
