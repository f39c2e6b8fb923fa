// SPDX-License-Identifier: Apache-2.0
#include "cluster/collectives/direct_streaming.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>

#include "cluster/collectives/frame_cuts.h"
#include "cluster/collectives/split_rows_frames.h"
#include "cluster/process/status_macros.h"
#include "kernels/elementwise.h"

namespace ringfleet::cluster {
namespace {

class DirectSchedule {
 public:
  DirectSchedule(Exchange& exchange, const SplitRowsLayout& layout,
                 const WireFormat& format, StreamingSource& source)
      : exchange_(exchange),
        split_(layout.rows, exchange.size()),
        row_elements_(layout.row_size),
        frame_elements_(SumFrameElements(layout, exchange.size(), format)),
        last_step_(exchange.size() - 2),
        format_(format),
        source_(source) {
    for (size_t i = 0; i < 2; ++i) {
      outgoing_[i].side = incoming_[i].side =
          i == 0 ? Side::kLeft : Side::kRight;
      BeginStep(outgoing_[i], /*sends=*/true);
      BeginStep(incoming_[i], /*sends=*/false);
    }
  }

  absl::Status Run() {
    RF_RETURN_IF_ERROR(ReserveMemory());
    while (!Done(incoming_) || !Done(outgoing_)) {
      bool sent = false;
      for (size_t i = 0; i < 2; ++i) {
        Walk& walk = outgoing_[i];
        if (!InTurn(walk, outgoing_[1 - i]) ||
            !Computed(walk.which, *walk.cursor)) {
          continue;
        }
        RF_RETURN_IF_ERROR(Send(walk));
        sent = true;
      }
      if (!sent) RF_RETURN_IF_ERROR(Receive());
    }
    if (last_step_ > 0) RF_RETURN_IF_ERROR(AddUpKept());
    return exchange_.AwaitCallerMemory();
  }

 private:
  // The parts of one side that are sent, or that come: one in each step, frame
  // by frame.
  struct Walk {
    Side side = Side::kLeft;
    int step = 0;
    size_t frame = 0;  // Within the step.
    int peer = 0;
    ShardPart which;
    std::optional<FrameCursor<WireFormat>> cursor;
  };
  using Walks = std::array<Walk, 2>;

  bool Done(const Walk& walk) const { return walk.step > last_step_; }
  bool Done(const Walks& walks) const {
    return Done(walks[0]) && Done(walks[1]);
  }

  void BeginStep(Walk& walk, bool sends) {
    const int distance = 1 + walk.step;
    const bool back = (walk.side == Side::kLeft) == sends;
    walk.frame = 0;
    walk.peer =
        exchange_.Wrap(exchange_.rank() + (back ? -distance : distance));
    walk.which = {sends ? walk.peer : exchange_.rank(), walk.side};
    walk.cursor.emplace(format_, ElementRange{0, Elements(walk.which)},
                        frame_elements_);
  }

  void Next(Walk& walk, bool sends) {
    ++walk.frame;
    if (!walk.cursor->Next() && ++walk.step <= last_step_) {
      BeginStep(walk, sends);
    }
  }

  // Returns true if a frame of `walk` may follow now. Both parts that one rank
  // sends to another share a stream. The part of the earlier step goes first.
  // Parts of one step take turns, the left part first.
  bool InTurn(const Walk& walk, const Walk& other) const {
    if (Done(walk)) return false;
    // The step in which the other part goes to, or comes from, the same rank.
    const int others_step = last_step_ - walk.step;
    if (walk.step < others_step || other.step > others_step) return true;
    if (walk.step > others_step) return false;
    const size_t others_frame = other.step == others_step ? other.frame : 0;
    return walk.side == Side::kLeft ? walk.frame <= others_frame
                                    : walk.frame < others_frame;
  }

  bool Computed(ShardPart which, const FrameCursor<WireFormat>& cursor) {
    return source_.Ready(which) * row_elements_ >= cursor.elements().end;
  }

  // The number that a frame's step has on the wire.
  static uint32_t StepOf(const Walk& walk) {
    return 2 * static_cast<uint32_t>(walk.step) +
           (walk.side == Side::kRight ? 1 : 0);
  }

  size_t Elements(ShardPart which) const {
    return split_.Of(which).size() * row_elements_;
  }

  // Memory for what is kept of the own rows, behind a frame of the own summands
  // while others' are added in front of them, and for what is sent in another
  // form than it lies in.
  absl::Status ReserveMemory() {
    if (last_step_ > 0) {
      size_t kept = frame_elements_ * sizeof(float);
      for (const Side side : {Side::kLeft, Side::kRight}) {
        const size_t elements = Elements({exchange_.rank(), side});
        kept_bytes_[SideIndex(side)] = format_.EncodedBytes(0, elements);
        kept_[SideIndex(side)] = kept;
        kept += (last_step_ + 1) * kept_bytes_[SideIndex(side)];
      }
      scratch_ = exchange_.Scratch(kept);
    }
    size_t bytes = 0;
    for (int shard = 0; shard < exchange_.size(); ++shard) {
      if (shard == exchange_.rank() || format_.IdentityBytes()) continue;
      for (const Side side : {Side::kLeft, Side::kRight}) {
        bytes += format_.EncodedBytes(0, Elements({shard, side}));
      }
    }
    RF_ASSIGN_OR_RETURN(block_, exchange_.NextBlock(bytes));
    return absl::OkStatus();
  }

