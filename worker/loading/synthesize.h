// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_WORKER_LOADING_SYNTHESIZE_H_
#define RINGFLEET_WORKER_LOADING_SYNTHESIZE_H_

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "protos/worker.pb.h"

namespace ringfleet::worker {

// Serves Worker.Synthesize: writes the files of a synthetic model. The bytes do
// not depend on the number of threads. Writes the files that a reader opens
// first, the index and config.json, last. Calls `report` with progress at most
// every 100 ms, and with the last message. An error from `report` stops the
// writing. `default_threads` applies if the request names no number of threads.
//
// Errors: those of `report`, of cluster::ParseSyntheticModel and of
// OutputFolder. Removes all written files after an error.
absl::Status Synthesize(
    const v1::SynthesizeRequest& request, int default_threads,
    absl::FunctionRef<absl::Status(const v1::SynthesizeProgress&)> report);

}  // namespace ringfleet::worker

#endif  // RINGFLEET_WORKER_LOADING_SYNTHESIZE_H_
