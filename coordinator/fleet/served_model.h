// SPDX-License-Identifier: Apache-2.0
// The model as the coordinator knows it: dimensions, sampling defaults and
// tokenizer, without weights. Gives requests their meaning.
#ifndef RINGFLEET_COORDINATOR_FLEET_SERVED_MODEL_H_
#define RINGFLEET_COORDINATOR_FLEET_SERVED_MODEL_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "cluster/model/generation_defaults.h"
#include "cluster/model/model_spec.h"
#include "coordinator/tokenizer/tokenizer.h"
#include "protos/coordinator.pb.h"

namespace ringfleet::coordinator {

// Immutable and thread-safe.
class ServedModel {
 public:
  static constexpr uint64_t kAnyNumber = uint64_t{1} << 40;

  // A folder without a readable tokenizer is served too. Only requests with
  // text fail then.
  //
  // Errors: those of LoadModelSpec and LoadGenerationDefaults.
  static absl::StatusOr<std::unique_ptr<ServedModel>> Load(
      const std::string& model_dir);

  // Returns the ids of a prompt, of which the caller can use `most` at most;
  // see CheckTextLength.
  //
  // Errors: INVALID_ARGUMENT: the prompt is empty, not UTF-8, too long, or has
  // an id that the model does not know. Errors of tokenizer(): a text without
  // tokenizer.
  absl::StatusOr<std::vector<uint32_t>> PromptIds(
      const v1::Prompt& prompt, uint64_t most = kAnyNumber) const;

  // Refuses a text that has more bytes than `most` tokens, before any work.
  // Errors: INVALID_ARGUMENT; those of tokenizer().
  absl::Status CheckTextLength(absl::string_view text, uint64_t most) const;

  // Returns the request's sampling, completed by the model's defaults and a
  // random seed. INVALID_ARGUMENT names a field that is out of range. Errors of
  // tokenizer(): bad words without tokenizer.
  absl::StatusOr<v1::SamplingParams> Sampling(
      const v1::GenerateRequest& request) const;

  // Returns the ids that end a sequence: those of generation_config.json, else
  // of config.json, else of the tokenizer.
  std::vector<uint32_t> StopIds() const;

  // Returns one past the last id that has a token. Errors: those of
  // tokenizer().
  absl::StatusOr<uint32_t> UsableVocab() const;

  // Tells why a score with these options is impossible for a text of any
  // length.
  absl::Status CheckScore(const v1::ScoreOptions& options) const;

  // Returns the tokenizer, or the error of Tokenizer::Load: the model's files
  // are at fault, not the fleet.
  absl::StatusOr<const Tokenizer*> tokenizer() const;

  const cluster::ModelSpec& spec() const { return spec_; }

  // Returns the ids that end a request's sequence.
  // Errors: INVALID_ARGUMENT: an id that the model does not know.
  absl::StatusOr<std::vector<uint32_t>> StopIdsOf(
      const v1::GenerateRequest& request) const;

  // Tells why the request's numbers of likeliest ids are impossible.
  absl::Status CheckLogprobs(const v1::GenerateRequest& request) const;

 private:
  ServedModel() = default;

  // Sets the parts of `sampling` that change logits.
  absl::Status SetLogitRules(const v1::GenerateRequest& request,
                             v1::SamplingParams* sampling) const;

  cluster::ModelSpec spec_;
  cluster::GenerationDefaults defaults_;
  std::unique_ptr<Tokenizer> tokenizer_;  // Null: tokenizer_error_ says why.
  absl::Status tokenizer_error_;
};

// Returns the most tokens that a request may get, or kUnlimitedTokens.
uint32_t TokenLimit(const v1::GenerateRequest& request);

}  // namespace ringfleet::coordinator

#endif  // RINGFLEET_COORDINATOR_FLEET_SERVED_MODEL_H_
