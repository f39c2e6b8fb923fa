// SPDX-License-Identifier: Apache-2.0
#include "coordinator/fleet/clock_offset.h"

#include <cmath>
#include <cstdlib>

#include "cluster/process/status_macros.h"

namespace ringfleet::coordinator {

absl::StatusOr<ClockOffset> MeasureClockOffset(
    absl::FunctionRef<int64_t()> ours,
    absl::FunctionRef<absl::StatusOr<int64_t>()> theirs) {
  RF_RETURN_IF_ERROR(theirs().status());
  ClockOffset best;
  for (int i = 0; i < kClockExchanges; ++i) {
    const int64_t sent = ours();
    RF_ASSIGN_OR_RETURN(const int64_t read, theirs());
    const int64_t received = ours();
    const int64_t error_ns = (received - sent + 1) / 2;
    if (i > 0 && error_ns >= best.error_ns) continue;
    const int64_t middle = sent + (received - sent) / 2;
    best = {.offset_ns = read - middle, .error_ns = error_ns, .at_ns = middle};
  }
  return best;
}

int64_t ToOurClock(int64_t theirs, const ClockOffset& before,
                   const ClockOffset& after) {
  if (std::abs(after.offset_ns - before.offset_ns) <=
      before.error_ns + after.error_ns) {
    return theirs -
           (after.error_ns < before.error_ns ? after : before).offset_ns;
  }
  const double begin = static_cast<double>(before.at_ns + before.offset_ns);
  const double end = static_cast<double>(after.at_ns + after.offset_ns);
  const double passed =
      end > begin ? (static_cast<double>(theirs) - begin) / (end - begin) : 0;
  const double drift =
      passed * static_cast<double>(after.offset_ns - before.offset_ns);
  return theirs - before.offset_ns - std::llround(drift);
}

}  // namespace ringfleet::coordinator
