// SPDX-License-Identifier: Apache-2.0
// The time of a fleet's steps by their rows, as measured.
#ifndef RINGFLEET_COORDINATOR_SCHEDULING_STEP_PACE_H_
#define RINGFLEET_COORDINATOR_SCHEDULING_STEP_PACE_H_

#include <chrono>
#include <cstdint>

namespace ringfleet::coordinator {

// A step takes the time of its decodes, and a time for each row of a prompt.
// Both follow the last steps. Not thread-safe.
class StepPace {
 public:
  using Duration = std::chrono::steady_clock::duration;

  // Takes a step's time. `prompt_rows`: the most that a data group evaluated of
  // prompts.
  void Observe(Duration time, uint32_t prompt_rows);

  // Returns the time of `prompt_rows`. 0: no step had any.
  Duration TimeOf(uint32_t prompt_rows) const;

  // Returns the time of a step with decodes and `prompt_rows`. 0: not measured.
  Duration StepTime(uint32_t prompt_rows) const;

  // Returns how many rows of prompts fit a step with decodes of `time`. At
  // least kLeastRows, so that every prompt ends. kUnmeasuredRows before any
  // step had rows of a prompt.
  uint32_t RowsWithin(Duration time) const;

  static constexpr uint32_t kLeastRows = 16;
  static constexpr uint32_t kUnmeasuredRows = 512;

 private:
  double decodes_s_ = 0;  // 0: not measured.
  double row_s_ = 0;      // 0: not measured.
};

}  // namespace ringfleet::coordinator

#endif  // RINGFLEET_COORDINATOR_SCHEDULING_STEP_PACE_H_
