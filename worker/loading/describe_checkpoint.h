// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_WORKER_LOADING_DESCRIBE_CHECKPOINT_H_
#define RINGFLEET_WORKER_LOADING_DESCRIBE_CHECKPOINT_H_

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "protos/worker.pb.h"

namespace ringfleet::worker {

// Serves Worker.DescribeCheckpoint. Reads the headers, the pages that the
// fingerprint covers, and every byte of the tensors to be hashed, on all
// threads with 1 MiB each. A status that `send` returns ends it.
absl::Status DescribeCheckpoint(
    const v1::DescribeCheckpointRequest& request, int default_threads,
    absl::FunctionRef<absl::Status(const v1::CheckpointFacts&)> send);

}  // namespace ringfleet::worker

#endif  // RINGFLEET_WORKER_LOADING_DESCRIBE_CHECKPOINT_H_
