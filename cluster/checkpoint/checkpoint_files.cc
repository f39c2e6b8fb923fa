// SPDX-License-Identifier: Apache-2.0
#include "cluster/checkpoint/checkpoint_files.h"

#include <filesystem>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "cluster/checkpoint/safetensors_header.h"
#include "cluster/process/file_error.h"
#include "cluster/process/file_reader.h"
#include "cluster/process/status_macros.h"

namespace ringfleet::cluster {
namespace {

// "model-00002-of-00163.safetensors", which is nothing without an index.
bool IsOneOfSeveral(const std::string& name) {
  return absl::StrContains(name, "-of-") &&
         !absl::StrContains(name, "-of-00001.");
}

}  // namespace

absl::StatusOr<std::vector<std::string>> ListCheckpointFiles(
    const std::string& model_dir) {
  std::error_code error;
  if (!std::filesystem::is_directory(model_dir, error)) {
    if (error == std::errc::permission_denied) {
      return FileError(model_dir, error.value());
    }
    return absl::NotFoundError(absl::StrCat(model_dir, ": no such folder"));
  }
  const std::string index = absl::StrCat(model_dir, "/", kIndexName);
  const bool has_index = std::filesystem::exists(index, error);
  const absl::StatusOr<CheckpointLayout> found =
      FindCheckpointLayout(model_dir);
  if (!has_index && (absl::IsInvalidArgument(found.status()) ||
                     (found.ok() && IsOneOfSeveral(found->files[0])))) {
    return absl::NotFoundError(absl::StrCat(index, ": no such file"));
  }
  RF_ASSIGN_OR_RETURN(const CheckpointLayout layout, found);
  std::vector<std::string> names = {"config.json"};
  if (std::filesystem::exists(absl::StrCat(model_dir, "/params.json"), error)) {
    names.push_back("params.json");
  }
  if (layout.index.has_value()) names.push_back(kIndexName);
  names.insert(names.end(), layout.files.begin(), layout.files.end());
  for (const std::string& name : names) {
    RF_RETURN_IF_ERROR(
        FileReader::Open(absl::StrCat(model_dir, "/", name)).status());
  }
  return names;
}

}  // namespace ringfleet::cluster
