// SPDX-License-Identifier: Apache-2.0
// Sends frames between the ranks of one host through shared memory. Streams
// stay open for all else. A ring carries records. A record has the length of a
// message, the message, and zeros up to the next cache line. A record larger
// than the ring is written and read in parts. If a whole message lies in the
// ring, the receiver gets it without a copy.
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

// The lanes of one rank in one epoch that use shared memory. Every function but
// Wake requires the poller's role.
class SharedLanes final : public CompletionPoller::Bypass {
 public:
  // Functions run in the role, called by Poll.
  class Events {
   public:
    // Returns true if the lane may give another frame. If false, the frame
    // stays in the ring.
    virtual bool WantsFrame(int peer, Lane lane) = 0;
    virtual void OnSharedFrame(int peer, Lane lane, LinkFramePtr frame) = 0;
    // Takes an error, DATA_LOSS: the peer wrote bytes that are no valid record.
    // The lane is not read any more.
    virtual void OnSharedError(int peer, const absl::Status& status) = 0;

   protected:
    ~Events() = default;
  };

  // Creates this rank's segment. `pool` and `events` must outlive the lanes.
  // Errors: those of SharedSegment::Create.
  static absl::StatusOr<std::unique_ptr<SharedLanes>> Create(uint64_t epoch,
                                                             int rank,
                                                             int world_size,
                                                             MessagePool* pool,
                                                             Events* events);

  // Returns the text by which peers open this rank's segment.
  const std::string& offer() const { return own_.offer(); }
  // Begins to read the ring that `peer` writes, and returns true. Returns false
  // if it was called before for this ring: a ring serves one stream only.
  bool Listen(int peer, Lane lane);
  // Makes Send and Forward write to the segment that `peer` offers. After an
  // error, the lane's frames must go through its stream.
  //
  // Errors: those of SharedSegment::Open. UNAVAILABLE: another lane of `peer`
  // is attached to another offer. The process of one of the offers has ended.
  absl::Status Attach(int peer, Lane lane, absl::string_view offer);
  bool attached(int peer, Lane lane) const { return At(peer, lane).attached; }

  // Queue a frame as Transport::Send and Transport::Forward do. Require
  // attached().
  void Send(int peer, Lane lane, const FrameHeader& header,
            absl::Span<const char> payload, PayloadLedger& ledger);
  void Forward(int peer, Lane lane, const FrameHeader& header,
               const LinkFrame& frame);
  // Returns true if no frame waits for room in the ring.
  bool writes_idle(int peer, Lane lane) const {
    return At(peer, lane).queue.empty();
  }
  // Returns the number of frames that wait for room.
  size_t unsent(int peer, Lane lane) const {
    return At(peer, lane).queue.size();
  }
  // Returns true if the peer has written bytes that Poll has not read.
  bool has_unread(int peer, Lane lane);
  // Drops the frames that wait for room.
  void DropWrites(int peer, Lane lane) { At(peer, lane).queue.clear(); }

  // Sets whether all frames of the epoch go through shared memory.
  void set_exclusive(bool exclusive) { exclusive_ = exclusive; }

  bool Poll() override;
  void Sleep(absl::Duration timeout) override;
  void Wake() override;
  bool exclusive() const override { return exclusive_; }

 private:
  static constexpr size_t kHeadBytes = sizeof(uint32_t) + kFrameHeaderBytes;

  // A record that is being written. `written` counts its bytes in the ring.
  struct Outgoing {
    Outgoing() = default;
    Outgoing(Outgoing&& other) noexcept { *this = std::move(other); }
    Outgoing& operator=(Outgoing&& other) noexcept;
    ~Outgoing() { Release(); }
    void Release();

    char head[kHeadBytes] = {};
    uint64_t written = 0;
    size_t payload_bytes = 0;
    absl::Span<const char> payload;  // Empty: in `frame`.
    void* ledger = nullptr;          // A reference while queued.
    LinkFramePtr frame;
  };
  // A frame whose payload lies in the ring, from position `begin` on.
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
    LinkFramePtr partial;  // The arriving message.
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
  // Writes as many bytes as the ring has room for. Returns true if the record
  // is complete.
  bool Write(OneLane& lane, Outgoing& record);
  bool WritePart(OneLane& lane, Outgoing& record, uint64_t begin,
                 absl::Span<const char> part);
  bool WriteQueue(OneLane& lane);
  // Reads the bytes that have arrived, at most to the end of one message.
  // Returns true if it has read any.
  bool Read(OneLane& lane);
  bool BeginMessage(OneLane& lane, size_t available);
  bool Lends(const OneLane& lane, size_t message_bytes, size_t available) const;
  void Lend(OneLane& lane, size_t message_bytes);
  void EndMessage(OneLane& lane);
  // Gives the room before the first loan back to the writer.
  void Release(OneLane& lane);
  void Fail(OneLane& lane, const absl::Status& status);
  bool Idle();

  const SharedSegment own_;
  const uint64_t epoch_;
  const int rank_;
  MessagePool* const pool_;
  Events* const events_;
  std::vector<SharedSegment> segments_;  // The peers', by rank.
  std::vector<std::string> offers_;      // Offer of each segment.
  std::vector<OneLane> lanes_;           // By peer, then lane.
  std::vector<OneLane*> listening_;
  std::vector<OneLane*> sending_;
  bool exclusive_ = false;
  std::atomic<bool> woken_{false};
};

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_TRANSPORT_SHARED_LANES_H_
