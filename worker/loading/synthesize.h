// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_WORKER_LOADING_SYNTHESIZE_H_
#define RINGFLEET_WORKER_LOADING_SYNTHESIZE_H_

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "protos/worker.pb.h"

namespace ringfleet::worker {

// Serves Worker.Synthesize: writes the files of a synthetic model, with the
// same bytes for any number of threads. The files that a reader looks for
// first, the index and config.json, are written last. `report` gets progress at
// most every 100 ms, and the last message; a status it returns stops the
// writing. `default_threads` applies if the request names no number.
//
// Errors: those of `report`, of cluster::ParseSyntheticModel and of
// OutputFolder. After an error no written file is left.
absl::Status Synthesize(
    const v1::SynthesizeRequest& request, int default_threads,
    absl::FunctionRef<absl::Status(const v1::SynthesizeProgress&)> report);

}  // namespace ringfleet::worker

#endif  // RINGFLEET_WORKER_LOADING_SYNTHESIZE_H_
