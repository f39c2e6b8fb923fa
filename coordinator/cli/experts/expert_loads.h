// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_COORDINATOR_CLI_EXPERTS_EXPERT_LOADS_H_
#define RINGFLEET_COORDINATOR_CLI_EXPERTS_EXPERT_LOADS_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace ringfleet::coordinator::cli {

// Numbers of tokens of each expert, in any unit.
struct ExpertLoads {
  std::vector<std::string> layers;  // Number of each layer, for reports.
  int num_experts = 0;
  std::vector<float> loads;  // [layers, num_experts]

  // Returns the loads of entry `index` of `layers`.
  absl::Span<const float> layer(size_t index) const {
    return absl::MakeSpan(loads).subspan(index * num_experts, num_experts);
  }
};

// Parses JSON in one of two forms:
//   [[loads of layer 0], [loads of layer 1], ...]
//   {"experts": {"1": [loads of layer 1], ...}}, printed by `status --experts
//     -o json`
//
// Errors: INVALID_ARGUMENT: another form, layers of different lengths, or a
// load that float32 cannot hold. The message names the place in the JSON.
absl::StatusOr<ExpertLoads> ParseExpertLoads(absl::string_view json);

// Parses a file. All error messages name the file.
// Errors: those of ParseExpertLoads. NOT_FOUND: there is no file.
// INVALID_ARGUMENT: the file is not regular, or is too large. DATA_LOSS: the
// file cannot be read.
absl::StatusOr<ExpertLoads> ReadExpertLoads(const std::string& path);

}  // namespace ringfleet::coordinator::cli

#endif  // RINGFLEET_COORDINATOR_CLI_EXPERTS_EXPERT_LOADS_H_
