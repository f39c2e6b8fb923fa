// SPDX-License-Identifier: Apache-2.0
// Frames as gRPC messages. A payload is sent from the caller's memory without a
// copy. A received message is read from gRPC's memory without a copy.
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

// A payload of fewer bytes is copied behind the header. A small copy is cheaper
// than a reference, and no thread waits for its release.
inline constexpr size_t kCopyBytes = 4096;

// Bytes of a message that are allowed besides kFrameHeaderBytes and the
// payload. Another encoder may write a longer header or unknown fields.
inline constexpr size_t kHeaderSlackBytes = 1024;

// Sets `slices` to the slices of a message and `pieces` to their memory, in
// order. Both vectors keep their capacity.
void DumpPieces(const grpc::ByteBuffer& message,
                std::vector<grpc::Slice>* slices,
                std::vector<absl::Span<const char>>* pieces);

// A received frame. Its message lies in gRPC's slices, in the frame's own
// memory, or in borrowed memory.
class LinkFrame final : public FrameBody {
 public:
  ~LinkFrame();

  // Parses a message and keeps references to its slices. DATA_LOSS: the message
  // is no Frame, or too large.
  absl::Status Parse(const grpc::ByteBuffer& message);

  // Returns memory of the frame for a message of `message_bytes`, in which the
  // payload will be aligned. A recycled frame keeps the memory for its next
  // use.
  char* Reserve(size_t message_bytes);
  // Refers to a whole message in the memory of a lender. The lender must hold
  // the frame and keep the memory unchanged until unshared().
  void Borrow(absl::Span<const absl::Span<const char>> pieces);
  // Parses the reserved memory, once it is filled, or the borrowed memory.
  // DATA_LOSS: the message is no Frame.
  absl::Status ParseMessage();

  // Returns the bytes of memory that the frame holds: the message, and a copy
  // of the payload if another encoder wrote the message.
  size_t held_bytes() const { return message_bytes_ + copy.size(); }

  // Appends references to the payload's slices. Returns false if the payload
  // does not lie in slices.
  bool AppendPayload(std::vector<grpc::Slice>* slices) const;

  // Adds a holder and returns the frame. The frame goes back to its pool when
  // its last holder recycles it.
  LinkFrame* Share() const;
  // Returns true if the caller is the only holder. All reads by earlier holders
  // have then ended.
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

// Pools frames and makes messages. Knows when gRPC has released all memory at
// which the messages point. gRPC may release memory in any thread, and after
// the pool's destruction. Not thread-safe.
class MessagePool {
  struct Opening;

 public:
  // Tells when gRPC has released one message. Must not outlive the pool.
  class Receipt {
   public:
    // Returns true if gRPC has sent or dropped the message.
    bool released() const;

   private:
    friend class MessagePool;
    const Opening* opening_ = nullptr;
    uint64_t uses_ = 0;  // Number of uses of the opening.
  };

  MessagePool() : state_(new State) {}
  ~MessagePool() { state_->Drop(); }
  MessagePool(const MessagePool&) = delete;
  MessagePool& operator=(const MessagePool&) = delete;

  LinkFramePtr TakeFrame();

  // Returns a message that points at `payload`, and holds `ledger` until gRPC
  // releases the message. A payload of fewer than kCopyBytes is copied.
  // `payload` must have at most kMaxPayloadBytes.
  grpc::ByteBuffer Write(const FrameHeader& header,
                         absl::Span<const char> payload, PayloadLedger& ledger,
                         Receipt* receipt = nullptr);

  // Returns a message that shares the payload of a received frame.
  grpc::ByteBuffer Forward(const FrameHeader& header, const LinkFrame& frame);

  // Returns true if gRPC has released all messages.
  bool released() const {
    return state_->references.load(std::memory_order_acquire) == 1;
  }

 private:
  struct State;
  // The memory of a message's first slice: the header and a copied payload.
  struct Opening {
    char bytes[kFrameHeaderBytes + kCopyBytes];
    State* state = nullptr;
    uint64_t uses = 0;                  // Messages that used it.
    std::atomic<uint64_t> releases{0};  // Released messages.
  };
  // The reference that a slice of a payload holds: of a ledger or of a frame.
  // The other one is null.
  struct Hold {
    State* state = nullptr;
    void* ledger = nullptr;  // From PayloadLedger::Hold.
    LinkFrame* frame = nullptr;
  };
  // Shared by the pool and its messages. Deleted with the last of them.
  struct State {
    void Drop();

    std::atomic<int64_t> references{1};
    FramePool<Opening> openings;
    FramePool<Hold> holds;
    FramePool<LinkFrame> frames;
  };
  // Returns a slice with the header and `room` bytes behind it. Sets `*rest` to
  // these bytes.
  grpc::Slice OpeningOf(const FrameHeader& header, size_t payload_bytes,
                        size_t room, char** rest, Receipt* receipt);
  grpc::Slice SliceOf(absl::Span<const char> payload, void* ledger,
                      LinkFrame* frame);
  static void ReleaseOpening(void* opening);
  static void Release(void* hold);

  State* const state_;
  std::vector<grpc::Slice> slices_;  // The message that is being made.
};

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_TRANSPORT_LINK_MESSAGE_H_
