// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_CLUSTER_MODEL_GENERATION_DEFAULTS_H_
#define RINGFLEET_CLUSTER_MODEL_GENERATION_DEFAULTS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace ringfleet::cluster {

// Sampling defaults of generation_config.json. Without do_sample they are
// greedy. With it, an absent temperature is 1.
struct GenerationDefaults {
  double temperature = 0;
  int top_k = 0;  // 0: off.
  double top_p = 1;
  double min_p = 0;
  double repetition_penalty = 1;  // 1: off.
  int min_new_tokens = 0;
  std::vector<uint32_t> eos_token_ids;  // Empty: those of config.json.
  // Settings of the file that would change the output and are not supported,
  // as in "num_beams 4". Values that mean "off" are not among them.
  std::vector<std::string> ignored;
};

// Errors: INVALID_ARGUMENT: malformed JSON or an impossible value (names the
// field, the value and what is expected).
absl::StatusOr<GenerationDefaults> ParseGenerationDefaults(
    absl::string_view json);

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_MODEL_GENERATION_DEFAULTS_H_
