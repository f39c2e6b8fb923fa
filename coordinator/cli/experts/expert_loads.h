// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_COORDINATOR_CLI_EXPERTS_EXPERT_LOADS_H_
#define RINGFLEET_COORDINATOR_CLI_EXPERTS_EXPERT_LOADS_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace ringfleet::coordinator::cli {

// How many tokens each expert got, in any unit.
struct ExpertLoads {
  std::vector<std::string> layers;  // Their numbers, for a reader.
  int num_experts = 0;
  std::vector<float> loads;  // [layers, num_experts]

  absl::Span<const float> layer(size_t index) const {
    return absl::MakeSpan(loads).subspan(index * num_experts, num_experts);
  }
};

// From JSON: [[loads of layer 0], ...], or an object whose "experts" has layers
// by their numbers, {"1": [...]}, as `status --experts -o json` prints it.
//
// Errors: INVALID_ARGUMENT: not that, layers of different lengths, or a load
// that float32 cannot hold; says what and where.
absl::StatusOr<ExpertLoads> ParseExpertLoads(absl::string_view json);

// The same of a file. Errors also: NOT_FOUND, INVALID_ARGUMENT, DATA_LOSS: it
// is not there, no regular file, too large, or cannot be read. All name it.
absl::StatusOr<ExpertLoads> ReadExpertLoads(const std::string& path);

}  // namespace ringfleet::coordinator::cli

#endif  // RINGFLEET_COORDINATOR_CLI_EXPERTS_EXPERT_LOADS_H_
