// SPDX-License-Identifier: Apache-2.0
#include "coordinator/scheduling/step_pace.h"

#include <algorithm>

namespace ringfleet::coordinator {
namespace {

// The part of a new measurement in an estimate.
constexpr double kNew = 0.25;
// A step with fewer rows says little of the time of one.
constexpr uint32_t kMeasuredRows = 8;

void Follow(double value, double* estimate) {
  *estimate = *estimate > 0 ? *estimate + kNew * (value - *estimate) : value;
}

double Seconds(StepPace::Duration time) {
  return std::chrono::duration<double>(time).count();
}

}  // namespace

void StepPace::Observe(Duration time, uint32_t prompt_rows) {
  const double seconds = Seconds(time);
  if (seconds <= 0) return;
  if (prompt_rows == 0) return Follow(seconds, &decodes_s_);
  if (prompt_rows < kMeasuredRows) return;
  // A step of a few rows may be as fast as one of decodes alone.
  const double rows_s = std::max(seconds - decodes_s_, seconds / 4);
  Follow(rows_s / prompt_rows, &row_s_);
}

StepPace::Duration StepPace::TimeOf(uint32_t prompt_rows) const {
  return std::chrono::duration_cast<Duration>(
      std::chrono::duration<double>(row_s_ * prompt_rows));
}

StepPace::Duration StepPace::StepTime(uint32_t prompt_rows) const {
  if (row_s_ <= 0) return {};
  return std::chrono::duration_cast<Duration>(
      std::chrono::duration<double>(decodes_s_ + row_s_ * prompt_rows));
}

uint32_t StepPace::RowsWithin(Duration time) const {
  if (row_s_ <= 0) return kUnmeasuredRows;
  const double rows = (Seconds(time) - decodes_s_) / row_s_;
  return std::max(kLeastRows,
                  static_cast<uint32_t>(std::clamp(rows, 0.0, 1e6)));
}

}  // namespace ringfleet::coordinator
