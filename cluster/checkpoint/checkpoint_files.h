// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_CLUSTER_CHECKPOINT_CHECKPOINT_FILES_H_
#define RINGFLEET_CLUSTER_CHECKPOINT_CHECKPOINT_FILES_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace ringfleet::cluster {

// The names of the files that make the checkpoint in a folder: config.json, the
// index if there is one, and the *.safetensors files. All of them are there;
// what they hold has not been looked at, but for the index.
//
// Errors: NOT_FOUND says what is missing, the folder or a file of it; of a
// synthetic model, too. DATA_LOSS, INVALID_ARGUMENT, PERMISSION_DENIED: the
// folder, its index or a file is of no use.
absl::StatusOr<std::vector<std::string>> ListCheckpointFiles(
    const std::string& model_dir);

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_CHECKPOINT_CHECKPOINT_FILES_H_
