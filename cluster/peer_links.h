// SPDX-License-Identifier: Apache-2.0
// The transport of one epoch over gRPC: to every other rank one Link stream
// for frames and one Control stream, each on its own connection.
#ifndef RINGFLEET_CLUSTER_PEER_LINKS_H_
#define RINGFLEET_CLUSTER_PEER_LINKS_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "cluster/completion_poller.h"
#include "cluster/peer_stream.h"
#include "cluster/transport.h"
#include "kernels/mutex.h"

namespace ringfleet::cluster {

// Functions marked [role] require the poller's role; the others take it.
class PeerLinks final : public Transport, private PeerStream::Events {
 public:
  struct Config {
    StreamIdentity self;
    std::vector<std::string> addresses;  // Of all ranks.
    size_t max_queued_bytes = 0;         // Unconsumed, per peer.
  };
  // `on_end` runs once, in the role, when the links are closed.
  PeerLinks(std::shared_ptr<CompletionPoller> poller, Config config,
            std::function<void()> on_end);
  ~PeerLinks() override;

  int rank() const override { return config_.self.source; }
  int world_size() const override {
    return static_cast<int>(config_.addresses.size());
  }
  uint64_t epoch() const override { return config_.self.epoch; }

  absl::Status Send(int peer, const FrameHeader& header,
                    absl::Span<const char> payload) override;
  absl::StatusOr<ReceivedFrame> Receive(int peer, Deadline deadline) override;
  absl::Status Flush(Deadline deadline) override;
  void Abort(const absl::Status& cause) override;

  // Wakes whoever waits in Receive or Flush with `cause`, without waiting for
  // the role; peers are told when the links are closed.
  void Interrupt(const absl::Status& cause);

  // [role] Dials the ranks below this one.
  void Dial();
  // [role] Accepts a stream of this epoch or refuses it.
  void Admit(std::shared_ptr<ServerStream> stream,
             const StreamIdentity& caller);
  // [role] Waits until every rank has opened all its links. On an error the
  // epoch is aborted.
  absl::Status AwaitConnected(Deadline deadline);
  // [role] Looks at what only time tells: peers that lost one of their two
  // streams, and calls to repeat.
  void Housekeeping();
  // [role] Tells peers that this rank leaves, unless it aborted; closes all
  // streams. Later calls return `reason` or the earlier cause. Idempotent.
  void Close(const absl::Status& reason);

  // Frames of another epoch, which are dropped.
  uint64_t dropped_frames() const { return dropped_frames_.load(); }

 private:
  // One stream with a peer. `stream` is null until dialled or accepted.
  struct End {
    std::shared_ptr<PeerStream> stream;
    bool open = false;
    bool lost = false;
    std::optional<Deadline> redial;
  };
  struct Peer {
    End link;
    End control;
    bool ready = false;  // It has opened all its links.
    bool left = false;
    std::optional<Deadline> verdict;  // When one lost stream counts as both.
    std::string loss;
    std::deque<ReceivedFrame> frames;
    size_t queued_bytes = 0;
    bool read_due = false;  // No read is posted because too much is queued.
  };
  // Counts the slices that point at payload memory; each holds a reference
  // and may outlive the links.
  struct PayloadLedger {
    std::atomic<int64_t> references{1};
    static void Release(void* ledger);
  };

  void OnOpen(PeerStream& stream, const StreamIdentity& peer) override;
  void OnMessage(PeerStream& stream, grpc::ByteBuffer message) override;
  void OnClosed(PeerStream& stream, const absl::Status& status) override;
  void OnFrame(PeerStream& stream, const grpc::ByteBuffer& message);
  void OnControl(PeerStream& stream, const grpc::ByteBuffer& message);

  void DialOne(int peer, StreamKind kind);
  End& EndOf(Peer& peer, StreamKind kind) {
    return kind == StreamKind::kLink ? peer.link : peer.control;
  }
  bool AllOpen() const;
  bool AllReady() const;
  std::string PeerName(int peer) const;
  std::string MissingPeers() const;
  void ForEachPeer(absl::FunctionRef<void(int, Peer&)> visit);
  void WriteControl(Peer& peer, const v1::ControlMessage& message);
  v1::ControlMessage NewControl() const;

  bool aborted() const { return aborted_.load(std::memory_order_acquire); }
  absl::Status Cause();
  // Keeps the first cause. `origin` is the text peers get to read.
  bool Record(const absl::Status& cause, const std::string& origin,
              int suspect);
  void AbortInRole(const absl::Status& cause, int suspect);
  void SpreadAbort();
  bool Released() const;  // Nothing refers to payload memory.
  bool AwaitPayload(Deadline deadline);

  const std::shared_ptr<CompletionPoller> poller_;
  const Config config_;
  PayloadLedger* const ledger_;
  std::atomic<bool> aborted_{false};
  std::atomic<uint64_t> dropped_frames_{0};

  // Guarded by the role.
  std::function<void()> on_end_;
  std::vector<Peer> peers_;  // By rank; the own entry stays empty.
  bool connected_ = false;
  bool abort_spread_ = false;
  bool closed_ = false;

  Mutex mu_;
  absl::Status cause_ ABSL_GUARDED_BY(mu_);
  std::string origin_ ABSL_GUARDED_BY(mu_);
  int suspect_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_PEER_LINKS_H_
