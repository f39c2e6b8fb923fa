// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_CLUSTER_CHECKPOINT_CHECKPOINT_FOLDER_H_
#define RINGFLEET_CLUSTER_CHECKPOINT_CHECKPOINT_FOLDER_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "cluster/checkpoint/checkpoint_fetcher.h"
#include "cluster/model/checkpoint_source.h"

namespace ringfleet::cluster {

// Opens the checkpoint in a folder and validates all headers. Length, JSON and
// dtypes must be valid. Byte ranges must have the sizes of their shapes, lie in
// the file and not overlap. The index must agree with the headers. `fetcher`
// may be null. Otherwise files that the folder lacks are fetched, and the
// folder need not exist.
//
// Errors: those of `fetcher`. NOT_FOUND: no checkpoint. DATA_LOSS: a file is
// corrupt or truncated, a file of the index is missing, or a file's size
// differs from that at the fetcher's sources. INVALID_ARGUMENT: those of
// FindCheckpointLayout. Messages name the file, the value and the expected
// value.
absl::StatusOr<std::unique_ptr<CheckpointSource>> OpenCheckpointFolder(
    const std::string& model_dir,
    std::unique_ptr<const CheckpointFetcher> fetcher = nullptr);

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_CHECKPOINT_CHECKPOINT_FOLDER_H_
