// SPDX-License-Identifier: Apache-2.0
#include "cluster/checkpoint/model_files.h"

#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "cluster/process/file_reader.h"
#include "cluster/process/status_macros.h"
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
