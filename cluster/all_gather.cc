// SPDX-License-Identifier: Apache-2.0
#include "cluster/all_gather.h"

#include <cstring>

#include "cluster/status_macros.h"

namespace ringfleet::cluster {
namespace {

absl::Span<char> Segment(absl::Span<char> data,
                         absl::Span<const uint64_t> offsets, int rank) {
  return data.subspan(offsets[rank], offsets[rank + 1] - offsets[rank]);
}

absl::Status ReceiveInto(Exchange& exchange, int from, uint32_t step,
                         absl::Span<char> segment) {
  char* out = segment.data();
  return exchange.Receive(from, step, segment.size(),
                          [&out](absl::Span<const char> piece) {
                            std::memcpy(out, piece.data(), piece.size());
                            out += piece.size();
                          });
}

}  // namespace

absl::Status OneShotAllGather(Exchange& exchange, absl::Span<char> data,
                              absl::Span<const uint64_t> offsets) {
  RF_RETURN_IF_ERROR(
      exchange.SendToOthers(0, Segment(data, offsets, exchange.rank())));
  for (int distance = 1; distance < exchange.size(); ++distance) {
    const int from = exchange.Wrap(exchange.rank() - distance);
    RF_RETURN_IF_ERROR(
        ReceiveInto(exchange, from, 0, Segment(data, offsets, from)));
  }
  return exchange.Flush();
}

absl::Status RingAllGather(Exchange& exchange, absl::Span<char> data,
                           absl::Span<const uint64_t> offsets,
                           uint32_t first_step) {
  const int next = exchange.Wrap(exchange.rank() + 1);
  const int previous = exchange.Wrap(exchange.rank() - 1);
  for (int hop = 0; hop + 1 < exchange.size(); ++hop) {
    const uint32_t step = first_step + static_cast<uint32_t>(hop);
    const int outgoing = exchange.Wrap(exchange.rank() - hop);
    const int incoming = exchange.Wrap(exchange.rank() - hop - 1);
    RF_RETURN_IF_ERROR(
        exchange.Send(next, step, Segment(data, offsets, outgoing)));
    RF_RETURN_IF_ERROR(ReceiveInto(exchange, previous, step,
                                   Segment(data, offsets, incoming)));
  }
  return exchange.Flush();
}

}  // namespace ringfleet::cluster
