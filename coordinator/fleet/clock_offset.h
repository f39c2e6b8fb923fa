// SPDX-License-Identifier: Apache-2.0
// Measures the offset of another host's clock, as NTP does (RFC 5905, section
// 8). A reading of their clock lies between two readings of ours. It is taken
// to be half way between them, with an error of at most half of their distance.
// The shortest of several exchanges is used.
#ifndef RINGFLEET_COORDINATOR_FLEET_CLOCK_OFFSET_H_
#define RINGFLEET_COORDINATOR_FLEET_CLOCK_OFFSET_H_

#include <cstdint>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"

namespace ringfleet::coordinator {

struct ClockOffset {
  int64_t offset_ns = 0;  // Theirs less ours.
  int64_t error_ns = 0;   // At most.
  int64_t at_ns = 0;      // Time of our clock.
};

// Enough exchanges that one of them meets no other work, and few enough to take
// some milliseconds between hosts.
inline constexpr int kClockExchanges = 16;

// Reads `ours`, `theirs` and `ours` again, kClockExchanges times. One exchange
// before them sets up the connection. Errors: those of `theirs`.
absl::StatusOr<ClockOffset> MeasureClockOffset(
    absl::FunctionRef<int64_t()> ours,
    absl::FunctionRef<absl::StatusOr<int64_t>()> theirs);

// Returns our clock's time at their time `theirs`. If one offset explains both
// measurements, there was no drift, and the more exact one counts. Otherwise
// their clock has drifted evenly in between. Never reverses the order of two
// times.
int64_t ToOurClock(int64_t theirs, const ClockOffset& before,
                   const ClockOffset& after);

}  // namespace ringfleet::coordinator

#endif  // RINGFLEET_COORDINATOR_FLEET_CLOCK_OFFSET_H_
