// SPDX-License-Identifier: Apache-2.0
// What the coordinator knows of the model: no weights, but its dimensions,
// sampling defaults and tokenizer, and with them the meaning of a request.
#ifndef RINGFLEET_COORDINATOR_FLEET_SERVED_MODEL_H_
#define RINGFLEET_COORDINATOR_FLEET_SERVED_MODEL_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cluster/model/model_spec.h"
#include "coordinator/tokenizer/tokenizer.h"
#include "protos/coordinator.pb.h"

namespace ringfleet::coordinator {

// Immutable and thread-safe.
class ServedModel {
 public:
  // A folder without a tokenizer, or with one that cannot be read, is served
  // too: then only requests with text fail.
  //
  // Errors: those of LoadModelSpec and LoadGenerationDefaults.
  static absl::StatusOr<std::unique_ptr<ServedModel>> Load(
      const std::string& model_dir);

  // The ids of a prompt.
  //
  // Errors: INVALID_ARGUMENT: it is empty, not UTF-8, or has an id that the
  // model does not know. Of tokenizer(): text without one.
  absl::StatusOr<std::vector<uint32_t>> PromptIds(
      const v1::Prompt& prompt) const;

  // The request's sampling, filled up with the model's defaults and a random
  // seed. INVALID_ARGUMENT names a field that is out of range.
  absl::StatusOr<v1::SamplingParams> Sampling(
      const v1::GenerateRequest& request) const;

  // What ends a sequence: the ids of generation_config.json, else those of
  // config.json, else the tokenizer's.
  std::vector<uint32_t> StopIds() const;

  // One past the last id that has a token. Errors: of tokenizer().
  absl::StatusOr<uint32_t> UsableVocab() const;

  // Why a score with these options is impossible, before the text's length.
  absl::Status CheckScore(const v1::ScoreOptions& options) const;

  // The error that Tokenizer::Load gave when there is none: the model's files
  // are at fault, not the fleet.
  absl::StatusOr<const Tokenizer*> tokenizer() const;

  const cluster::ModelSpec& spec() const { return spec_; }

 private:
  ServedModel() = default;

  cluster::ModelSpec spec_;
  cluster::GenerationDefaults defaults_;
  std::unique_ptr<Tokenizer> tokenizer_;  // Null: tokenizer_error_ says why.
  absl::Status tokenizer_error_;
};

// How many tokens a prompt of `prompt_n` may get in `context` positions: the
// last one is drawn when all positions are taken. `requested` is -1 for no
// other limit. 0 when the prompt does not fit.
uint32_t TokenLimit(int64_t requested, size_t prompt_n, uint32_t context);

}  // namespace ringfleet::coordinator

#endif  // RINGFLEET_COORDINATOR_FLEET_SERVED_MODEL_H_
