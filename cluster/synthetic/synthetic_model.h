// SPDX-License-Identifier: Apache-2.0
// Models that need no files: "synth:PRESET[,seed=S][,zipf=A]" names a
// checkpoint of random weights, wherever a model's folder may be named. This
// file makes the texts of its small files, synthetic_checkpoint.h its tensors.
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

// True if `model` has the form of such a name rather than of a path.
bool IsSyntheticModel(absl::string_view model);

// INVALID_ARGUMENT: an unknown preset or key, or a value out of range; says
// which are known.
absl::StatusOr<SyntheticModel> ParseSyntheticModel(absl::string_view model);

// The name: parsing it gives the same model. Keys with their default are left
// out.
std::string FormatSyntheticModel(const SyntheticModel& model);

// "tiny": every feature of the V3 architecture, fp8 blocks that end within
// tensors, a multi-token prediction layer; under 2 MB.
// "r1-slice": the layer dimensions of DeepSeek-R1, 1 dense and 2 MoE layers of
// 32 routed experts, 32768 tokens: 4.33 billion parameters, 4.8 GB.
std::vector<std::string> SyntheticPresets();

// The names of the small files of a model, in the order in which to write
// them: config.json is last.
std::vector<std::string> SyntheticFileNames();

// The text of one of them. NOT_FOUND for any other name.
absl::StatusOr<std::string> SyntheticFile(const SyntheticModel& model,
                                          absl::string_view name);

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_SYNTHETIC_SYNTHETIC_MODEL_H_
