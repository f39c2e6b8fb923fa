// SPDX-License-Identifier: Apache-2.0
#include "coordinator/scheduling/batch_budget.h"

#include <algorithm>

namespace ringfleet::coordinator {
namespace {

// Steps between two that are measured because interactive sequences came or
// went.
constexpr uint32_t kLeastMeasureSteps = 4;
// The part of a new measurement in an estimate.
constexpr double kNewest = 0.25;

double InSeconds(BatchBudget::Duration time) {
  return std::chrono::duration<double>(time).count();
}

}  // namespace

bool BatchBudget::Measures(uint32_t decodes) const {
  if (decodes == 0) return false;
  return since_measured_ >= kMeasureSteps ||
         (decodes != planned_decodes_ && since_measured_ >= kLeastMeasureSteps);
}

uint32_t BatchBudget::RowsBeside(const Rows& rows,
                                 Duration prompts_time) const {
  if (pauses()) return 0;
  const uint32_t least = turn() ? 1 : 0;
  if (without_s_ <= 0) return least;
  if (rows.prompts > 0 ? prompts_time == Duration(0) : Measures(rows.decodes)) {
    return least;
  }
  const double limit_s =
      limit_.has_value() ? InSeconds(*limit_) : kShare * without_s_;
  const double left_s = limit_s - without_s_ - InSeconds(prompts_time);
  if (left_s <= 0) return least;
  const double fit = row_s_ > 0 ? left_s / row_s_ : 1;
  return std::max(least,
                  static_cast<uint32_t>(std::min(fit, 2.0 * last_rows_ + 1)));
}

void BatchBudget::OnPlan(const Rows& rows) {
  if (rows.batch > 0) {
    last_rows_ = rows.batch;
    without_rows_ = 0;
  } else {
    ++without_rows_;
  }
  ++since_measured_;
  if (rows.batch == 0 && rows.prompts == 0 && rows.decodes > 0) {
    since_measured_ = 0;
    planned_decodes_ = rows.decodes;
  }
}

void BatchBudget::Observe(Duration time, const Rows& rows) {
  const double seconds = InSeconds(time);
  if (seconds <= 0 || rows.decodes == 0 || rows.prompts > 0) return;
  if (rows.batch == 0) {
    // Other numbers of sequences have another time.
    const bool follows = without_s_ > 0 && rows.decodes == measured_decodes_;
    without_s_ += (follows ? kNewest : 1) * (seconds - without_s_);
    measured_decodes_ = rows.decodes;
  } else if (without_s_ > 0) {
    // Rows that seem to cost nothing are so cheap that growth limits them.
    const double row_s =
        std::max(seconds - without_s_, without_s_ / 1024) / rows.batch;
    row_s_ += (row_s_ > 0 ? kNewest : 1) * (row_s - row_s_);
  }
}

}  // namespace ringfleet::coordinator
