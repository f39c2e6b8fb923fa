// SPDX-License-Identifier: Apache-2.0
// How much of batches a step has while interactive sequences run.
#ifndef RINGFLEET_COORDINATOR_SCHEDULING_BATCH_BUDGET_H_
#define RINGFLEET_COORDINATOR_SCHEDULING_BATCH_BUDGET_H_

#include <cstdint>
#include <optional>

#include "coordinator/scheduling/step_pace.h"

namespace ringfleet::coordinator {

// A step takes its time without batches, and a time for each of their rows,
// which are decodes and rows of prompts alike. Both times follow the last
// steps. The first one is measured in steps that leave batches out: when the
// number of interactive sequences has changed, and every kMeasureSteps. Rows
// grow at most to twice those of the last step, so that a few fast rows promise
// nothing for many. Not thread-safe.
class BatchBudget {
 public:
  using Duration = StepPace::Duration;

  // Rows of a step beside which batches are limited, each the most of a data
  // group.
  struct Rows {
    uint32_t decodes = 0;  // Rows of interactive sequences.
    uint32_t prompts = 0;  // Rows of interactive prompts and their replays.
    uint32_t batch = 0;
  };

  // Sets the time that a step with rows of batches must keep. 0: batches pause.
  // Nothing: kShare times the step without them.
  void SetLimit(std::optional<Duration> limit) { limit_ = limit; }

  bool pauses() const { return limit_ == Duration(0); }

  // Returns how many rows of batches the next step may have in each data group
  // beside the interactive rows. `prompts_time` is the time of its prompts, 0
  // if not measured.
  uint32_t RowsBeside(const Rows& rows, Duration prompts_time) const;

  // Returns whether batches had no row in the last kTurnSteps steps. They then
  // have one, whatever the step takes. False while they pause.
  bool turn() const { return !pauses() && without_rows_ >= kTurnSteps; }

  // Takes the rows of a step that is planned.
  void OnPlan(const Rows& rows);

  // Takes the time of a step with these rows.
  void Observe(Duration time, const Rows& rows);

  static constexpr double kShare = 1.5;
  static constexpr uint32_t kTurnSteps = 8;
  static constexpr uint32_t kMeasureSteps = 32;

 private:
  // The next step with `decodes` leaves batches out to be measured.
  bool Measures(uint32_t decodes) const;

  std::optional<Duration> limit_;
  double without_s_ = 0;           // Step without batches. 0: not measured.
  uint32_t measured_decodes_ = 0;  // Interactive ones of `without_s_`.
  double row_s_ = 0;               // A row of a batch. 0: not measured.
  uint32_t last_rows_ = 0;        // Rows of batches in the last step with some.
  uint32_t without_rows_ = 0;     // Planned steps since then.
  uint32_t since_measured_ = 0;   // Planned steps since one without batches.
  uint32_t planned_decodes_ = 0;  // Interactive ones of that step.
};

}  // namespace ringfleet::coordinator

#endif  // RINGFLEET_COORDINATOR_SCHEDULING_BATCH_BUDGET_H_
