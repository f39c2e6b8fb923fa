// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_WORKER_LOADING_SYNTHESIZE_H_
#define RINGFLEET_WORKER_LOADING_SYNTHESIZE_H_

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "protos/worker.pb.h"

namespace ringfleet::worker {

// Serves Worker.Synthesize: writes the files of a synthetic model, the same to
// the byte whatever the number of threads, and what a reader looks for first
// (the index, then config.json) last. `report` gets progress at most every
// 100 ms, and the last message; a status it returns stops the writing.
// `default_threads` applies where the request leaves them open.
//
// Errors: of `report`, of cluster::ParseSyntheticModel and of OutputFolder.
// After an error nothing that was written is left.
absl::Status Synthesize(
    const v1::SynthesizeRequest& request, int default_threads,
    absl::FunctionRef<absl::Status(const v1::SynthesizeProgress&)> report);

}  // namespace ringfleet::worker

#endif  // RINGFLEET_WORKER_LOADING_SYNTHESIZE_H_
