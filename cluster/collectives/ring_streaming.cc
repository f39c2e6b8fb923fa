// SPDX-License-Identifier: Apache-2.0
#include "cluster/collectives/ring_streaming.h"

#include <array>
#include <optional>

#include "cluster/collectives/frame_cuts.h"
#include "cluster/collectives/ring_receiver.h"
#include "cluster/collectives/split_rows_frames.h"
#include "cluster/process/status_macros.h"

namespace ringfleet::cluster {
namespace {

class StreamingAllGatherSchedule {
 public:
  StreamingAllGatherSchedule(Exchange& exchange, const SplitRowsLayout& layout,
                             StreamingReceiver& receiver)
      : exchange_(exchange),
        split_(layout.rows, exchange.size()),
        row_bytes_(layout.row_size),
        frame_bytes_(RowFrameBytes(layout, exchange.size())),
        last_step_(static_cast<uint32_t>(exchange.size() - 2)),
        receiver_(receiver) {}

  absl::Status Run(absl::Span<const char> own) {
    RF_RETURN_IF_ERROR(SendOwn(own));
    const uint32_t steps = last_step_ + 1;
    RF_RETURN_IF_ERROR(
        (RingReceiver<ByteFormat, StreamingAllGatherSchedule>(
             exchange_, format_, *this, {steps, steps}, frame_bytes_)
             .Run()));
    return exchange_.AwaitCallerMemory();
  }

  bool Encoded(uint32_t) const { return true; }
  uint32_t FirstStep(const Flow&) const { return 0; }
  ElementRange Part(const Flow& flow, uint32_t step) const {
    return {0, split_.Of(Incoming(flow, step)).size() * row_bytes_};
  }
  absl::Status Arrived(const Flow& flow, uint32_t step,
                       const FrameCursor<ByteFormat>&, const FrameBody& frame) {
    const ShardPart which = Incoming(flow, step);
    if (step < last_step_) {
      RF_RETURN_IF_ERROR(
          exchange_.Forward(flow.to, flow.lane, step + 1, frame));
    }
    receiver_.Arrived(which, frame.payload);
    return absl::OkStatus();
  }

 private:
  static Side SideOn(const Flow& flow) {
    return flow.lane == Lane::kLeft ? Side::kLeft : Side::kRight;
  }
  ShardPart Incoming(const Flow& flow, uint32_t step) const {
    const int hops = static_cast<int>(step) + 1;
    return {exchange_.Wrap(exchange_.rank() - flow.sign * hops), SideOn(flow)};
  }

  absl::Status SendOwn(absl::Span<const char> own) {
    const size_t first = split_.Shard(exchange_.rank()).begin * row_bytes_;
    std::array<Flow, 2> flows;
    std::array<std::optional<FrameCursor<ByteFormat>>, 2> cursors;
    for (size_t i = 0; i < 2; ++i) {
      flows[i] = FlowOf(exchange_, kRingLanes[i]);
      const ShardPart which = {exchange_.rank(), SideOn(flows[i])};
      const kernels::RowRange rows = split_.Of(which);
      cursors[i].emplace(
          format_, ElementRange{rows.begin * row_bytes_, rows.end * row_bytes_},
          frame_bytes_);
    }
    bool more = true;
    while (more) {  // In turns: both neighbours begin at once.
      more = false;
      for (size_t i = 0; i < 2; ++i) {
        if (!cursors[i].has_value()) continue;
        const auto [begin, end] = cursors[i]->elements();
        RF_RETURN_IF_ERROR(exchange_.Send(
            flows[i].to, flows[i].lane, {0, cursors[i]->offset()},
            own.subspan(begin - first, end - begin),
            exchange_.caller_ledger()));
        if (cursors[i]->Next()) {
          more = true;
        } else {
          cursors[i].reset();
        }
      }
    }
    return absl::OkStatus();
  }

  Exchange& exchange_;
  const SplitRows split_;
  const size_t row_bytes_;
  const size_t frame_bytes_;
  const uint32_t last_step_;  // In which something is sent.
  StreamingReceiver& receiver_;
  const ByteFormat format_ = {};
};

class StreamingReduceScatterSchedule {
 public:
  StreamingReduceScatterSchedule(Exchange& exchange,
                                 const SplitRowsLayout& layout,
                                 StreamingSource& source)
      : exchange_(exchange),
        split_(layout.rows, exchange.size()),
        row_elements_(layout.row_size),
        frame_elements_(SumFrameElements(layout, exchange.size(), format_)),
        steps_(exchange.size()),
        source_(source) {
    for (size_t i = 0; i < 2; ++i) {
      lanes_[i].flow = FlowOf(exchange, kRingLanes[i]);
      BeginStep(lanes_[i]);
    }
  }

