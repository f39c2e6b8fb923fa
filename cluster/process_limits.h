// SPDX-License-Identifier: Apache-2.0
// Limits that the system sets for this process. Thread-safe.
#ifndef RINGFLEET_CLUSTER_PROCESS_LIMITS_H_
#define RINGFLEET_CLUSTER_PROCESS_LIMITS_H_

#include <cstddef>

#include "absl/status/status.h"

namespace ringfleet::cluster {

// Raises the number of files that may be open to what the administrator
// allows: a rank holds several connections to every other one, a coordinator
// those of its callers.
void RaiseOpenFileLimit();

// RESOURCE_EXHAUSTED when fewer than `needed` files may be open at a time.
absl::Status CheckOpenFiles(size_t needed);

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_PROCESS_LIMITS_H_
