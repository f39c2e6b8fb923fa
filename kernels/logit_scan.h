// SPDX-License-Identifier: Apache-2.0
// What drawing a token asks of every logit of a shard, in vectors. sampling.h
// decides with the few that are left.
#ifndef RINGFLEET_KERNELS_LOGIT_SCAN_H_
#define RINGFLEET_KERNELS_LOGIT_SCAN_H_

#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"
#include "kernels/sampling.h"

namespace ringfleet::kernels {

// The highest logit; -infinity of none. NaN does not count.
float HighestLogit(absl::Span<const float> logits);

// Index of the first logit that equals `value`; logits.size() if none does.
size_t FindLogit(absl::Span<const float> logits, float value);

// Sum of exp((logit - highest) / temperature) in float64. A logit that equals
// `highest`, be it infinite, counts 1, NaN nothing.
double SumExponentials(absl::Span<const float> logits, float highest,
                       float temperature);

// Logits that are looked at before the caller hears of any.
inline constexpr size_t kScanBlock = 1024;

// Indices into one block of logits.
struct ScanHits {
  size_t count = 0;
  uint32_t index[kScanBlock];
};

// The logits above `bound`, in order. Requires at most kScanBlock logits.
void FindAbove(absl::Span<const float> logits, float bound, ScanHits* hits);

struct ContenderArgs {
  DrawKey key;
  float highest = 0;  // No logit is above it.
  float temperature = 1;
  // What (logit - highest) / temperature + noise has to reach.
  double needed = 0;
};

// The ids of `logits`, which start at `first_id`, whose Gumbel noise may lift
// them to `needed`, in order: all that it does lift there, and few others. The
// noise, two logarithms, is bounded by an exponent: of u = 1 - v it is at most
// -log(v). Requires at most kScanBlock logits.
void FindContenders(absl::Span<const float> logits, uint32_t first_id,
                    const ContenderArgs& args, ScanHits* hits);

}  // namespace ringfleet::kernels

#endif  // RINGFLEET_KERNELS_LOGIT_SCAN_H_
