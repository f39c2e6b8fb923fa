// SPDX-License-Identifier: Apache-2.0
#include "cluster/reduce_scatter.h"

#include <cstring>

#include "cluster/status_macros.h"

namespace ringfleet::cluster {
namespace {

absl::Span<const char> Bytes(absl::Span<const float> values) {
  return {reinterpret_cast<const char*>(values.data()),
          values.size() * sizeof(float)};
}

}  // namespace

absl::Status RingReduceScatter(Exchange& exchange, absl::Span<float> data,
                               absl::Span<const uint64_t> offsets) {
  const int next = exchange.Wrap(exchange.rank() + 1);
  const int previous = exchange.Wrap(exchange.rank() - 1);
  const auto segment = [&](int rank) {
    rank = exchange.Wrap(rank);
    return data.subspan(offsets[rank], offsets[rank + 1] - offsets[rank]);
  };
  for (int hop = 0; hop + 1 < exchange.size(); ++hop) {
    const uint32_t step = static_cast<uint32_t>(hop);
    const auto outgoing = segment(exchange.rank() - hop - 1);
    const auto incoming = segment(exchange.rank() - hop - 2);
    RF_RETURN_IF_ERROR(exchange.Send(next, step, Bytes(outgoing)));
    float* sum = incoming.data();
    ElementReader<sizeof(float)> reader;
    RF_RETURN_IF_ERROR(exchange.Receive(
        previous, step, incoming.size() * sizeof(float),
        [&](absl::Span<const char> piece) {
          reader.Feed(piece, [&](const char* elements, size_t count) {
            for (size_t i = 0; i < count; ++i) {
              float partial;
              std::memcpy(&partial, elements + i * sizeof(float),
                          sizeof(float));
              sum[i] = partial + sum[i];
            }
            sum += count;
          });
        }));
  }
  return absl::OkStatus();
}

}  // namespace ringfleet::cluster
