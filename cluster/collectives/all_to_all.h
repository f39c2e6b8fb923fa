// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_CLUSTER_COLLECTIVES_ALL_TO_ALL_H_
#define RINGFLEET_CLUSTER_COLLECTIVES_ALL_TO_ALL_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "cluster/collectives/exchange.h"

namespace ringfleet::cluster {

// Sends part r of `input` directly to rank r, and receives part r of `output`
// from rank r. Part r of `input` is [input_offsets[r], input_offsets[r + 1]).
// Part r of `output` is [output_offsets[r], output_offsets[r + 1]). Rows of the
// encoding start at the start of each part, so a part's encoding does not
// depend on other parts. This rank's own part is rounded as if it had been
// sent. Format is ByteFormat with Value char, or WireFormat with Value float.
// On success no queued frame refers to `input` any more.
template <typename Format, typename Value>
absl::Status DirectAllToAll(Exchange& exchange, const Format& format,
                            absl::Span<const Value> input,
                            absl::Span<const uint64_t> input_offsets,
                            absl::Span<Value> output,
                            absl::Span<const uint64_t> output_offsets);

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_COLLECTIVES_ALL_TO_ALL_H_
