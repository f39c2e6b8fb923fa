// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_WORKER_EXECUTION_SCORER_H_
#define RINGFLEET_WORKER_EXECUTION_SCORER_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "protos/worker.pb.h"
#include "worker/model/model.h"

namespace ringfleet::worker {

// A span of a prompt whose probabilities are asked for.
struct ScoredSpan {
  const v1::ScoreOptions* options = nullptr;
  absl::Span<const uint32_t> prompt;        // All of it.
  BatchSpan span;                           // The span, in the step's batch.
  const float* hidden = nullptr;            // [span.rows, D], after the norm.
  const float* reference_hidden = nullptr;  // The same of the reference model.
};

// Turns hidden states into log probabilities of the prompt's own tokens, the
// likeliest continuations, MTP predictions and the divergence from a float32
// reference. Every rank calls with the same spans; all receive the result.
class Scorer {
 public:
  // `reference` may be null. Both must outlive the scorer.
  Scorer(Model& model, Model* reference)
      : model_(model), reference_(reference) {}

  // Fills `result` for one span.
  // Errors: INVALID_ARGUMENT when `options` ask for an MTP layer or a
  // reference that is not loaded; else of the collectives.
  absl::Status Score(const ScoredSpan& scored, v1::ScoreResult* result);

 private:
  absl::Status ScoreNextTokens(const ScoredSpan& scored,
                               v1::ScoreResult* result);
  absl::Status Compare(const ScoredSpan& scored, v1::ScoreResult* result);
  absl::Status ScoreMtp(const ScoredSpan& scored, v1::ScoreResult* result);

  Model& model_;
  Model* const reference_;
  std::vector<float> logits_;            // [tile, vocab (local)]
  std::vector<float> reference_logits_;  // [tile, vocab (local)]
  std::vector<float> mtp_hidden_;        // [rows, D]
};

}  // namespace ringfleet::worker

#endif  // RINGFLEET_WORKER_EXECUTION_SCORER_H_
