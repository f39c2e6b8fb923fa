// SPDX-License-Identifier: Apache-2.0
#include "cluster/ring.h"

#include <algorithm>
#include <array>
#include <optional>

#include "cluster/all_gather.h"
#include "cluster/ring_receiver.h"
#include "cluster/status_macros.h"

namespace ringfleet::cluster {
namespace {

// The half of a range that travels in one direction.
template <typename Format>
ElementRange PartOf(const Format& format, ElementRange range, Lane lane) {
  const size_t middle = std::max(
      range.begin, format.FloorToBorder(range.begin + range.size() / 2));
  return lane == Lane::kRight ? ElementRange{range.begin, middle}
                              : ElementRange{middle, range.end};
}

// A reduce phase, a gather phase, or one after the other.
template <typename Format, typename Value>
class RingSchedule {
 public:
  struct Buffers {
    absl::Span<const Value> input;     // All segments; for the reduce phase.
    absl::Span<Value> partial;         // Where partial sums of `input` lie.
    absl::Span<Value> segment;         // The own one, reduced.
    absl::Span<const Value> gathered;  // The own one, to be gathered.
    absl::Span<Value> output;          // All segments; for the gather phase.
  };

  RingSchedule(Exchange& exchange, const Format& format,
               absl::Span<const uint64_t> offsets, bool reduce, bool gather,
               const Buffers& buffers)
      : exchange_(exchange),
        format_(format),
        offsets_(offsets),
        hops_(static_cast<uint32_t>(exchange.size() - 1)),
        reduce_steps_(reduce ? hops_ : 0),
        gather_(gather),
        own_(SegmentOf(offsets, exchange.rank())),
        buffers_(buffers) {}

  absl::Status Run() {
    if (gather_ && !format_.IdentityBytes()) {
      RF_ASSIGN_OR_RETURN(block_, exchange_.NextBlock(format_.EncodedBytes(
                                      own_.begin, own_.end)));
    }
    RF_RETURN_IF_ERROR(SendFirst());
    const uint32_t steps = reduce_steps_ + (gather_ ? hops_ : 0);
    RF_RETURN_IF_ERROR((RingReceiver<Format, RingSchedule>(
                            exchange_, format_, *this, {steps, steps})
                            .Run()));
    return exchange_.AwaitCallerMemory();
  }

  bool Encoded(uint32_t step) const { return step >= reduce_steps_; }
  uint32_t FirstStep(const Flow&) const { return 0; }

  ElementRange Part(const Flow& flow, uint32_t step) const {
    // A segment has walked from its first rank as many hops as steps are over.
    const int hop = static_cast<int>(step);
    const int behind =
        Encoded(step) ? hop - static_cast<int>(reduce_steps_) + 1 : hop + 2;
    const int owner = exchange_.Wrap(exchange_.rank() - flow.sign * behind);
    return PartOf(format_, SegmentOf(offsets_, owner), flow.lane);
  }

  absl::Status Arrived(const Flow& flow, uint32_t step,
                       const ChunkCursor<Format>& cursor,
                       const FrameBody& frame) {
    const auto [begin, end] = cursor.chunk();
    if (Encoded(step)) {
      if (step + 1 < reduce_steps_ + hops_) {
        RF_RETURN_IF_ERROR(
            exchange_.Forward(flow.to, flow.lane, step + 1, frame));
      }
      format_.Decode(frame.payload, begin, end, buffers_.output.data() + begin);
      return absl::OkStatus();
    }
    if constexpr (std::is_same_v<Value, float>) {
      const bool last = step + 1 == reduce_steps_;
      Value* const sum = last ? buffers_.segment.data() + (begin - own_.begin)
                              : buffers_.partial.data() + begin;
      const Value* const own = buffers_.input.data() + begin;
      const WireFormat f32(Wire::kF32, 0);
      f32.Accumulate(frame.payload, begin, end, own, sum);
      if (!last) {
        return exchange_.Send(
            flow.to, flow.lane, {step + 1, cursor.consumed() * sizeof(Value)},
            BytesOf(sum, end - begin), exchange_.caller_ledger());
      }
    }
    return gather_ ? SendOwn(flow, cursor) : absl::OkStatus();
  }

