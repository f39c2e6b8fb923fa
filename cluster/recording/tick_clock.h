// SPDX-License-Identifier: Apache-2.0
// Measures time with the processor's counter, for events that occur several
// times in a microsecond. Reading the system's clock takes three times as long.
#ifndef RINGFLEET_CLUSTER_RECORDING_TICK_CLOCK_H_
#define RINGFLEET_CLUSTER_RECORDING_TICK_CLOCK_H_

#include <cstdint>

#include "cluster/process/deadline.h"

namespace ringfleet::cluster {

// Returns the ticks of a counter with one rate on all cores: x86's invariant
// time stamp counter. On a processor without an invariant counter, a tick is a
// nanosecond of the system's clock.
uint64_t Ticks();

// Converts ticks to times of the system's clock. The constructor and Now each
// read both clocks. Ticks between the two are converted in proportion, so the
// counter's rate need not be known. Thread-safe.
class TickClock {
 public:
  class Scale {
   public:
    // Returns the time of `ticks`. A larger `ticks` never gives an earlier
    // time.
    Deadline::Clock::time_point TimeOf(uint64_t ticks) const;
    // Returns the length of a number of ticks.
    uint64_t Nanoseconds(uint64_t ticks) const {
      return static_cast<uint64_t>(static_cast<double>(ticks) * nanoseconds_);
    }

   private:
    friend class TickClock;
    Deadline::Clock::time_point time_;
    uint64_t ticks_ = 0;
    double nanoseconds_ = 0;  // Per tick.
  };

  TickClock();

  // Returns a scale for ticks up to now. The times that two scales give for one
  // `ticks` differ by some millionths of the time since construction.
  Scale Now() const;

 private:
  const Deadline::Clock::time_point time_;
  const uint64_t ticks_;
};

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_RECORDING_TICK_CLOCK_H_
