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

// A span of a prompt to score.
struct ScoredSpan {
  const v1::ScoreOptions* options = nullptr;
  absl::Span<const uint32_t> prompt;  // Ids of the whole prompt.
  BatchSpan span;                     // The span in the step's batch.
  // [span.rows, D] f32, hidden states after the final norm.
  const float* hidden = nullptr;
  const float* reference_hidden = nullptr;
};

// Turns hidden states into scores: log-probabilities of the prompt's own
// tokens, the likeliest next tokens, predictions of the MTP layer, and the
// divergence from a float32 reference. All ranks of the data group score equal
// spans in equal order, and all get the result. Belongs to the executor's
// thread.
class Scorer {
 public:
  // `reference` may be null. Both models must outlive the scorer.
  Scorer(Model& model, Model* reference)
      : model_(model), reference_(reference) {}

  // Adds the scores of one span to `result`.
  // Errors: INVALID_ARGUMENT: `options` ask for an MTP layer or a reference
  // that is not loaded. Those of the collectives.
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