 private:
  // Sends what needs nobody else's: the segment behind the own one, to be
  // reduced, or the own one.
  absl::Status SendFirst() {
    const std::array<Flow, 2> flows = {FlowOf(exchange_, Lane::kRight),
                                       FlowOf(exchange_, Lane::kLeft)};
    std::array<std::optional<ChunkCursor<Format>>, 2> cursors;
    for (size_t i = 0; i < 2; ++i) {
      const int behind = reduce_steps_ > 0 ? 1 : 0;
      const int owner =
          exchange_.Wrap(exchange_.rank() - flows[i].sign * behind);
      cursors[i].emplace(
          format_, PartOf(format_, SegmentOf(offsets_, owner), flows[i].lane));
    }
    bool more = true;
    while (more) {  // In turns: both neighbours begin at once.
      more = false;
      for (size_t i = 0; i < 2; ++i) {
        if (!cursors[i].has_value()) continue;
        RF_RETURN_IF_ERROR(reduce_steps_ > 0
                               ? SendPartial(flows[i], *cursors[i])
                               : SendOwn(flows[i], *cursors[i]));
        if (cursors[i]->Next()) {
          more = true;
        } else {
          cursors[i].reset();
        }
      }
    }
    return absl::OkStatus();
  }

  absl::Status SendPartial(const Flow& flow,
                           const ChunkCursor<Format>& cursor) {
    const auto [begin, end] = cursor.chunk();
    return exchange_.Send(flow.to, flow.lane,
                          {0, cursor.consumed() * sizeof(Value)},
                          BytesOf(buffers_.input.data() + begin, end - begin),
                          exchange_.caller_ledger());
  }

  // The first hop of the gather phase, and the own copy as others get it.
  absl::Status SendOwn(const Flow& flow, const ChunkCursor<Format>& cursor) {
    const auto [begin, end] = cursor.chunk();
    const Value* const values = buffers_.gathered.data() + (begin - own_.begin);
    Value* const out = buffers_.output.data() + begin;
    const Exchange::Place place{reduce_steps_, cursor.offset()};
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
  const uint32_t hops_;  // Of one phase.
  const uint32_t reduce_steps_;
  const bool gather_;
  const ElementRange own_;
  const Buffers buffers_;
  SendArena::Block* block_ = nullptr;  // The own segment, encoded.
};

// What comes in of a broadcast, passed on until the last rank has it.
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
                       const ChunkCursor<WireFormat>& cursor,
                       const FrameBody& frame) {
    const uint32_t hop = Distance(flow);
    if (static_cast<int>(hop) + 1 < exchange_.size()) {
      RF_RETURN_IF_ERROR(exchange_.Forward(flow.to, flow.lane, hop, frame));
    }
    const auto [begin, end] = cursor.chunk();
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
                           absl::Span<const uint64_t> offsets) {
  const ElementRange own = SegmentOf(offsets, exchange.rank());
  const auto segment = output.subspan(own.begin, own.size());
  return RingSchedule<WireFormat, float>(exchange, format, offsets,
                                         /*reduce=*/true, /*gather=*/true,
                                         {.input = input,
                                          .partial = output,
                                          .segment = segment,
                                          .gathered = segment,
                                          .output = output})
      .Run();
}

absl::Status RingReduceScatter(Exchange& exchange, const WireFormat& format,
                               absl::Span<float> input,
                               absl::Span<float> segment,
                               absl::Span<const uint64_t> offsets) {
  return RingSchedule<WireFormat, float>(
             exchange, format, offsets, /*reduce=*/true, /*gather=*/false,
             {.input = input, .partial = input, .segment = segment})
      .Run();
}

template <typename Format, typename Value>
absl::Status RingAllGather(Exchange& exchange, const Format& format,
                           absl::Span<const Value> segment,
                           absl::Span<Value> output,
                           absl::Span<const uint64_t> offsets) {
  return RingSchedule<Format, Value>(exchange, format, offsets,
                                     /*reduce=*/false, /*gather=*/true,
                                     {.gathered = segment, .output = output})
      .Run();
}

template absl::Status RingAllGather(Exchange&, const ByteFormat&,
                                    absl::Span<const char>, absl::Span<char>,
                                    absl::Span<const uint64_t>);
template absl::Status RingAllGather(Exchange&, const WireFormat&,
                                    absl::Span<const float>, absl::Span<float>,
                                    absl::Span<const uint64_t>);

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
    ChunkCursor cursor(format, schedule.Part(flow, 0));
    do {
      const auto [begin, end] = cursor.chunk();
      float* const chunk = values.data() + begin;
      if (block == nullptr) {
        RF_RETURN_IF_ERROR(exchange.Send(flow.to, lane, {0, cursor.offset()},
                                         BytesOf(chunk, end - begin),
                                         exchange.caller_ledger()));
        continue;
      }
      char* const encoded = block->data() + format.EncodedBytes(0, begin);
      const absl::Span<const char> sent(encoded, cursor.bytes());
      format.Encode(chunk, begin, end, encoded);
      format.Decode({&sent, 1}, begin, end, chunk);
      RF_RETURN_IF_ERROR(exchange.Send(flow.to, lane, {0, cursor.offset()},
                                       sent, block->ledger));
    } while (cursor.Next());
  }
  return exchange.AwaitCallerMemory();
}

}  // namespace ringfleet::cluster
