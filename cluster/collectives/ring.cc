// SPDX-License-Identifier: Apache-2.0
#include "cluster/collectives/ring.h"

#include <algorithm>
#include <array>
#include <type_traits>

#include "cluster/collectives/all_gather.h"
#include "cluster/collectives/ring_receiver.h"
#include "cluster/process/status_macros.h"

namespace ringfleet::cluster {
namespace {

// The part of a range that travels in one direction.
template <typename Format>
ElementRange PartOf(const Format& format, ElementRange range, Lane lane) {
  const size_t middle = std::max(
      range.begin, format.FloorToBorder(range.begin + range.size() / 2));
  return lane == Lane::kRight ? ElementRange{range.begin, middle}
                              : ElementRange{middle, range.end};
}

// A reduce phase, a gather phase, or one after the other, of each slice. A turn
// is a step of a slice; turns are numbered through, and frames have their
// number as step.
template <typename Format, typename Value>
class RingSchedule {
 public:
  struct Buffers {
    absl::Span<const Value> input;     // All shares; for the reduce phase.
    absl::Span<Value> partial;         // Where partial sums of `input` lie.
    absl::Span<Value> share;           // The own one, reduced.
    absl::Span<const Value> gathered;  // The own one, to be gathered.
    absl::Span<Value> output;          // All shares; for the gather phase.
  };

  RingSchedule(Exchange& exchange, const Format& format,
               absl::Span<const uint64_t> offsets, uint64_t slice_bytes,
               bool reduce, bool gather, const Buffers& buffers)
      : exchange_(exchange),
        format_(format),
        offsets_(offsets),
        hops_(static_cast<uint32_t>(exchange.size() - 1)),
        reduce_steps_(reduce ? hops_ : 0),
        steps_(reduce_steps_ + (gather ? hops_ : 0)),
        slices_(SlicesOf(offsets, slice_bytes)),
        gather_(gather),
        own_(ShareOf(offsets, exchange.rank())),
        buffers_(buffers) {}

  absl::Status Run() {
    if (gather_ && !format_.IdentityBytes()) {
      RF_ASSIGN_OR_RETURN(block_, exchange_.NextBlock(format_.EncodedBytes(
                                      own_.begin, own_.end)));
    }
    for (uint32_t turn = 0; turn < kTurnsAhead; ++turn) {
      for (const Lane lane : kRingLanes) {
        RF_RETURN_IF_ERROR(BeginSlice(FlowOf(exchange_, lane), turn));
      }
    }
    const uint32_t turns = slices_ * steps_;
    RF_RETURN_IF_ERROR((RingReceiver<Format, RingSchedule>(
                            exchange_, format_, *this, {turns, turns})
                            .Run()));
    return exchange_.AwaitCallerMemory();
  }

  bool Encoded(uint32_t turn) const { return turn % steps_ >= reduce_steps_; }
  uint32_t FirstStep(const Flow&) const { return 0; }

  ElementRange Part(const Flow& flow, uint32_t turn) const {
    // A share has walked from its first rank as many hops as steps are over.
    const int hop = static_cast<int>(turn % steps_);
    return PartBehind(
        flow,
        Encoded(turn) ? hop - static_cast<int>(reduce_steps_) + 1 : hop + 2,
        turn / steps_);
  }

  absl::Status Arrived(const Flow& flow, uint32_t turn,
                       const FrameCursor<Format>& cursor,
                       const FrameBody& frame) {
    RF_RETURN_IF_ERROR(Encoded(turn) ? TakeGathered(flow, turn, cursor, frame)
                                     : TakePartial(flow, turn, cursor, frame));
    const bool last_frame = cursor.elements().end == Part(flow, turn).end;
    return last_frame ? BeginSlice(flow, turn + kTurnsAhead) : absl::OkStatus();
  }

 private:
  // A slice is begun so much ahead of its place among the turns that come in:
  // any earlier, its frames would leave before others of the slice before.
  static constexpr uint32_t kTurnsAhead = 2;

  // Counts the slices of the mean share. Where shares differ much, the longest
  // have long slices, and the shortest have few empty ones.
  static uint32_t SlicesOf(absl::Span<const uint64_t> offsets,
                           uint64_t slice_bytes) {
    if (slice_bytes == 0) return 1;
    const uint64_t shares = offsets.size() - 1;
    const uint64_t bytes = (offsets.back() - offsets.front()) * sizeof(Value);
    return static_cast<uint32_t>(
        std::max<uint64_t>(1, bytes / shares / slice_bytes));
  }

