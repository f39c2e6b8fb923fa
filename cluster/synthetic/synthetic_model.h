// SPDX-License-Identifier: Apache-2.0
// Models of random weights that need no files. The name
// "synth:PRESET[,seed=S][,zipf=A]" may stand wherever a model's folder may
// stand. This header has the texts of the model's small files.
// synthetic_checkpoint.h has its tensors.
#ifndef RINGFLEET_CLUSTER_SYNTHETIC_SYNTHETIC_MODEL_H_
#define RINGFLEET_CLUSTER_SYNTHETIC_SYNTHETIC_MODEL_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace ringfleet::cluster {

struct SyntheticModel {
  std::string preset;
  uint64_t seed = 0;
  double zipf = 0;  // Exponent of the experts' popularity; 0: uniform.
};

// Returns true if `model` begins like a synthetic model's name, false if it is
// a path.
bool IsSyntheticModel(absl::string_view model);

// Parses a synthetic model's name. INVALID_ARGUMENT: an unknown preset or key,
// or a value out of range. The message lists the known presets or keys.
absl::StatusOr<SyntheticModel> ParseSyntheticModel(absl::string_view model);

// Returns the name that ParseSyntheticModel parses into `model`. Keys with
// their default value are left out.
std::string FormatSyntheticModel(const SyntheticModel& model);

// Returns the names of the presets. "tiny" has every feature of the V3
// architecture, fp8 blocks that end within tensors, a multi-token prediction
// layer, and less than 2 MB. "r1-slice" has the layer dimensions of
// DeepSeek-R1, 1 dense layer, 2 MoE layers of 32 routed experts, and a
// vocabulary of 32768 tokens: 4.33 billion parameters, 4.8 GB.
// "glm-flash-slice", "kimi-slice" and "glm5-slice" are the like of
// GLM-4.7-Flash, Kimi K2 and GLM-5.
std::vector<std::string> SyntheticPresets();

// Returns the names of a model's small files in the order in which to write
// them. config.json is last.
std::vector<std::string> SyntheticFileNames();

// Returns the text of a file of SyntheticFileNames. NOT_FOUND: another name.
absl::StatusOr<std::string> SyntheticFile(const SyntheticModel& model,
                                          absl::string_view name);

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_SYNTHETIC_SYNTHETIC_MODEL_H_
