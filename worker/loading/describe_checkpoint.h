// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_WORKER_LOADING_DESCRIBE_CHECKPOINT_H_
#define RINGFLEET_WORKER_LOADING_DESCRIBE_CHECKPOINT_H_

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "protos/worker.pb.h"

namespace ringfleet::worker {

// Serves Worker.DescribeCheckpoint. Reads the headers and the pages that the
// fingerprint covers, and of the tensors to be hashed every byte, on all
// threads, in 1 MiB for each of them. A status that `send` returns ends it.
absl::Status DescribeCheckpoint(
    const v1::DescribeCheckpointRequest& request, int default_threads,
    absl::FunctionRef<absl::Status(const v1::CheckpointFacts&)> send);

}  // namespace ringfleet::worker

#endif  // RINGFLEET_WORKER_LOADING_DESCRIBE_CHECKPOINT_H_
