// SPDX-License-Identifier: Apache-2.0
// Frames between the ranks of one host through shared memory. The streams stay
// open beside it for everything else. A ring carries records: the length of a
// message, the message, and zeros up to the next cache line. A record larger
// than the ring is written as room comes and read as bytes come. A message that
// has come whole is handed over where it lies.
#ifndef RINGFLEET_CLUSTER_TRANSPORT_SHARED_LANES_H_
#define RINGFLEET_CLUSTER_TRANSPORT_SHARED_LANES_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "cluster/transport/completion_poller.h"
#include "cluster/transport/frame_queue.h"
#include "cluster/transport/link_message.h"
#include "cluster/transport/payload_ledger.h"
#include "cluster/transport/shared_ring.h"
#include "cluster/transport/shared_segment.h"
#include "cluster/wire/frame.h"

namespace ringfleet::cluster {

// The shared memory of one rank in one epoch. Every function but Wake requires
// the poller's role.
class SharedLanes final : public CompletionPoller::Bypass {
 public:
  // Runs in the role, out of Poll.
  class Events {
   public:
    // True when the lane may hand over another frame. Else its ring fills up.
    virtual bool WantsFrame(int peer, Lane lane) = 0;
    virtual void OnSharedFrame(int peer, Lane lane, LinkFramePtr frame) = 0;
    // DATA_LOSS: the peer wrote bytes that no rank writes. The lane is over.
    virtual void OnSharedError(int peer, const absl::Status& status) = 0;

   protected:
    ~Events() = default;
  };

  // `pool` and `events` must outlive the lanes.
  static absl::StatusOr<std::unique_ptr<SharedLanes>> Create(uint64_t epoch,
                                                             int rank,
                                                             int world_size,
                                                             MessagePool* pool,
                                                             Events* events);

  // Names this rank's segment to peers.
  const std::string& offer() const { return own_.offer(); }
  // Begins to read the ring that `peer` writes. Returns false the second time:
  // a ring serves one stream only.
  bool Listen(int peer, Lane lane);
  // Directs Send and Forward to the segment that `peer` offers. After an error
  // the lane stays with its stream.
  //
  // Errors: those of SharedSegment::Open. UNAVAILABLE: another lane uses
  // another offer, of a process that has ended.
  absl::Status Attach(int peer, Lane lane, absl::string_view offer);
  bool attached(int peer, Lane lane) const { return At(peer, lane).attached; }

  // Send a frame as Transport does. Require attached().
  void Send(int peer, Lane lane, const FrameHeader& header,
            absl::Span<const char> payload, PayloadLedger& ledger);
  void Forward(int peer, Lane lane, const FrameHeader& header,
               const LinkFrame& frame);
  // True when no frame waits for room in the ring.
  bool writes_idle(int peer, Lane lane) const {
    return At(peer, lane).queue.empty();
  }
  // Counts the frames that wait for room.
  size_t unsent(int peer, Lane lane) const {
    return At(peer, lane).queue.size();
  }
  // True when the peer has written bytes that Poll has not read.
  bool has_unread(int peer, Lane lane);
  // Gives up the frames that wait for room.
  void DropWrites(int peer, Lane lane) { At(peer, lane).queue.clear(); }

  // Says whether every frame of the epoch comes through shared memory.
  void set_exclusive(bool exclusive) { exclusive_ = exclusive; }

  bool Poll() override;
  void Sleep(absl::Duration timeout) override;
  void Wake() override;
  bool exclusive() const override { return exclusive_; }

 private:
  static constexpr size_t kHeadBytes = sizeof(uint32_t) + kFrameHeaderBytes;

  // A record, and the number of its bytes that have been written.
  struct Outgoing {
    Outgoing() = default;
    Outgoing(Outgoing&& other) noexcept { *this = std::move(other); }
    Outgoing& operator=(Outgoing&& other) noexcept;
    ~Outgoing() { Release(); }
    void Release();

    char head[kHeadBytes] = {};
    uint64_t written = 0;
    size_t payload_bytes = 0;
    absl::Span<const char> payload;  // Unless `frame` has it.
    void* ledger = nullptr;          // A reference, while queued.
    LinkFramePtr frame;
  };
  // A frame whose payload lies in the ring, from `begin` on.
  struct Loan {
    LinkFramePtr frame;
    uint64_t begin = 0;
  };
  struct OneLane {
    int peer = 0;
    Lane lane = Lane::kDirect;
    bool listened = false;
    bool attached = false;
    bool over = false;  // An error has been reported.

    RingWriter writer;
    FrameQueue<Outgoing> queue;

    RingReader reader;
    LinkFramePtr partial;  // The message that is arriving.
    char* into = nullptr;
    size_t message_left = 0;
    size_t padding_left = 0;
    FrameQueue<Loan> loans;
  };

  SharedLanes(SharedSegment own, uint64_t epoch, int rank, int world_size,
              MessagePool* pool, Events* events);
  OneLane& At(int peer, Lane lane) {
    return lanes_[static_cast<size_t>(peer) * kLanes +
                  static_cast<size_t>(lane)];
  }
  const OneLane& At(int peer, Lane lane) const {
    return const_cast<SharedLanes*>(this)->At(peer, lane);
  }

  static void Encode(const FrameHeader& header, size_t payload_bytes,
                     Outgoing* record);
  // Writes as much as there is room for. True when the record is complete.
  bool Write(OneLane& lane, Outgoing& record);
  bool WritePart(OneLane& lane, Outgoing& record, uint64_t begin,
                 absl::Span<const char> part);
  bool WriteQueue(OneLane& lane);
  // Reads the bytes that have come, at most to the end of one message.
  bool Read(OneLane& lane);
  bool BeginMessage(OneLane& lane, size_t available);
  bool Lends(const OneLane& lane, size_t message_bytes, size_t available) const;
  void Lend(OneLane& lane, size_t message_bytes);
  void EndMessage(OneLane& lane);
  // Gives back the room before the first loan.
  void Release(OneLane& lane);
  void Fail(OneLane& lane, const absl::Status& status);
  bool Idle();

  const SharedSegment own_;
  const uint64_t epoch_;
  const int rank_;
  MessagePool* const pool_;
  Events* const events_;
  std::vector<SharedSegment> segments_;  // The peers', as they are opened.
  std::vector<std::string> offers_;      // By which each was opened.
  std::vector<OneLane> lanes_;           // By peer and lane.
  std::vector<OneLane*> listening_;
  std::vector<OneLane*> sending_;
  bool exclusive_ = false;
  std::atomic<bool> woken_{false};
};

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_TRANSPORT_SHARED_LANES_H_
