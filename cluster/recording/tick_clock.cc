// SPDX-License-Identifier: Apache-2.0
#include "cluster/recording/tick_clock.h"

#include <cpuid.h>
#include <x86intrin.h>

#include <chrono>

namespace ringfleet::cluster {
namespace {

using Clock = Deadline::Clock;
using std::chrono::duration_cast;
using std::chrono::nanoseconds;

// AMD64 Architecture Programmer's Manual 3, CPUID 8000_0007, TscInvariant.
bool HasInvariantCounter() {
  constexpr unsigned kPowerManagement = 0x80000007;
  constexpr unsigned kTscInvariant = 1u << 8;
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid(kPowerManagement, &eax, &ebx, &ecx, &edx) != 0 &&
         (edx & kTscInvariant) != 0;
}

}  // namespace

uint64_t Ticks() {
  static const bool has_counter = HasInvariantCounter();
  if (has_counter) return __rdtsc();
  return static_cast<uint64_t>(
      duration_cast<nanoseconds>(Clock::now().time_since_epoch()).count());
}

TickClock::TickClock() : time_(Clock::now()), ticks_(Ticks()) {}

TickClock::Scale TickClock::Now() const {
  Scale scale;
  scale.time_ = Clock::now();
  scale.ticks_ = Ticks();
  const double elapsed =
      static_cast<double>(nanoseconds(scale.time_ - time_).count());
  if (scale.ticks_ > ticks_) {
    scale.nanoseconds_ = elapsed / static_cast<double>(scale.ticks_ - ticks_);
  }
  return scale;
}

Clock::time_point TickClock::Scale::TimeOf(uint64_t ticks) const {
  // Not unsigned: another core may be some ticks ahead.
  const double before =
      static_cast<double>(static_cast<int64_t>(ticks_ - ticks));
  return time_ -
         nanoseconds(static_cast<nanoseconds::rep>(before * nanoseconds_));
}

}  // namespace ringfleet::cluster