  absl::Status Run() {
    size_t favoured = 0;
    while (lanes_[0].step < steps_ || lanes_[1].step < steps_) {
      std::array<Exchange::Incoming, 2> sources;
      std::array<LaneState*, 2> states;
      size_t count = 0;
      bool moved = false;
      for (size_t i = 0; i < 2; ++i) {
        LaneState& lane = lanes_[(favoured + i) % 2];
        if (lane.step == steps_ || !Ready(lane)) continue;
        if (lane.step == 0) {
          RF_RETURN_IF_ERROR(Pass(lane));
          moved = true;
        } else {
          states[count] = &lane;
          sources[count++] = {lane.flow.from, lane.flow.lane};
        }
      }
      favoured = 1 - favoured;
      if (moved) continue;
      size_t index = 0;
      RF_ASSIGN_OR_RETURN(
          const ReceivedFrame frame,
          exchange_.ReceiveUnlessWoken(
              absl::MakeConstSpan(sources).subspan(0, count), &index));
      if (frame == nullptr) continue;
      RF_RETURN_IF_ERROR(Add(*states[index], *frame));
    }
    return exchange_.AwaitCallerMemory();
  }

 private:
  // One direction: the frame that is added to and passed on next.
  struct LaneState {
    Flow flow;
    int step = 0;  // The last one sends nothing.
    ShardPart which;
    std::optional<FrameCursor<WireFormat>> cursor;
  };

  ShardPart PartAt(const LaneState& lane, int step) const {
    return {exchange_.Wrap(exchange_.rank() - lane.flow.sign * (step + 1)),
            lane.flow.lane == Lane::kRight ? Side::kLeft : Side::kRight};
  }

  void BeginStep(LaneState& lane) {
    lane.which = PartAt(lane, lane.step);
    lane.cursor.emplace(
        format_, ElementRange{0, split_.Of(lane.which).size() * row_elements_},
        frame_elements_);
  }

  bool Ready(const LaneState& lane) {
    return source_.Ready(lane.which) * row_elements_ >=
           lane.cursor->elements().end;
  }

  absl::Status Add(LaneState& lane, const FrameBody& frame) {
    const auto [begin, end] = lane.cursor->elements();
    RF_RETURN_IF_ERROR(exchange_.CheckPlace(
        frame, lane.flow.from,
        {static_cast<uint32_t>(lane.step - 1), lane.cursor->offset()},
        lane.cursor->bytes()));
    float* const partial = source_.Partial(lane.which) + begin;
    format_.Accumulate(frame.payload, begin, end, partial, partial);
    return Pass(lane);
  }

  // Sends the frame on, except where the walk ends, and goes to the next.
  absl::Status Pass(LaneState& lane) {
    if (lane.step + 1 < steps_) RF_RETURN_IF_ERROR(Send(lane));
    if (!lane.cursor->Next() && ++lane.step < steps_) BeginStep(lane);
    return absl::OkStatus();
  }

  absl::Status Send(LaneState& lane) {
    const auto [begin, end] = lane.cursor->elements();
    const auto step = static_cast<uint32_t>(lane.step);
    const float* const values = source_.Partial(lane.which) + begin;
    return exchange_.Send(
        lane.flow.to, lane.flow.lane, {step, lane.cursor->offset()},
        BytesOf(values, end - begin), exchange_.caller_ledger());
  }

  Exchange& exchange_;
  const WireFormat format_{Wire::kF32, /*row_elements=*/0};
  const SplitRows split_;
  const size_t row_elements_;
  const size_t frame_elements_;
  const int steps_;
  StreamingSource& source_;
  std::array<LaneState, 2> lanes_;
};

}  // namespace

absl::Status RingStreamingAllGather(Exchange& exchange,
                                    const SplitRowsLayout& layout,
                                    absl::Span<const char> own,
                                    StreamingReceiver& receiver) {
  exchange.SetBesideCompute();
  return StreamingAllGatherSchedule(exchange, layout, receiver).Run(own);
}

absl::Status RingStreamingReduceScatter(Exchange& exchange,
                                        const SplitRowsLayout& layout,
                                        StreamingSource& source) {
  return StreamingReduceScatterSchedule(exchange, layout, source).Run();
}

}  // namespace ringfleet::cluster
