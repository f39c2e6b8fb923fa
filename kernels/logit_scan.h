// SPDX-License-Identifier: Apache-2.0
// Passes in vectors over all logits of a shard, for drawing a token. sampling.h
// decides with the few logits that are left.
#ifndef RINGFLEET_KERNELS_LOGIT_SCAN_H_
#define RINGFLEET_KERNELS_LOGIT_SCAN_H_

#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"
#include "kernels/sampling.h"

namespace ringfleet::kernels {

// Returns the highest logit; -infinity if there is none. NaNs do not count.
float HighestLogit(absl::Span<const float> logits);

// Returns the index of the first logit that equals `value`; logits.size() if
// none does.
size_t FindLogit(absl::Span<const float> logits, float value);

// Returns the sum of exp((logit - highest) / temperature) in float64. A logit
// that equals `highest` counts 1, infinite or not; a NaN counts 0.
double SumExponentials(absl::Span<const float> logits, float highest,
                       float temperature);

// Logits of one call of FindAbove or FindContenders.
inline constexpr size_t kScanBlock = 1024;

// Indices into one block of logits.
struct ScanHits {
  size_t count = 0;
  uint32_t index[kScanBlock];
};

// Finds the logits above `bound`, in order. Requires at most kScanBlock logits.
void FindAbove(absl::Span<const float> logits, float bound, ScanHits* hits);

struct ContenderArgs {
  DrawKey key;
  float highest = 0;  // No logit is above it.
  float temperature = 1;
  double needed = 0;  // Least (logit - highest) / temperature + noise.
};

// Finds the logits that their Gumbel noise may lift to `needed`, in order. The
// hits have every logit that the noise does lift, and few others. The ids of
// `logits` start at `first_id`. The noise takes two logarithms, so it is
// bounded instead: the noise of u = 1 - v is at most -log(v). Requires at most
// kScanBlock logits.
void FindContenders(absl::Span<const float> logits, uint32_t first_id,
                    const ContenderArgs& args, ScanHits* hits);

}  // namespace ringfleet::kernels

#endif  // RINGFLEET_KERNELS_LOGIT_SCAN_H_
