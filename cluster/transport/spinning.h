// SPDX-License-Identifier: Apache-2.0
// Spinning: a thread that waits for a frame looks for it again and again before
// it blocks.
#ifndef RINGFLEET_CLUSTER_TRANSPORT_SPINNING_H_
#define RINGFLEET_CLUSTER_TRANSPORT_SPINNING_H_

#include <cstdint>

#include "absl/time/time.h"

namespace ringfleet::cluster {

// Says whether a thread spins before it blocks.
enum class Spin : uint8_t {
  // Spins. Yields the core between two looks, unless every rank of the host has
  // its own core.
  kAuto,
  kAlways,
  kNever,
};

// A thread spins for `time`. If `yields`, it offers the core to other threads
// between two looks.
struct Spinning {
  absl::Duration time;
  bool yields = false;
};

// Default time to spin. A round trip over loopback takes 25 to 35 us. Blocking
// and waking up add about 50 us, which matter little after a wait of kSpinTime.
inline constexpr absl::Duration kSpinTime = absl::Microseconds(100);

// Returns the spinning of a worker on a machine where `ranks` workers share
// `cores` cores. On one core, kAuto always yields, because other threads need
// the core.
inline Spinning SpinningOf(Spin spin, int ranks, int cores) {
  const bool has_core = cores > 1 && ranks <= cores;
  return {.time = spin == Spin::kNever ? absl::ZeroDuration() : kSpinTime,
          .yields = spin == Spin::kAuto && !has_core};
}

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_TRANSPORT_SPINNING_H_
