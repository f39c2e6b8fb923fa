// SPDX-License-Identifier: Apache-2.0
// A model by name: a folder, or a synthetic model (synthetic_model.h).
#ifndef RINGFLEET_CLUSTER_CHECKPOINT_MODEL_FILES_H_
#define RINGFLEET_CLUSTER_CHECKPOINT_MODEL_FILES_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace ringfleet::cluster {

// The text of one of a model's small files, such as config.json: from its
// folder, or made up for a synthetic model. NOT_FOUND when the model has no
// such file; else the errors of ReadSmallFile and ParseSyntheticModel.
absl::StatusOr<std::string> ReadModelFile(const std::string& model,
                                          absl::string_view name,
                                          uint64_t max_bytes);

// The model as any process of this host can name it: an absolute path, or a
// synthetic model's name as it is.
std::string AbsoluteModel(const std::string& model);

// Whether two names mean the same model: paths that lead to one folder, or
// synthetic models with the same values.
bool IsSameModel(const std::string& a, const std::string& b);

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_CHECKPOINT_MODEL_FILES_H_
