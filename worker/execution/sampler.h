// SPDX-License-Identifier: Apache-2.0
// Draws tokens from a vocabulary that is split over ranks. Every rank passes
// the logits of its part of the vocabulary. All ranks get equal tokens.
#ifndef RINGFLEET_WORKER_EXECUTION_SAMPLER_H_
#define RINGFLEET_WORKER_EXECUTION_SAMPLER_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "cluster/model/shard_plan.h"
#include "kernels/sampling.h"
#include "kernels/thread_pool.h"
#include "worker/execution/logit_rules.h"
#include "worker/fused/timed_communicator.h"

namespace ringfleet::worker {

struct TokenLogprob {
  uint32_t id = 0;
  float logprob = 0;
};

// One token to draw.
struct DrawRequest {
  kernels::SamplingFilter filter;
  kernels::DrawKey key;
  uint32_t usable_vocab = 0;  // Only lower ids are drawn. 0: all ids are.
  const LogitRules* rules = nullptr;  // Null: the logits stay.
  uint32_t top = 0;                   // Likeliest ids to tell.
};

// Log probabilities are natural logarithms of the probabilities that the model
// itself gives, before rules, temperature and filters.
struct DrawnToken {
  // True if nothing can be drawn because logits of the row are NaN. The other
  // fields are 0 then.
  bool nan = false;
  // True if the rules forbid all ids. The other fields are 0 then.
  bool forbidden = false;
  uint32_t id = 0;
  float logprob = 0;
  absl::Span<const TokenLogprob> top;  // Likeliest first.
};

// Draws the tokens of a step. Belongs to one thread. Requests without filters,
// rules and top ids allocate nothing after the buffers have grown.
class TokenDrawer {
 public:
  // Both arguments must outlive the object. The threads of `pool` work for the
  // object during a call.
  TokenDrawer(TimedCommunicator* communicator, kernels::ThreadPool* pool)
      : communicator_(*communicator), pool_(*pool) {}

  // Returns one token for each request, valid until the next call.
  //   logits [requests, vocab.size()] f32: this rank's part of the vocabulary
  // Without filters, ranks gather one candidate for each request. With top-k,
  // top-p or min-p, ranks gather their likeliest candidates, and gather more
  // until the candidates decide the filter. With rules, ranks also gather the
  // model's own logits of the drawn ids. All ranks return the same, NaN rows
  // included. A NaN row changes no other.
  // Errors: those of the collectives; DATA_LOSS: a rank sent an impossible id.
  absl::StatusOr<absl::Span<const DrawnToken>> Draw(
      absl::Span<const DrawRequest> requests, const float* logits,
      cluster::Range vocab, int vocab_size);

 private:
  // Summary of one row of logits on one rank. Usable ids are ids below
  // usable_vocab.
  struct RowSummary {
    kernels::LogSumExp all;       // Over the logits of the rank's ids.
    kernels::LogSumExp tempered;  // Over logit / T of usable ids, for filters.
    kernels::Candidate best;      // Drawn from usable ids, without filters.
    uint32_t valid = 0;           // 1: `best` is set.
  };
  // Returns the summary of the logits of `ids`: the model's own, and those to
  // draw from.
  static RowSummary Summarize(const DrawRequest& request,
                              absl::Span<const float> logits,
                              absl::Span<const float> drawn_from,
                              cluster::Range ids);
  // Adds the ids of `other` to `summary`.
  static void Merge(const DrawRequest& request, const RowSummary& other,
                    RowSummary* summary);
  // Draws the tokens of the requests whose filters need candidates.
  absl::Status DrawFiltered(absl::Span<const DrawRequest> requests,
                            cluster::Range vocab, int vocab_size);
  // Applies the rules of the requests. Sets drawn_from_.
  void ApplyRules(absl::Span<const DrawRequest> requests, const float* logits,
                  cluster::Range vocab);
  // Replaces the logits of the winners that rules have changed by the model's.
  absl::Status RestoreLogits(const float* logits, cluster::Range vocab);
  // Finds the likeliest ids of the requests that ask for them.
  absl::Status FindTop(absl::Span<const DrawRequest> requests,
                       const float* logits, cluster::Range vocab,
                       int vocab_size);

  TimedCommunicator& communicator_;
  kernels::ThreadPool& pool_;
  std::vector<RowSummary> parts_;  // [requests, parts]
  std::vector<RowSummary> own_;
  std::vector<RowSummary> all_;                 // [ranks, requests]
  std::vector<kernels::Candidate> winners_;     // The logit is NaN if none is.
  std::vector<size_t> ruled_;                   // Rows that rules change.
  std::vector<float> changed_;                  // [ruled, vocab.size()]
  std::vector<const float*> drawn_from_;        // Logits to draw from, by row.
  std::vector<std::vector<TokenLogprob>> top_;  // By row.
  std::vector<DrawnToken> drawn_;
};

// Returns the `count` likeliest ids of each row over the whole vocabulary,
// likeliest first.
//   rows: this rank's logits of each row. Element i is the logit of id
//     vocab.begin + i. A row may end before vocab.end.
// All ranks call the function together.
// Errors: those of the collectives.
absl::StatusOr<std::vector<std::vector<kernels::Candidate>>>
GatherTopCandidates(absl::Span<const absl::Span<const float>> rows,
                    cluster::Range vocab, size_t count,
                    kernels::ThreadPool& pool, TimedCommunicator& communicator);

}  // namespace ringfleet::worker

#endif  // RINGFLEET_WORKER_EXECUTION_SAMPLER_H_
