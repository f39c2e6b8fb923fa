// SPDX-License-Identifier: Apache-2.0
// Draws tokens from a vocabulary that is spread over ranks. Every rank calls
// with its rows of the logits and gets the same tokens.
#ifndef RINGFLEET_WORKER_EXECUTION_SAMPLER_H_
#define RINGFLEET_WORKER_EXECUTION_SAMPLER_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "cluster/model/shard_plan.h"
#include "kernels/sampling.h"
#include "kernels/thread_pool.h"
#include "worker/fused/timed_communicator.h"

namespace ringfleet::worker {

struct DrawRequest {
  kernels::SamplingFilter filter;
  kernels::DrawKey key;
  uint32_t usable_vocab = 0;  // Ids from here on are never drawn; 0: all are.
};

struct DrawnToken {
  uint32_t id = 0;
  float logprob = 0;  // Natural, of the model: no temperature, no filter.
};

// Draws tokens from logits that are spread over the ranks. Without filters it
// allocates nothing once its buffers have grown. One thread uses it.
class TokenDrawer {
 public:
  // Both must outlive it; `pool` works for it during a call.
  TokenDrawer(TimedCommunicator* communicator, kernels::ThreadPool* pool)
      : communicator_(*communicator), pool_(*pool) {}

  // One token for each request, valid until the next call.
  //   logits [requests, vocab.size()] f32: this rank's rows of the vocabulary
  // Without filters one small gather decides; with top-k, top-p or min-p the
  // ranks exchange their likeliest candidates, more of them until the filters
  // are decided.
  // Errors: of the collectives; DATA_LOSS when all logits of a row are NaN.
  absl::StatusOr<absl::Span<const DrawnToken>> Draw(
      absl::Span<const DrawRequest> requests, const float* logits,
      cluster::Range vocab, int vocab_size);

 private:
  // What a rank knows about one row of logits.
  struct RowSummary {
    kernels::LogSumExp all;       // Over its rows of the vocabulary.
    kernels::LogSumExp tempered;  // Of logit / T over its usable rows, for
                                  // filters.
    kernels::Candidate best;  // Drawn from its usable rows, without filters.
    uint32_t valid = 0;       // Whether there is a `best`.
  };
  // Of the logits of the ids in `ids`.
  static RowSummary Summarize(const DrawRequest& request,
                              absl::Span<const float> logits,
                              cluster::Range ids);
  static void Merge(const DrawRequest& request, const RowSummary& other,
                    RowSummary* summary);
  // Draws the tokens of the requests whose filters need candidates.
  absl::Status DrawFiltered(absl::Span<const DrawRequest> requests,
                            const float* logits, cluster::Range vocab,
                            int vocab_size);

  TimedCommunicator& communicator_;
  kernels::ThreadPool& pool_;
  std::vector<RowSummary> parts_;  // [requests, parts]
  std::vector<RowSummary> own_;
  std::vector<RowSummary> all_;  // [ranks, requests]
  std::vector<kernels::Candidate> winners_;
  std::vector<DrawnToken> drawn_;
};

// The `count` likeliest ids of each row, over all ranks, likeliest first.
//   rows  this rank's logits of each row, from the id vocab.begin on
// Rows have the same length on all ranks and may end before the vocabulary.
absl::StatusOr<std::vector<std::vector<kernels::Candidate>>>
GatherTopCandidates(absl::Span<const absl::Span<const float>> rows,
                    cluster::Range vocab, size_t count,
                    kernels::ThreadPool& pool, TimedCommunicator& communicator);

}  // namespace ringfleet::worker

#endif  // RINGFLEET_WORKER_EXECUTION_SAMPLER_H_
