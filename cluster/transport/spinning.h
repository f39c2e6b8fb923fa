// SPDX-License-Identifier: Apache-2.0
// The wait of a thread for a frame before it blocks.
#ifndef RINGFLEET_CLUSTER_TRANSPORT_SPINNING_H_
#define RINGFLEET_CLUSTER_TRANSPORT_SPINNING_H_

#include <cstdint>

#include "absl/time/time.h"

namespace ringfleet::cluster {

// Says whether a thread first asks without blocking.
enum class Spin : uint8_t {
  // It does. It gives the core away between two questions, unless every rank on
  // the host has a core of its own.
  kAuto,
  kAlways,
  kNever,
};

// A thread asks again and again for `time`. Where it `yields`, other threads
// may have the core between two questions.
struct Spinning {
  absl::Duration time;
  bool yields = false;
};

// A round trip over loopback takes 25 to 35 us, and a sleep with its wake-up
// about 50 us more. In a longer wait the sleep no longer shows.
inline constexpr absl::Duration kSpinTime = absl::Microseconds(100);

// Returns the wait where `ranks` worker processes share a machine of `cores`.
// With one core the rank itself has none to spare.
inline Spinning SpinningOf(Spin spin, int ranks, int cores) {
  const bool has_core = cores > 1 && ranks <= cores;
  return {.time = spin == Spin::kNever ? absl::ZeroDuration() : kSpinTime,
          .yields = spin == Spin::kAuto && !has_core};
}

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_TRANSPORT_SPINNING_H_
