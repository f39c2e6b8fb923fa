// SPDX-License-Identifier: Apache-2.0
// Frames as gRPC messages. A payload is sent from its memory without a copy,
// and a received message is read where gRPC put it.
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

// A smaller payload is copied beside the header. The copy is cheaper than a
// reference, and nobody waits for its release.
inline constexpr size_t kCopyBytes = 4096;

// The most bytes of a message beside header and payload: a header may be
// encoded otherwise, and may have unknown fields.
inline constexpr size_t kHeaderSlackBytes = 1024;

// Lists the contiguous pieces of a message, which point into `slices`. Both
// vectors keep their capacity.
void DumpPieces(const grpc::ByteBuffer& message,
                std::vector<grpc::Slice>* slices,
                std::vector<absl::Span<const char>>* pieces);

// A frame where it was received: in gRPC's slices, in memory of its own, or in
// borrowed memory.
class LinkFrame final : public FrameBody {
 public:
  ~LinkFrame();

  // Takes the slices of a message. DATA_LOSS: not a Frame, or too large.
  absl::Status Parse(const grpc::ByteBuffer& message);

  // Returns own memory for a message, in which the payload is aligned. The
  // frame keeps the memory when it is recycled.
  char* Reserve(size_t message_bytes);
  // Takes a message, header and all, in the memory of a lender. It must stay
  // unchanged until the lender is the only holder of the frame.
  void Borrow(absl::Span<const absl::Span<const char>> pieces);
  // Parses the reserved or borrowed memory once it is filled. DATA_LOSS: not a
  // Frame.
  absl::Status ParseMessage();

  // Returns the bytes of the message and of the copy of its payload, which a
  // message that is encoded otherwise needs.
  size_t held_bytes() const { return message_bytes_ + copy.size(); }

  // Appends references to the memory of the payload. Returns false when the
  // payload does not lie in slices.
  bool AppendPayload(std::vector<grpc::Slice>* slices) const;

  // Adds a holder of the frame. The frame goes back to its pool when the last
  // holder recycles it.
  LinkFrame* Share() const;
  // True when the caller is the only holder. All reads of other holders have
  // ended then.
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

// Pools frames and makes messages. Knows when gRPC has let go of all memory
// that its messages point at; gRPC may do so in any thread and after the pool
// has gone. Not thread-safe.
class MessagePool {
  struct Opening;

 public:
  // Follows one message of the pool, as long as the pool exists.
  class Receipt {
   public:
    // True when gRPC has let go of the message: it was sent, or dropped.
    bool released() const;

   private:
    friend class MessagePool;
    const Opening* opening_ = nullptr;
    uint64_t uses_ = 0;  // The opening's, with the message's.
  };

  MessagePool() : state_(new State) {}
  ~MessagePool() { state_->Drop(); }
  MessagePool(const MessagePool&) = delete;
  MessagePool& operator=(const MessagePool&) = delete;

  LinkFramePtr TakeFrame();

  // Makes a frame that points at `payload` and holds `ledger` meanwhile. A
  // small payload is copied. Requires at most kMaxPayloadBytes.
  grpc::ByteBuffer Write(const FrameHeader& header,
                         absl::Span<const char> payload, PayloadLedger& ledger,
                         Receipt* receipt = nullptr);

  // Makes a frame that shares the payload of a received frame.
  grpc::ByteBuffer Forward(const FrameHeader& header, const LinkFrame& frame);

  // True when no message is left.
  bool released() const {
    return state_->references.load(std::memory_order_acquire) == 1;
  }

 private:
  struct State;
  // The memory of a message's first slice: the header, and a small payload.
  struct Opening {
    char bytes[kFrameHeaderBytes + kCopyBytes];
    State* state = nullptr;
    uint64_t uses = 0;                  // Belongs to who makes messages.
    std::atomic<uint64_t> releases{0};  // Uses that are over.
  };
  // The hold of a payload's slice.
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
  // Returns a slice that begins with the header and has `room` bytes behind it,
  // to which `*rest` points.
  grpc::Slice OpeningOf(const FrameHeader& header, size_t payload_bytes,
                        size_t room, char** rest, Receipt* receipt);
  grpc::Slice SliceOf(absl::Span<const char> payload, void* ledger,
                      LinkFrame* frame);
  static void ReleaseOpening(void* opening);
  static void Release(void* hold);

  State* const state_;
  std::vector<grpc::Slice> slices_;  // The message in the making.
};

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_TRANSPORT_LINK_MESSAGE_H_
