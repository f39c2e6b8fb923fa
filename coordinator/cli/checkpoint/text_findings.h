// SPDX-License-Identifier: Apache-2.0
// Judges the files of a model that give ids their meaning.
#ifndef RINGFLEET_COORDINATOR_CLI_CHECKPOINT_TEXT_FINDINGS_H_
#define RINGFLEET_COORDINATOR_CLI_CHECKPOINT_TEXT_FINDINGS_H_

#include <string>
#include <vector>

#include "cluster/model/generation_defaults.h"
#include "cluster/model/model_spec.h"
#include "coordinator/tokenizer/tokenizer.h"

namespace ringfleet::coordinator::cli {

struct TextFindings {
  // Ids that the model does not have.
  std::vector<std::string> contradictions;
  // Facts that a user may not expect: files that name different ids for one
  // thing, ids without a token, an absent end token or chat template.
  std::vector<std::string> doubts;
};

// Compares config.json, generation_config.json and the tokenizer.
TextFindings JudgeTextFiles(const cluster::ModelSpec& spec,
                            const cluster::GenerationDefaults& generation,
                            const Tokenizer& tokenizer);

}  // namespace ringfleet::coordinator::cli

#endif  // RINGFLEET_COORDINATOR_CLI_CHECKPOINT_TEXT_FINDINGS_H_
