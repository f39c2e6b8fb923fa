// SPDX-License-Identifier: Apache-2.0
// One operation of a group, as the algorithms see it: messages between ranks
// of the group, cut into frames, each frame checked to belong to this very
// operation.
#ifndef RINGFLEET_CLUSTER_EXCHANGE_H_
#define RINGFLEET_CLUSTER_EXCHANGE_H_

#include <cstdint>
#include <cstring>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "cluster/deadline.h"
#include "cluster/frame.h"
#include "cluster/transport.h"

namespace ringfleet::cluster {

// A communicator's members: all ranks of the world, or one axis of the mesh.
// A member's rank in the group is its position in `ranks`.
struct Group {
  uint32_t id = 0;
  std::vector<int> ranks;
};

// Lives as long as one operation. Not thread-safe.
class Exchange {
 public:
  // `head` names the operation: group, sequence, op_descriptor, check, count.
  // The rest is filled in per frame. `transport` and `group` must outlive it.
  Exchange(Transport* transport, const Group* group, int rank, FrameHeader head,
           Deadline deadline);

  int rank() const { return rank_; }  // In the group, as all ranks below.
  int size() const { return static_cast<int>(group_->ranks.size()); }
  int Wrap(int rank) const { return ((rank % size()) + size()) % size(); }

  // Queues one message to `to`. An empty one is a frame without payload, so
  // that ranks meet, and compare what they are doing, in every step.
  // `payload` as for Transport::Send.
  absl::Status Send(int to, uint32_t step, absl::Span<const char> payload);

  // The same message to every other rank, the next one first: starting at
  // different ranks spreads the load over all links.
  absl::Status SendToOthers(uint32_t step, absl::Span<const char> payload);

  // Receives the message of `bytes` that `from` sent in `step` and passes its
  // contiguous pieces on, in order and where they were received.
  //
  // Errors: those of Transport::Receive; FAILED_PRECONDITION when `from` is in
  // another operation or step, or sends another number of bytes.
  absl::Status Receive(int from, uint32_t step, uint64_t bytes,
                       absl::FunctionRef<void(absl::Span<const char>)> consume);

  absl::Status Flush();

 private:
  FrameHeader Seal(uint32_t step, uint64_t offset,
                   absl::Span<const char> chunk) const;
  // Says in a missed deadline what was waited for.
  absl::Status NameOperation(const absl::Status& status) const;
  absl::Status CheckSameOperation(const FrameHeader& theirs, int peer) const;

  Transport* const transport_;
  const Group* const group_;
  const int rank_;
  FrameHeader head_;
  const Deadline deadline_;
};

// Cuts a stream of pieces into elements of kBytes: whole ones are passed on
// where they lie (unaligned), one that straddles two pieces from a carry.
template <size_t kBytes>
class ElementReader {
 public:
  // consume(const char* elements, size_t count)
  template <typename Consumer>
  void Feed(absl::Span<const char> piece, Consumer&& consume) {
    if (carried_ > 0) {
      const auto rest = piece.subspan(0, kBytes - carried_);
      std::memcpy(carry_ + carried_, rest.data(), rest.size());
      carried_ += rest.size();
      piece.remove_prefix(rest.size());
      if (carried_ < kBytes) return;
      consume(carry_, size_t{1});
      carried_ = 0;
    }
    const size_t whole = piece.size() / kBytes;
    if (whole > 0) consume(piece.data(), whole);
    piece.remove_prefix(whole * kBytes);
    if (!piece.empty()) std::memcpy(carry_, piece.data(), piece.size());
    carried_ = piece.size();
  }

 private:
  char carry_[kBytes];
  size_t carried_ = 0;
};

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_EXCHANGE_H_
