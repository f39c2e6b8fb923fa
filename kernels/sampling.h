// SPDX-License-Identifier: Apache-2.0
// Drawing a token from logits that are spread over ranks. Temperature sampling
// is Gumbel-max: argmax(logit / T + gumbel(key, id)) is a draw from
// softmax(logits / T). The noise depends on the id, not on the rank that has
// its logit, so any world size draws the same token.
#ifndef RINGFLEET_KERNELS_SAMPLING_H_
#define RINGFLEET_KERNELS_SAMPLING_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "absl/types/span.h"

namespace ringfleet::kernels {

// Names one draw.
struct DrawKey {
  uint64_t seed = 0;
  uint32_t sample = 0;
  uint64_t position = 0;  // The drawn token's.
};

// Ten rounds of Philox-4x32 (Salmon et al., SC'11): a bijection of `counter`
// for each `key`.
std::array<uint32_t, 4> Philox4x32(std::array<uint32_t, 4> counter,
                                   std::array<uint32_t, 2> key);

// Returns standard Gumbel noise for one id: -log(-log(u)), u in (0, 1) from a
// counter-based generator (Philox4x32) keyed by (seed, sample, position, id).
double GumbelNoise(const DrawKey& key, uint32_t id);

struct SamplingFilter {
  float temperature = 0;  // <= 0: greedy.
  uint32_t top_k = 0;     // 0: off.
  float top_p = 1;        // Outside (0, 1): off.
  float min_p = 0;        // <= 0: off.
  bool greedy() const { return !(temperature > 0); }
  bool filters() const {
    return top_k > 0 || (top_p > 0 && top_p < 1) || min_p > 0;
  }
};

struct Candidate {
  uint32_t id = 0;
  float logit = 0;
};

// The sum of exp(logit / T - max), and max, over a shard; no logits by default.
// `max` is the highest logit / T, rounded. NaN logits are left out.
struct LogSumExp {
  double sum = 0;
  float max = -std::numeric_limits<float>::infinity();
  double Value() const;  // log(sum) + max
};
LogSumExp ReduceLogSumExp(absl::Span<const float> logits,
                          float temperature = 1);
LogSumExp Merge(const LogSumExp& a, const LogSumExp& b);

// Orders candidates: the highest logit first, the lower id first among equals,
// NaN after all others.
bool Precedes(const Candidate& a, const Candidate& b);

// Returns the first `count` candidates of a shard in Precedes order, fewer if
// the shard is smaller. The shard's first row has id `first_id`.
std::vector<Candidate> TopCandidates(absl::Span<const float> logits,
                                     uint32_t first_id, size_t count);

// Applies top-k, top-p, min-p in this order after the temperature and returns
// how many of `sorted` (Precedes order, no duplicates) survive, at least 1.
// `log_z` is the logarithm of the sum of exp(logit / T) over the whole
// vocabulary, of which `sorted` may be a prefix. Returns 0 if the prefix ends
// before the filters can tell: ask again with more candidates. `complete` says
// that `sorted` is the whole vocabulary.
size_t CountSurvivors(absl::Span<const Candidate> sorted,
                      const SamplingFilter& filter, double log_z,
                      bool complete);

// Returns the argmax over survivors of logit / T + gumbel, or the first one if
// greedy. Requires at least one. The order of the others has no influence, so
// the draw among the winners of all shards is the draw from the whole
// vocabulary.
Candidate Draw(absl::Span<const Candidate> survivors,
               const SamplingFilter& filter, const DrawKey& key);

// Draws from a whole shard, without filters: greedy takes the highest logit.
// Requires at least one.
Candidate DrawFromShard(absl::Span<const float> logits, uint32_t first_id,
                        const SamplingFilter& filter, const DrawKey& key);

}  // namespace ringfleet::kernels

#endif  // RINGFLEET_KERNELS_SAMPLING_H_
