// SPDX-License-Identifier: Apache-2.0
// The flags that say how tokens are drawn and when a text ends.
#ifndef RINGFLEET_COORDINATOR_CLI_RUN_SAMPLING_OPTIONS_H_
#define RINGFLEET_COORDINATOR_CLI_RUN_SAMPLING_OPTIONS_H_

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "protos/coordinator.pb.h"

namespace ringfleet::coordinator::cli {

struct SamplingOptions {
  int64_t max_tokens = -1;
  float temperature = 0;
  int64_t top_k = 0;
  float top_p = 1;
  float min_p = 0;
  float repetition_penalty = 1;
  float presence_penalty = 0;
  float frequency_penalty = 0;
  std::vector<std::string> logit_bias;
  uint32_t min_tokens = 0;
  std::vector<std::string> bad_words;
  std::vector<uint32_t> stop_ids;
  std::vector<std::string> stops;
  bool keeps_stop = false;
  std::string seed;
  bool ignore_eos = false;
  bool mask_unused = false;
  const CLI::App* app = nullptr;  // That has the flags.
};

// `options` must outlive `app`.
void AddSamplingOptions(CLI::App& app, SamplingOptions& options);

// Returns a request without a prompt. Flags that were not given leave their
// fields unset. Errors: INVALID_ARGUMENT: a bias that is none.
absl::StatusOr<v1::GenerateRequest> SamplingOf(const SamplingOptions& options);

}  // namespace ringfleet::coordinator::cli

#endif  // RINGFLEET_COORDINATOR_CLI_RUN_SAMPLING_OPTIONS_H_
