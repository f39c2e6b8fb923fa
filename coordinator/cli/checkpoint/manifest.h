// SPDX-License-Identifier: Apache-2.0
// The manifest of a checkpoint: JSON with the header's entry and the XXH3-64 of
// the bytes of every tensor.
#ifndef RINGFLEET_COORDINATOR_CLI_CHECKPOINT_MANIFEST_H_
#define RINGFLEET_COORDINATOR_CLI_CHECKPOINT_MANIFEST_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "coordinator/cli/json_output.h"
#include "protos/worker.pb.h"

namespace ringfleet::coordinator::cli {

// Returns the manifest of a checkpoint.
Json ManifestJson(const v1::CheckpointFacts& facts);

// Parses a manifest. Errors: INVALID_ARGUMENT: the text is not a manifest.
absl::StatusOr<v1::CheckpointFacts> ParseManifest(const std::string& text);

// Writes the manifest of a checkpoint. Errors: those of WriteOutputFile.
absl::Status WriteManifest(const std::string& path,
                           const v1::CheckpointFacts& facts);

}  // namespace ringfleet::coordinator::cli

#endif  // RINGFLEET_COORDINATOR_CLI_CHECKPOINT_MANIFEST_H_
