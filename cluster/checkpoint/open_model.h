// SPDX-License-Identifier: Apache-2.0
// From a model's name to its specification, defaults and tensors. A name is a
// folder, or a synthetic model (synthetic_model.h). No other file knows which
// formats there are.
#ifndef RINGFLEET_CLUSTER_CHECKPOINT_OPEN_MODEL_H_
#define RINGFLEET_CLUSTER_CHECKPOINT_OPEN_MODEL_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "cluster/checkpoint/checkpoint_fetcher.h"
#include "cluster/checkpoint/safetensors.h"
#include "cluster/model/model_spec.h"

namespace ringfleet::cluster {

// Returns the text of one of a model's small files, such as config.json.
// Errors: NOT_FOUND: the model has no such file. Those of ReadSmallFile and
// ParseSyntheticModel.
absl::StatusOr<std::string> ReadModelFile(const std::string& model,
                                          absl::string_view name,
                                          uint64_t max_bytes);

// Returns the model's config.json, parsed. Errors: NOT_FOUND: the file is
// absent. Those of ParseModelSpec.
absl::StatusOr<ModelSpec> LoadModelSpec(const std::string& model);

// Returns the model's generation_config.json, parsed. Without the file, returns
// the defaults.
// Errors: those of ParseGenerationDefaults.
absl::StatusOr<GenerationDefaults> LoadGenerationDefaults(
    const std::string& model);

// Opens the model's tensors. Errors: those of OpenCheckpointFolder and
// ParseSyntheticModel.
absl::StatusOr<std::unique_ptr<Checkpoint>> OpenCheckpoint(
    const std::string& model);

// Opens the tensors of a folder. Missing files, maybe all of them, are fetched
// from other hosts. Errors: those of OpenCheckpointFolder.
absl::StatusOr<std::unique_ptr<Checkpoint>> OpenFetchedCheckpoint(
    const std::string& folder,
    std::unique_ptr<const CheckpointFetcher> fetcher);

// Returns the model's name for any process of this host: an absolute path, or a
// synthetic model's name as it is.
std::string AbsoluteModel(const std::string& model);

// Returns true if two names mean one model: paths that lead to one folder, or
// synthetic models with equal values.
bool IsSameModel(const std::string& a, const std::string& b);

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_CHECKPOINT_OPEN_MODEL_H_
