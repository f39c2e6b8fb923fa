// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_CLUSTER_CHECKPOINT_CHECKPOINT_FOLDER_H_
#define RINGFLEET_CLUSTER_CHECKPOINT_CHECKPOINT_FOLDER_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "cluster/checkpoint/checkpoint_fetcher.h"
#include "cluster/model/checkpoint_source.h"

namespace ringfleet::cluster {

// Opens the checkpoint in a folder and validates all headers: length, JSON,
// dtypes, shapes against byte counts, offsets inside the file and not
// overlapping, index against contents. With `fetcher`, files that the folder
// lacks are fetched, and the folder need not exist.
//
// Errors: NOT_FOUND (no checkpoint), DATA_LOSS (corrupt, truncated, a file of
// the index is missing, or a file here has another size than at the fetcher's
// hosts), INVALID_ARGUMENT; each names file, value and expectation. Those of
// `fetcher`.
absl::StatusOr<std::unique_ptr<CheckpointSource>> OpenCheckpointFolder(
    const std::string& model_dir,
    std::unique_ptr<const CheckpointFetcher> fetcher = nullptr);

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_CHECKPOINT_CHECKPOINT_FOLDER_H_