  // The slice's part, on the lane of `flow`, of the share whose rank is so
  // many hops behind this one.
  ElementRange PartBehind(const Flow& flow, int hops, uint32_t slice) const {
    const ElementRange share =
        ShareOf(offsets_, exchange_.Wrap(exchange_.rank() - flow.sign * hops));
    const auto border = [&](uint64_t i) {
      if (i == slices_) return share.end;
      return std::max(
          share.begin,
          format_.FloorToBorder(share.begin + share.size() * i / slices_));
    };
    return PartOf(format_, {border(slice), border(slice + 1)}, flow.lane);
  }

  // If a slice begins with `turn`, sends what needs nobody else's: of the
  // share behind the own one, to be reduced, or of the own one.
  absl::Status BeginSlice(const Flow& flow, uint32_t turn) {
    if (turn % steps_ != 0 || turn / steps_ >= slices_) return absl::OkStatus();
    FrameCursor cursor(
        format_, PartBehind(flow, reduce_steps_ > 0 ? 1 : 0, turn / steps_));
    do {
      if (reduce_steps_ == 0) {
        RF_RETURN_IF_ERROR(SendOwn(flow, turn, cursor));
        continue;
      }
      const auto [begin, end] = cursor.elements();
      RF_RETURN_IF_ERROR(
          SendPartial(flow, turn, cursor, buffers_.input.data() + begin));
    } while (cursor.Next());
    return absl::OkStatus();
  }

  absl::Status TakePartial(const Flow& flow, uint32_t turn,
                           const FrameCursor<Format>& cursor,
                           const FrameBody& frame) {
    if constexpr (std::is_same_v<Value, float>) {
      const auto [begin, end] = cursor.elements();
      const bool last = turn % steps_ + 1 == reduce_steps_;
      Value* const sum = last ? buffers_.share.data() + (begin - own_.begin)
                              : buffers_.partial.data() + begin;
      const WireFormat f32(Wire::kF32, 0);
      f32.Accumulate(frame.payload, begin, end, buffers_.input.data() + begin,
                     sum);
      if (!last) return SendPartial(flow, turn + 1, cursor, sum);
    }
    return gather_ ? SendOwn(flow, turn + 1, cursor) : absl::OkStatus();
  }

  absl::Status TakeGathered(const Flow& flow, uint32_t turn,
                            const FrameCursor<Format>& cursor,
                            const FrameBody& frame) {
    if ((turn + 1) % steps_ != 0) {
      RF_RETURN_IF_ERROR(
          exchange_.Forward(flow.to, flow.lane, turn + 1, frame));
    }
    const auto [begin, end] = cursor.elements();
    format_.Decode(frame.payload, begin, end, buffers_.output.data() + begin);
    return absl::OkStatus();
  }

  absl::Status SendPartial(const Flow& flow, uint32_t turn,
                           const FrameCursor<Format>& cursor,
                           const Value* values) {
    return exchange_.Send(
        flow.to, flow.lane, {turn, cursor.consumed() * sizeof(Value)},
        BytesOf(values, cursor.elements().size()), exchange_.caller_ledger());
  }

  // The first hop of the gather phase, and the own copy as others get it.
  absl::Status SendOwn(const Flow& flow, uint32_t turn,
                       const FrameCursor<Format>& cursor) {
    const auto [begin, end] = cursor.elements();
    const Value* const values = buffers_.gathered.data() + (begin - own_.begin);
    Value* const out = buffers_.output.data() + begin;
    const Exchange::Place place{turn, cursor.offset()};
    if (block_ == nullptr) {
      if (values != out) std::copy(values, values + (end - begin), out);
      return exchange_.Send(flow.to, flow.lane, place,
                            BytesOf(values, end - begin),
                            exchange_.caller_ledger());
    }
    char* const encoded =
        block_->data() + format_.EncodedBytes(own_.begin, begin);
    const absl::Span<const char> sent(encoded, cursor.bytes());
    format_.Encode(values, begin, end, encoded);
    format_.Decode({&sent, 1}, begin, end, out);
    return exchange_.Send(flow.to, flow.lane, place, sent, block_->ledger);
  }

  Exchange& exchange_;
  const Format& format_;
  const absl::Span<const uint64_t> offsets_;
  const uint32_t hops_;  // In a phase.
  const uint32_t reduce_steps_;
  const uint32_t steps_;  // In both phases.
  const uint32_t slices_;
  const bool gather_;
  const ElementRange own_;
  const Buffers buffers_;
  SendArena::Block* block_ = nullptr;  // The own share, encoded.
};

// Takes the frames of a broadcast, and passes them on until the last rank has
// them.
class BroadcastSchedule {
 public:
  BroadcastSchedule(Exchange& exchange, const WireFormat& format, int root,
                    absl::Span<float> values)
      : exchange_(exchange), format_(format), root_(root), values_(values) {}

