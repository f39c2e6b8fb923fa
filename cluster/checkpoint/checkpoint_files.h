// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_CLUSTER_CHECKPOINT_CHECKPOINT_FILES_H_
#define RINGFLEET_CLUSTER_CHECKPOINT_CHECKPOINT_FILES_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace ringfleet::cluster {

// Returns the names of the checkpoint's files in a folder: config.json,
// params.json and the index if there are any, and the *.safetensors files.
// Checks that every file can be opened. Reads only the index.
//
// Errors: NOT_FOUND: names the missing folder or file. A synthetic model has no
// folder. DATA_LOSS, INVALID_ARGUMENT, PERMISSION_DENIED: the folder, its index
// or a file cannot be used.
absl::StatusOr<std::vector<std::string>> ListCheckpointFiles(
    const std::string& model_dir);

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_CHECKPOINT_CHECKPOINT_FILES_H_
