// SPDX-License-Identifier: Apache-2.0
// What a thread that waits for a frame does before it blocks.
#ifndef RINGFLEET_CLUSTER_TRANSPORT_SPINNING_H_
#define RINGFLEET_CLUSTER_TRANSPORT_SPINNING_H_

#include <cstdint>

#include "absl/time/time.h"

namespace ringfleet::cluster {

// Whether it asks without blocking at first.
enum class Spin : uint8_t {
  // Giving the core away between two questions unless every rank on the host
  // has one of its own.
  kAuto,
  kAlways,
  kNever,
};

// For `time` it asks again and again; where it `yields`, other threads may have
// the core between two questions.
struct Spinning {
  absl::Duration time;
  bool yields = false;
};

// A round trip over loopback takes 25 to 35 us and a sleep and wake-up about
// 50 us more: longer than this, and the sleep no longer shows.
inline constexpr absl::Duration kSpinTime = absl::Microseconds(100);

// Where `ranks` worker processes share a machine of so many cores. With one
// core the rank itself has none to spare.
inline Spinning SpinningOf(Spin spin, int ranks, int cores) {
  const bool has_core = cores > 1 && ranks <= cores;
  return {.time = spin == Spin::kNever ? absl::ZeroDuration() : kSpinTime,
          .yields = spin == Spin::kAuto && !has_core};
}

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_TRANSPORT_SPINNING_H_
