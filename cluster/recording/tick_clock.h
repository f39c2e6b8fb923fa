// SPDX-License-Identifier: Apache-2.0
// Time by the processor's counter, for what happens several times in a
// microsecond: the system's clock takes three times as long to read.
#ifndef RINGFLEET_CLUSTER_RECORDING_TICK_CLOCK_H_
#define RINGFLEET_CLUSTER_RECORDING_TICK_CLOCK_H_

#include <cstdint>

#include "cluster/process/deadline.h"

namespace ringfleet::cluster {

// Ticks of a counter that runs on at one rate on all cores (x86's invariant
// time stamp counter), or, where the processor promises none, nanoseconds of
// the system's clock.
uint64_t Ticks();

// What ticks are on the system's clock. Nothing is assumed of the counter's
// rate: ticks between the construction and Now lie where they do between the
// two. Thread-safe.
class TickClock {
 public:
  class Scale {
   public:
    // Does not decrease with `ticks`.
    Deadline::Clock::time_point TimeOf(uint64_t ticks) const;

   private:
    friend class TickClock;
    Deadline::Clock::time_point time_;
    uint64_t ticks_ = 0;
    double nanoseconds_ = 0;  // Of a tick.
  };

  TickClock();

  // For ticks up to now. Two scales place the same ticks some millionths of the
  // time between apart.
  Scale Now() const;

 private:
  const Deadline::Clock::time_point time_;
  const uint64_t ticks_;
};

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_RECORDING_TICK_CLOCK_H_
