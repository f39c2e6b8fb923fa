// SPDX-License-Identifier: Apache-2.0
// Time by the processor's counter, for events that come several times in a
// microsecond. The system's clock takes three times as long to read.
#ifndef RINGFLEET_CLUSTER_RECORDING_TICK_CLOCK_H_
#define RINGFLEET_CLUSTER_RECORDING_TICK_CLOCK_H_

#include <cstdint>

#include "cluster/process/deadline.h"

namespace ringfleet::cluster {

// Returns ticks of a counter that runs at one rate on all cores: x86's
// invariant time stamp counter. Where the processor promises no such counter, a
// tick is a nanosecond of the system's clock.
uint64_t Ticks();

// Converts ticks to the system's clock. The construction and Now each read both
// clocks, and the ticks between them are placed in proportion, so the rate of
// the counter need not be known. Thread-safe.
class TickClock {
 public:
  class Scale {
   public:
    // Never decreases as `ticks` grow.
    Deadline::Clock::time_point TimeOf(uint64_t ticks) const;

   private:
    friend class TickClock;
    Deadline::Clock::time_point time_;
    uint64_t ticks_ = 0;
    double nanoseconds_ = 0;  // Per tick.
  };

  TickClock();

  // Returns the scale for ticks up to the present. Two scales place the same
  // ticks apart by some millionths of the time since the construction.
  Scale Now() const;

 private:
  const Deadline::Clock::time_point time_;
  const uint64_t ticks_;
};

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_RECORDING_TICK_CLOCK_H_
