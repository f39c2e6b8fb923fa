// SPDX-License-Identifier: Apache-2.0
// Opens a model by its name: specification, sampling defaults and tensors. A
// model's name is the path of a folder, or the name of a synthetic model
// (synthetic_model.h). Other files open a model through this one.
#ifndef RINGFLEET_CLUSTER_CHECKPOINT_OPEN_MODEL_H_
#define RINGFLEET_CLUSTER_CHECKPOINT_OPEN_MODEL_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "cluster/checkpoint/checkpoint_fetcher.h"
#include "cluster/checkpoint/safetensors.h"
#include "cluster/model/generation_defaults.h"
#include "cluster/model/model_spec.h"

namespace ringfleet::cluster {

// Returns the text of one of a model's small files, such as config.json.
// NOT_FOUND: the model has no such file. Other errors: those of ReadSmallFile
// and ParseSyntheticModel.
absl::StatusOr<std::string> ReadModelFile(const std::string& model,
                                          absl::string_view name,
                                          uint64_t max_bytes);

// Parses the model's config.json, and params.json if there is one. NOT_FOUND:
// config.json is absent. Other errors:
// those of ParseModelSpec.
absl::StatusOr<ModelSpec> LoadModelSpec(const std::string& model);

// Parses the model's generation_config.json. Without the file, returns
// GenerationDefaults(). Errors: those of ParseGenerationDefaults.
absl::StatusOr<GenerationDefaults> LoadGenerationDefaults(
    const std::string& model);

// Opens the model's tensors. Errors: those of OpenCheckpointFolder and
// ParseSyntheticModel.
absl::StatusOr<std::unique_ptr<Checkpoint>> OpenCheckpoint(
    const std::string& model);

// Opens the tensors of a folder. Fetches files that the folder lacks. The
// folder may lack all files. Errors: those of OpenCheckpointFolder.
absl::StatusOr<std::unique_ptr<Checkpoint>> OpenFetchedCheckpoint(
    const std::string& folder,
    std::unique_ptr<const CheckpointFetcher> fetcher);

// Returns the model's name with an absolute path, valid in any process of this
// host. Returns a synthetic model's name unchanged.
std::string AbsoluteModel(const std::string& model);

// Returns true if two names mean one model. The names are then paths of one
// folder, or names of synthetic models with equal values.
bool IsSameModel(const std::string& a, const std::string& b);

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_CHECKPOINT_OPEN_MODEL_H_
