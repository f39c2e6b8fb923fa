// SPDX-License-Identifier: Apache-2.0
// Receives the frames of both directions of a ring. All algorithms on a ring
// use it.
#ifndef RINGFLEET_CLUSTER_COLLECTIVES_RING_RECEIVER_H_
#define RINGFLEET_CLUSTER_COLLECTIVES_RING_RECEIVER_H_

#include <array>
#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "cluster/collectives/exchange.h"
#include "cluster/collectives/frame_cuts.h"
#include "cluster/process/status_macros.h"

namespace ringfleet::cluster {

// One direction of the ring. Frames arrive in order, step by step.
struct Flow {
  Lane lane = Lane::kRight;
  int sign = 1;  // to == rank + sign, from == rank - sign, modulo size.
  int to = 0;
  int from = 0;
};

inline Flow FlowOf(const Exchange& exchange, Lane lane) {
  const int sign = lane == Lane::kRight ? 1 : -1;
  return {lane, sign, exchange.Wrap(exchange.rank() + sign),
          exchange.Wrap(exchange.rank() - sign)};
}

inline constexpr std::array<Lane, 2> kRingLanes = {Lane::kRight, Lane::kLeft};

// Receives the frames of both lanes. `steps` has the number of steps of each
// lane of kRingLanes. Frames have at most `max_elements` elements. Schedule
// must have:
//   ElementRange Part(const Flow&, uint32_t step): the elements of a step.
//   bool Encoded(uint32_t step): true if the step's frames have the format,
//   false if they have float32.
//   uint32_t FirstStep(flow): the step number on the wire of step 0.
//   Status Arrived(flow, step, cursor, frame): takes a frame.
template <typename Format, typename Schedule>
class RingReceiver {
 public:
  RingReceiver(Exchange& exchange, const Format& format, Schedule& schedule,
               std::array<uint32_t, 2> steps, size_t max_elements = ~size_t{0})
      : exchange_(exchange),
        format_(format),
        schedule_(schedule),
        max_elements_(max_elements) {
    for (size_t i = 0; i < 2; ++i) {
      lanes_[i].flow = FlowOf(exchange, kRingLanes[i]);
      lanes_[i].steps = steps[i];
      if (steps[i] > 0) BeginStep(lanes_[i]);
    }
  }

  absl::Status Run() {
    size_t favoured = 0;  // Takes turns, so that neither direction starves.
    while (true) {
      std::array<Exchange::Incoming, 2> sources;
      std::array<LaneState*, 2> states;
      size_t count = 0;
      for (size_t i = 0; i < 2; ++i) {
        LaneState& lane = lanes_[(favoured + i) % 2];
        if (lane.step == lane.steps) continue;
        states[count] = &lane;
        sources[count++] = {lane.flow.from, lane.flow.lane};
      }
      if (count == 0) return absl::OkStatus();
      favoured = 1 - favoured;
      size_t index = 0;
      RF_ASSIGN_OR_RETURN(
          const ReceivedFrame frame,
          exchange_.ReceiveAny(absl::MakeConstSpan(sources).subspan(0, count),
                               &index));
      RF_RETURN_IF_ERROR(Take(*states[index], *frame));
    }
  }

 private:
  struct LaneState {
    Flow flow;
    uint32_t step = 0;
    uint32_t steps = 0;
    std::optional<FrameCursor<Format>> cursor;
  };

  void BeginStep(LaneState& lane) {
    lane.cursor.emplace(format_, schedule_.Part(lane.flow, lane.step),
                        max_elements_);
  }

  absl::Status Take(LaneState& lane, const FrameBody& frame) {
    FrameCursor<Format>& cursor = *lane.cursor;
    const ElementRange elements = cursor.elements();
    const bool encoded = schedule_.Encoded(lane.step);
    const uint64_t offset =
        encoded ? cursor.offset() : cursor.consumed() * sizeof(float);
    RF_RETURN_IF_ERROR(exchange_.CheckPlace(
        frame, lane.flow.from,
        {schedule_.FirstStep(lane.flow) + lane.step, offset},
        encoded ? cursor.bytes() : elements.size() * sizeof(float)));
    RF_RETURN_IF_ERROR(schedule_.Arrived(lane.flow, lane.step, cursor, frame));
    if (!cursor.Next() && ++lane.step < lane.steps) BeginStep(lane);
    return absl::OkStatus();
  }

  Exchange& exchange_;
  const Format& format_;
  Schedule& schedule_;
  const size_t max_elements_;
  std::array<LaneState, 2> lanes_;
};

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_COLLECTIVES_RING_RECEIVER_H_
