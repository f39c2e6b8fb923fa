// SPDX-License-Identifier: Apache-2.0
#include "cluster/checkpoint/open_model.h"

#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cluster/checkpoint/checkpoint_folder.h"
#include "cluster/process/file_reader.h"
#include "cluster/process/status_macros.h"
#include "cluster/synthetic/synthetic_checkpoint.h"
#include "cluster/synthetic/synthetic_model.h"

namespace ringfleet::cluster {

absl::StatusOr<std::string> ReadModelFile(const std::string& model,
                                          absl::string_view name,
                                          uint64_t max_bytes) {
  if (!IsSyntheticModel(model)) {
    return ReadSmallFile(absl::StrCat(model, "/", name), max_bytes);
  }
  RF_ASSIGN_OR_RETURN(const SyntheticModel synthetic,
                      ParseSyntheticModel(model));
  return SyntheticFile(synthetic, name);
}

absl::StatusOr<ModelSpec> LoadModelSpec(const std::string& model) {
  const absl::StatusOr<std::string> json =
      ReadModelFile(model, "config.json", kMaxConfigBytes);
  if (!json.ok()) return Annotate(json.status(), "model");
  const absl::StatusOr<std::string> params =
      ReadModelFile(model, "params.json", kMaxConfigBytes);
  if (!params.ok() && !absl::IsNotFound(params.status())) {
    return Annotate(params.status(), "model");
  }
  absl::StatusOr<ModelSpec> spec = ParseModelSpec(*json, params.value_or(""));
  if (!spec.ok()) {
    return Annotate(spec.status(), absl::StrCat("model: ", model));
  }
  return spec;
}

absl::StatusOr<GenerationDefaults> LoadGenerationDefaults(
    const std::string& model) {
  const absl::StatusOr<std::string> json =
      ReadModelFile(model, "generation_config.json", kMaxConfigBytes);
  if (absl::IsNotFound(json.status())) return GenerationDefaults();
  if (!json.ok()) return Annotate(json.status(), "model");
  absl::StatusOr<GenerationDefaults> defaults = ParseGenerationDefaults(*json);
  if (!defaults.ok()) {
    return Annotate(defaults.status(), absl::StrCat("model: ", model));
  }
  return defaults;
}

absl::StatusOr<std::unique_ptr<Checkpoint>> OpenCheckpoint(
    const std::string& model) {
  std::unique_ptr<CheckpointSource> source;
  if (IsSyntheticModel(model)) {
    RF_ASSIGN_OR_RETURN(source, SyntheticCheckpoint::Open(model));
  } else {
    RF_ASSIGN_OR_RETURN(source, OpenCheckpointFolder(model));
  }
  return std::make_unique<Checkpoint>(std::move(source));
}

absl::StatusOr<std::unique_ptr<Checkpoint>> OpenFetchedCheckpoint(
    const std::string& folder,
    std::unique_ptr<const CheckpointFetcher> fetcher) {
  RF_ASSIGN_OR_RETURN(std::unique_ptr<CheckpointSource> source,
                      OpenCheckpointFolder(folder, std::move(fetcher)));
  return std::make_unique<Checkpoint>(std::move(source));
}

std::string AbsoluteModel(const std::string& model) {
  if (IsSyntheticModel(model)) return model;
  std::error_code error;
  const std::filesystem::path path = std::filesystem::absolute(model, error);
  return error ? model : path.string();
}

bool IsSameModel(const std::string& a, const std::string& b) {
  if (IsSyntheticModel(a) || IsSyntheticModel(b)) {
    const auto first = ParseSyntheticModel(a);
    const auto second = ParseSyntheticModel(b);
    return first.ok() && second.ok() &&
           FormatSyntheticModel(*first) == FormatSyntheticModel(*second);
  }
  std::error_code error;
  return std::filesystem::weakly_canonical(a, error) ==
         std::filesystem::weakly_canonical(b, error);
}

}  // namespace ringfleet::cluster
