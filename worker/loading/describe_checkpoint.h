// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_WORKER_LOADING_DESCRIBE_CHECKPOINT_H_
#define RINGFLEET_WORKER_LOADING_DESCRIBE_CHECKPOINT_H_

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "protos/worker.pb.h"

namespace ringfleet::worker {

// Serves Worker.DescribeCheckpoint. Reads the headers of the files, the data
// that the fingerprint covers, and every byte of the tensors that the request
// wants hashed. Threads hash different tensors, each with a buffer of 1 MiB.
// `default_threads` applies if the request names no number of threads. An error
// from `send` ends the call and is returned.
absl::Status DescribeCheckpoint(
    const v1::DescribeCheckpointRequest& request, int default_threads,
    absl::FunctionRef<absl::Status(const v1::CheckpointFacts&)> send);

}  // namespace ringfleet::worker

#endif  // RINGFLEET_WORKER_LOADING_DESCRIBE_CHECKPOINT_H_
