// SPDX-License-Identifier: Apache-2.0
// A checkpoint's manifest: what its headers say of every tensor, and the
// XXH3-64 of every tensor's bytes, as JSON.
#ifndef RINGFLEET_COORDINATOR_CLI_CHECKPOINT_MANIFEST_H_
#define RINGFLEET_COORDINATOR_CLI_CHECKPOINT_MANIFEST_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "coordinator/cli/json_output.h"
#include "protos/worker.pb.h"

namespace ringfleet::coordinator::cli {

Json ManifestJson(const v1::CheckpointFacts& facts);

// Errors: INVALID_ARGUMENT: not a manifest.
absl::StatusOr<v1::CheckpointFacts> ParseManifest(const std::string& text);

// Writes the whole file or none. Errors: those of WriteOutputFile.
absl::Status WriteManifest(const std::string& path,
                           const v1::CheckpointFacts& facts);

}  // namespace ringfleet::coordinator::cli

#endif  // RINGFLEET_COORDINATOR_CLI_CHECKPOINT_MANIFEST_H_
