// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_CLUSTER_CHECKPOINT_CHECKPOINT_FILES_H_
#define RINGFLEET_CLUSTER_CHECKPOINT_CHECKPOINT_FILES_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace ringfleet::cluster {

// Lists the files that make the checkpoint in a folder: config.json, the index
// if there is one, and the *.safetensors files. All of them exist. Only the
// index has been read.
//
// Errors: NOT_FOUND names the folder or file that is missing; a synthetic model
// has none. DATA_LOSS, INVALID_ARGUMENT, PERMISSION_DENIED: the folder, its
// index or a file is of no use.
absl::StatusOr<std::vector<std::string>> ListCheckpointFiles(
    const std::string& model_dir);

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_CHECKPOINT_CHECKPOINT_FILES_H_
