// SPDX-License-Identifier: Apache-2.0
// System limits of this process.
#ifndef RINGFLEET_CLUSTER_PROCESS_PROCESS_LIMITS_H_
#define RINGFLEET_CLUSTER_PROCESS_PROCESS_LIMITS_H_

#include <cstddef>

#include "absl/status/status.h"

namespace ringfleet::cluster {

// Raises the limit of open files to the highest value that the administrator
// allows. A rank holds several connections to every other rank. A coordinator
// holds the connections of its callers.
void RaiseOpenFileLimit();

// Lets malloc keep up to a few hundred megabytes of freed memory. gRPC
// allocates memory for every frame that it receives, and a fresh page costs a
// fault: 1.8 MB to and from a peer over loopback take 1.5 ms with kept memory
// and 1.9 ms without. Call it before other threads start.
void KeepFreedMemory();

// Checks the limit of open files. RESOURCE_EXHAUSTED: fewer than `needed` files
// may be open at a time.
absl::Status CheckOpenFiles(size_t needed);

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_PROCESS_PROCESS_LIMITS_H_
