// SPDX-License-Identifier: Apache-2.0
// Frames as messages: how a payload gets into gRPC's slices without a copy, and
// how received bytes become a frame.
#ifndef RINGFLEET_CLUSTER_TRANSPORT_LINK_MESSAGE_H_
#define RINGFLEET_CLUSTER_TRANSPORT_LINK_MESSAGE_H_

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/slice.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "cluster/transport/payload_ledger.h"
#include "cluster/wire/frame.h"

namespace ringfleet::cluster {

// Below this a copy beside the header is cheaper than a reference, and nobody
// has to wait for its release.
inline constexpr size_t kCopyBytes = 4096;

// The header of a frame may be encoded otherwise, and have fields that are not
// known yet: this much larger than the frame may a message be.
inline constexpr size_t kHeaderSlackBytes = 1024;

// The contiguous pieces of a message. They point into `slices`; both vectors
// keep their capacity.
void DumpPieces(const grpc::ByteBuffer& message,
                std::vector<grpc::Slice>* slices,
                std::vector<absl::Span<const char>>* pieces);

// A frame where it was received: in gRPC's slices, in memory of its own, or in
// somebody else's.
class LinkFrame final : public FrameBody {
 public:
  ~LinkFrame();

  // From slices. DATA_LOSS: the message is not a Frame, or larger than any.
  absl::Status Parse(const grpc::ByteBuffer& message);

  // Own memory for a message, whose payload will be aligned. It is kept when
  // the frame is recycled.
  char* Reserve(size_t message_bytes);
  // Memory of others for a message, which lies in `pieces`, header and all. It
  // must stay as it is until nobody but the lender holds the frame.
  void Borrow(absl::Span<const absl::Span<const char>> pieces);
  // From either, once it is filled. DATA_LOSS: it is not a Frame.
  absl::Status ParseMessage();

  // What the frame holds: the message, and a copy of the payload if it is
  // encoded otherwise.
  size_t held_bytes() const { return message_bytes_ + copy.size(); }

  // Appends references to the memory of the payload. False when it does not
  // lie in slices.
  bool AppendPayload(std::vector<grpc::Slice>* slices) const;

  // One more holder of the frame, which goes back to its pool when the last
  // one recycles it.
  LinkFrame* Share() const;
  // Who asks is the only holder. What others have read has been read by then.
  bool unshared() const {
    return holders_.load(std::memory_order_acquire) == 1;
  }
  void Recycle() override;

 private:
  friend class MessagePool;

  FramePool<LinkFrame>* pool_ = nullptr;
  mutable std::atomic<int> holders_{0};
  std::vector<grpc::Slice> slices_;  // The whole message.
  std::vector<absl::Span<const char>> pieces_;
  char* memory_ = nullptr;
  size_t memory_bytes_ = 0;
  size_t message_bytes_ = 0;
};

using LinkFramePtr = std::unique_ptr<LinkFrame, FrameRecycler>;

// Pools frames and makes messages. It knows when gRPC has let go of all memory
// that its messages point at, which may happen in any thread and after the pool
// has gone. Not thread-safe.
class MessagePool {
  struct Opening;

 public:
  // For one message that was made by a pool, as long as the pool exists.
  class Receipt {
   public:
    // gRPC has let go of the message: it was sent, or dropped.
    bool released() const;

   private:
    friend class MessagePool;
    const Opening* opening_ = nullptr;
    uint64_t uses_ = 0;  // Of the opening, the message's included.
  };

  MessagePool() : state_(new State) {}
  ~MessagePool() { state_->Drop(); }
  MessagePool(const MessagePool&) = delete;
  MessagePool& operator=(const MessagePool&) = delete;

  LinkFramePtr TakeFrame();

  // A frame that points at `payload` and holds `ledger` for as long; a small
  // payload is copied. Requires that it has at most kMaxPayloadBytes.
  grpc::ByteBuffer Write(const FrameHeader& header,
                         absl::Span<const char> payload, PayloadLedger& ledger,
                         Receipt* receipt = nullptr);

  // A frame that shares the payload of a received one.
  grpc::ByteBuffer Forward(const FrameHeader& header, const LinkFrame& frame);

  // No message is left.
  bool released() const {
    return state_->references.load(std::memory_order_acquire) == 1;
  }

 private:
  struct State;
  // Memory of a message's first slice: the header, and a small payload.
  struct Opening {
    char bytes[kFrameHeaderBytes + kCopyBytes];
    State* state = nullptr;
    uint64_t uses = 0;                  // Belongs to who makes messages.
    std::atomic<uint64_t> releases{0};  // How many of them are over.
  };
  // What a slice of the payload holds.
  struct Hold {
    State* state = nullptr;
    void* ledger = nullptr;  // A reference of it, or
    LinkFrame* frame = nullptr;
  };
  // Lives as long as the last hold.
  struct State {
    void Drop();

    std::atomic<int64_t> references{1};
    FramePool<Opening> openings;
    FramePool<Hold> holds;
    FramePool<LinkFrame> frames;
  };
  // A slice that begins with the header and has `room` bytes behind it; `*rest`
  // points there.
  grpc::Slice OpeningOf(const FrameHeader& header, size_t payload_bytes,
                        size_t room, char** rest, Receipt* receipt);
  grpc::Slice SliceOf(absl::Span<const char> payload, void* ledger,
                      LinkFrame* frame);
  static void ReleaseOpening(void* opening);
  static void Release(void* hold);

  State* const state_;
  std::vector<grpc::Slice> slices_;  // Of the message in the making.
};

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_TRANSPORT_LINK_MESSAGE_H_
