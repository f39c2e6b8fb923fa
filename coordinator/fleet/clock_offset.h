// SPDX-License-Identifier: Apache-2.0
// How far another host's clock is from this one's, as NTP finds it out
// (RFC 5905, section 8): a reading of theirs lies between two of ours, so half
// way between them it is wrong by half of their distance at most. Of several
// exchanges the shortest tells most.
#ifndef RINGFLEET_COORDINATOR_FLEET_CLOCK_OFFSET_H_
#define RINGFLEET_COORDINATOR_FLEET_CLOCK_OFFSET_H_

#include <cstdint>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"

namespace ringfleet::coordinator {

struct ClockOffset {
  int64_t offset_ns = 0;  // Theirs less ours.
  int64_t error_ns = 0;   // At most.
  int64_t at_ns = 0;      // Of our clock.
};

// Enough that one of them meets no other work, few enough to take some
// milliseconds between hosts.
inline constexpr int kClockExchanges = 16;

// Reads `ours`, `theirs` and `ours` again, kClockExchanges times, once more
// before for the connection. Errors: of `theirs`.
absl::StatusOr<ClockOffset> MeasureClockOffset(
    absl::FunctionRef<int64_t()> ours,
    absl::FunctionRef<absl::StatusOr<int64_t>()> theirs);

// When it was `theirs` there, by our clock. Where one offset explains both
// measurements there was no drift: the more exact one counts. Else theirs has
// drifted evenly from one to the other. Never turns the order of two times.
int64_t ToOurClock(int64_t theirs, const ClockOffset& before,
                   const ClockOffset& after);

}  // namespace ringfleet::coordinator

#endif  // RINGFLEET_COORDINATOR_FLEET_CLOCK_OFFSET_H_
