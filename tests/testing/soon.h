// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_TESTS_TESTING_SOON_H_
#define RINGFLEET_TESTS_TESTING_SOON_H_

#include "absl/time/time.h"
#include "cluster/process/deadline.h"

namespace ringfleet::testing {

// Returns a deadline for operations that must end before it, also on a busy
// machine.
inline cluster::Deadline Soon() {
  return cluster::Deadline::After(absl::Seconds(60));
}

}  // namespace ringfleet::testing

#endif  // RINGFLEET_TESTS_TESTING_SOON_H_