  absl::Status Send(Walk& walk) {
    const auto [begin, end] = walk.cursor->elements();
    const float* const values = source_.Partial(walk.which) + begin;
    const Exchange::Place place{StepOf(walk), walk.cursor->offset()};
    const size_t bytes = walk.cursor->bytes();
    if (format_.IdentityBytes()) {
      RF_RETURN_IF_ERROR(exchange_.Send(walk.peer, Lane::kDirect, place,
                                        BytesOf(values, end - begin),
                                        exchange_.caller_ledger()));
    } else {
      char* const encoded = block_->data() + encoded_bytes_;
      format_.Encode(values, begin, end, encoded);
      encoded_bytes_ += bytes;
      RF_RETURN_IF_ERROR(exchange_.Send(walk.peer, Lane::kDirect, place,
                                        {encoded, bytes}, block_->ledger));
    }
    Next(walk, /*sends=*/true);
    return absl::OkStatus();
  }

  // Takes one frame, or looks again when rows have been computed. Between two
  // ranks a frame is left where it is until there is something to add it to.
  absl::Status Receive() {
    std::array<Exchange::Incoming, 2> sources;
    std::array<Walk*, 2> walks;
    size_t count = 0;
    for (size_t i = 0; i < 2; ++i) {
      Walk& walk = incoming_[(favoured_ + i) % 2];
      if (!InTurn(walk, incoming_[(favoured_ + i + 1) % 2]) ||
          (last_step_ == 0 && !Computed(walk.which, *walk.cursor))) {
        continue;
      }
      walks[count] = &walk;
      sources[count++] = {walk.peer, Lane::kDirect};
    }
    favoured_ = 1 - favoured_;
    size_t index = 0;
    RF_ASSIGN_OR_RETURN(
        const ReceivedFrame frame,
        exchange_.ReceiveUnlessWoken(
            absl::MakeConstSpan(sources).subspan(0, count), &index));
    if (frame == nullptr) return absl::OkStatus();
    Walk& walk = *walks[index];
    RF_RETURN_IF_ERROR(exchange_.CheckPlace(
        *frame, walk.peer, {StepOf(walk), walk.cursor->offset()},
        walk.cursor->bytes()));
    Add(walk, *frame);
    Next(walk, /*sends=*/false);
    return absl::OkStatus();
  }

  void Add(const Walk& walk, const FrameBody& frame) {
    const auto [begin, end] = walk.cursor->elements();
    if (last_step_ == 0) {  // a + b is b + a.
      float* const own = source_.Partial(walk.which) + begin;
      format_.Round(begin, end, own);
      return format_.Accumulate(frame.payload, begin, end, own, own);
    }
    char* to = Kept(walk.side, walk.peer) + walk.cursor->offset();
    for (const absl::Span<const char> piece : frame.payload) {
      to = std::copy(piece.begin(), piece.end(), to);
    }
  }

  // Returns the memory for rank `from`'s summands of an own part.
  char* Kept(Side side, int from) const {
    const int before = from < exchange_.rank() ? from : from - 1;
    return scratch_ + kept_[SideIndex(side)] +
           before * kept_bytes_[SideIndex(side)];
  }

  absl::Status AddUpKept() {
    for (const Side side : {Side::kLeft, Side::kRight}) {
      const ShardPart which = {exchange_.rank(), side};
      while (source_.Ready(which) < split_.Of(which).size()) {
        size_t index = 0;
        RF_RETURN_IF_ERROR(exchange_.ReceiveUnlessWoken({}, &index).status());
      }
      FrameCursor<WireFormat> cursor(format_, {0, Elements(which)},
                                     frame_elements_);
      do {
        AddUpFrame(which, cursor);
      } while (cursor.Next());
    }
    return absl::OkStatus();
  }

  void AddUpFrame(ShardPart which, const FrameCursor<WireFormat>& cursor) {
    const auto [begin, end] = cursor.elements();
    float* const sum = source_.Partial(which) + begin;
    format_.Round(begin, end, sum);
    float* const own = reinterpret_cast<float*>(scratch_);
    if (exchange_.rank() > 0) std::copy_n(sum, end - begin, own);
    for (int rank = 0; rank < exchange_.size(); ++rank) {
      if (rank == exchange_.rank()) {
        if (rank > 0) kernels::AddTo(own, end - begin, sum);
        continue;
      }
      const absl::Span<const char> kept(
          Kept(which.side, rank) + cursor.offset(), cursor.bytes());
      if (rank == 0) {
        format_.Decode({&kept, 1}, begin, end, sum);
      } else {
        format_.Accumulate({&kept, 1}, begin, end, sum, sum);
      }
    }
  }

  static size_t SideIndex(Side side) { return static_cast<size_t>(side); }

  Exchange& exchange_;
  const SplitRows split_;
  const size_t row_elements_;
  const size_t frame_elements_;
  const int last_step_;
  const WireFormat& format_;
  StreamingSource& source_;
  Walks outgoing_;
  Walks incoming_;
  size_t favoured_ = 0;  // Takes turns, so that neither side starves.
  SendArena::Block* block_ = nullptr;
  size_t encoded_bytes_ = 0;  // Used bytes of block_.
  char* scratch_ = nullptr;
  std::array<size_t, 2> kept_ = {};        // Offset in scratch_, by side.
  std::array<size_t, 2> kept_bytes_ = {};  // For each rank, by side.
};

}  // namespace

absl::Status DirectStreamingReduceScatter(Exchange& exchange,
                                          const SplitRowsLayout& layout,
                                          const WireFormat& format,
                                          StreamingSource& source) {
  return DirectSchedule(exchange, layout, format, source).Run();
}

}  // namespace ringfleet::cluster
