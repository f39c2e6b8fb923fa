// SPDX-License-Identifier: Apache-2.0
#include "cluster/collectives/rank_order_sum.h"

#include "cluster/process/status_macros.h"

namespace ringfleet::cluster {

absl::Status SumInRankOrder(Exchange& exchange, const WireFormat& format,
                            ElementRange elements, Exchange::Place place,
                            absl::Span<const char> own, bool sum_has_own,
                            float* sum) {
  const auto [begin, end] = elements;
  const size_t bytes = format.EncodedBytes(begin, end);
  // Ranks 0 and 1 start from their own partial: a + b is b + a, bit for bit.
  const bool own_first = exchange.rank() <= 1;
  // The next frame is added to `base`. Null: the frame is the sum.
  const float* base = nullptr;
  if (own_first) {
    base = sum;
    if (!sum_has_own && format.IdentityBytes()) {
      base = reinterpret_cast<const float*>(own.data());
    } else if (!sum_has_own) {
      format.Decode({&own, 1}, begin, end, sum);
    }
  }
  for (int from = 0; from < exchange.size(); ++from) {
    if (from == exchange.rank()) {
      if (!own_first) format.Accumulate({&own, 1}, begin, end, sum, sum);
      continue;
    }
    RF_ASSIGN_OR_RETURN(const ReceivedFrame frame,
                        exchange.Receive(from, Lane::kDirect, place, bytes));
    if (base != nullptr) {
      format.Accumulate(frame->payload, begin, end, base, sum);
    } else {
      format.Decode(frame->payload, begin, end, sum);
    }
    base = sum;
  }
  return absl::OkStatus();
}

}  // namespace ringfleet::cluster