  // Hops from the root in the direction of a flow.
  uint32_t Distance(const Flow& flow) const {
    return static_cast<uint32_t>(
        exchange_.Wrap(flow.sign * (exchange_.rank() - root_)));
  }

  bool Encoded(uint32_t) const { return true; }
  uint32_t FirstStep(const Flow& flow) const { return Distance(flow) - 1; }
  ElementRange Part(const Flow& flow, uint32_t) const {
    return PartOf(format_, {0, values_.size()}, flow.lane);
  }
  absl::Status Arrived(const Flow& flow, uint32_t,
                       const FrameCursor<WireFormat>& cursor,
                       const FrameBody& frame) {
    const uint32_t hop = Distance(flow);
    if (static_cast<int>(hop) + 1 < exchange_.size()) {
      RF_RETURN_IF_ERROR(exchange_.Forward(flow.to, flow.lane, hop, frame));
    }
    const auto [begin, end] = cursor.elements();
    format_.Decode(frame.payload, begin, end, values_.data() + begin);
    return absl::OkStatus();
  }

 private:
  Exchange& exchange_;
  const WireFormat& format_;
  const int root_;
  const absl::Span<float> values_;
};

}  // namespace

absl::Status RingAllReduce(Exchange& exchange, const WireFormat& format,
                           absl::Span<const float> input,
                           absl::Span<float> output,
                           absl::Span<const uint64_t> offsets,
                           uint64_t slice_bytes) {
  const ElementRange own = ShareOf(offsets, exchange.rank());
  const auto share = output.subspan(own.begin, own.size());
  return RingSchedule<WireFormat, float>(exchange, format, offsets, slice_bytes,
                                         /*reduce=*/true, /*gather=*/true,
                                         {.input = input,
                                          .partial = output,
                                          .share = share,
                                          .gathered = share,
                                          .output = output})
      .Run();
}

absl::Status RingReduceScatter(Exchange& exchange, const WireFormat& format,
                               absl::Span<float> input, absl::Span<float> share,
                               absl::Span<const uint64_t> offsets,
                               uint64_t slice_bytes) {
  return RingSchedule<WireFormat, float>(
             exchange, format, offsets, slice_bytes, /*reduce=*/true,
             /*gather=*/false,
             {.input = input, .partial = input, .share = share})
      .Run();
}

template <typename Format, typename Value>
absl::Status RingAllGather(Exchange& exchange, const Format& format,
                           absl::Span<const Value> share,
                           absl::Span<Value> output,
                           absl::Span<const uint64_t> offsets,
                           uint64_t slice_bytes) {
  return RingSchedule<Format, Value>(exchange, format, offsets, slice_bytes,
                                     /*reduce=*/false, /*gather=*/true,
                                     {.gathered = share, .output = output})
      .Run();
}

template absl::Status RingAllGather(Exchange&, const ByteFormat&,
                                    absl::Span<const char>, absl::Span<char>,
                                    absl::Span<const uint64_t>, uint64_t);
template absl::Status RingAllGather(Exchange&, const WireFormat&,
                                    absl::Span<const float>, absl::Span<float>,
                                    absl::Span<const uint64_t>, uint64_t);

absl::Status RingBroadcast(Exchange& exchange, const WireFormat& format,
                           int root, absl::Span<float> values) {
  BroadcastSchedule schedule(exchange, format, root, values);
  if (exchange.rank() != root) {
    return RingReceiver<WireFormat, BroadcastSchedule>(exchange, format,
                                                       schedule, {1, 1})
        .Run();
  }
  SendArena::Block* block = nullptr;
  if (!format.IdentityBytes()) {
    RF_ASSIGN_OR_RETURN(
        block, exchange.NextBlock(format.EncodedBytes(0, values.size())));
  }
  for (const Lane lane : kRingLanes) {
    const Flow flow = FlowOf(exchange, lane);
    FrameCursor cursor(format, schedule.Part(flow, 0));
    do {
      const auto [begin, end] = cursor.elements();
      float* const own = values.data() + begin;
      if (block == nullptr) {
        RF_RETURN_IF_ERROR(exchange.Send(flow.to, lane, {0, cursor.offset()},
                                         BytesOf(own, end - begin),
                                         exchange.caller_ledger()));
        continue;
      }
      char* const encoded = block->data() + format.EncodedBytes(0, begin);
      const absl::Span<const char> sent(encoded, cursor.bytes());
      format.Encode(own, begin, end, encoded);
      format.Decode({&sent, 1}, begin, end, own);
      RF_RETURN_IF_ERROR(exchange.Send(flow.to, lane, {0, cursor.offset()},
                                       sent, block->ledger));
    } while (cursor.Next());
  }
  return exchange.AwaitCallerMemory();
}

}  // namespace ringfleet::cluster
