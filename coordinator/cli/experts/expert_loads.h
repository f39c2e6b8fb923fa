// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_COORDINATOR_CLI_EXPERTS_EXPERT_LOADS_H_
#define RINGFLEET_COORDINATOR_CLI_EXPERTS_EXPERT_LOADS_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace ringfleet::coordinator::cli {

// Tokens of each expert, in any unit.
struct ExpertLoads {
  std::vector<std::string> layers;  // Numbers of the layers, for a reader.
  int num_experts = 0;
  std::vector<float> loads;  // [layers, num_experts]

  absl::Span<const float> layer(size_t index) const {
    return absl::MakeSpan(loads).subspan(index * num_experts, num_experts);
  }
};

// Parses JSON: [[loads of layer 0], ...], or an object whose "experts" has
// layers by number, {"1": [...]}, as `status --experts -o json` prints it.
//
// Errors: INVALID_ARGUMENT: another form, layers of different lengths, or a
// load
//   that float32 cannot hold. The message says where.
absl::StatusOr<ExpertLoads> ParseExpertLoads(absl::string_view json);

// Parses a file. All errors name it. Errors of ParseExpertLoads; NOT_FOUND: no
// file; INVALID_ARGUMENT: no regular file, or too large; DATA_LOSS: it cannot
// be read.
absl::StatusOr<ExpertLoads> ReadExpertLoads(const std::string& path);

}  // namespace ringfleet::coordinator::cli

#endif  // RINGFLEET_COORDINATOR_CLI_EXPERTS_EXPERT_LOADS_H_
