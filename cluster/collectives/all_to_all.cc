// SPDX-License-Identifier: Apache-2.0
#include "cluster/collectives/all_to_all.h"

#include <algorithm>
#include <type_traits>

#include "cluster/collectives/all_gather.h"
#include "cluster/collectives/frame_cuts.h"
#include "cluster/process/status_macros.h"

namespace ringfleet::cluster {
namespace {

// Sends `values`, encoded into `encoded` unless they travel as they lie.
template <typename Format, typename Value>
absl::Status SendPart(Exchange& exchange, const Format& format, int to,
                      absl::Span<const Value> values, char* encoded,
                      PayloadLedger& ledger) {
  FrameCursor cursor(format, {0, values.size()});
  do {
    const auto [begin, end] = cursor.elements();
    absl::Span<const char> sent = BytesOf(values.data() + begin, end - begin);
    if (encoded != nullptr) {
      char* const out = encoded + cursor.offset();
      format.Encode(values.data() + begin, begin, end, out);
      sent = {out, cursor.bytes()};
    }
    RF_RETURN_IF_ERROR(
        exchange.Send(to, Lane::kDirect, {0, cursor.offset()}, sent, ledger));
  } while (cursor.Next());
  return absl::OkStatus();
}

}  // namespace

template <typename Format, typename Value>
absl::Status DirectAllToAll(Exchange& exchange, const Format& format,
                            absl::Span<const Value> input,
                            absl::Span<const uint64_t> input_offsets,
                            absl::Span<Value> output,
                            absl::Span<const uint64_t> output_offsets) {
  const int rank = exchange.rank();
  const auto part = [](auto data, absl::Span<const uint64_t> offsets, int r) {
    const ElementRange range = ShareOf(offsets, r);
    return data.subspan(range.begin, range.size());
  };
  SendArena::Block* block = nullptr;
  if (!format.IdentityBytes()) {
    size_t bytes = 0;
    for (int to = 0; to < exchange.size(); ++to) {
      bytes += format.EncodedBytes(0, ShareOf(input_offsets, to).size());
    }
    RF_ASSIGN_OR_RETURN(block, exchange.NextBlock(bytes));
  }
  size_t used = 0;
  for (int distance = 1; distance < exchange.size(); ++distance) {
    const int to = exchange.Wrap(rank + distance);
    const absl::Span<const Value> values = part(input, input_offsets, to);
    RF_RETURN_IF_ERROR(
        SendPart(exchange, format, to, values,
                 block == nullptr ? nullptr : block->data() + used,
                 block == nullptr ? exchange.caller_ledger() : block->ledger));
    used += format.EncodedBytes(0, values.size());
  }

  const absl::Span<const Value> own = part(input, input_offsets, rank);
  const absl::Span<Value> kept = part(output, output_offsets, rank);
  std::copy(own.begin(), own.end(), kept.begin());
  if constexpr (std::is_same_v<Value, float>) {
    format.Round(0, kept.size(), kept.data());
  }

  for (int distance = 1; distance < exchange.size(); ++distance) {
    const int from = exchange.Wrap(rank - distance);
    const absl::Span<Value> values = part(output, output_offsets, from);
    FrameCursor cursor(format, {0, values.size()});
    do {
      RF_ASSIGN_OR_RETURN(
          const ReceivedFrame frame,
          exchange.Receive(from, Lane::kDirect, {0, cursor.offset()},
                           cursor.bytes()));
      const auto [begin, end] = cursor.elements();
      format.Decode(frame->payload, begin, end, values.data() + begin);
    } while (cursor.Next());
  }
  return exchange.AwaitCallerMemory();
}

template absl::Status DirectAllToAll(Exchange&, const ByteFormat&,
                                     absl::Span<const char>,
                                     absl::Span<const uint64_t>,
                                     absl::Span<char>,
                                     absl::Span<const uint64_t>);
template absl::Status DirectAllToAll(Exchange&, const WireFormat&,
                                     absl::Span<const float>,
                                     absl::Span<const uint64_t>,
                                     absl::Span<float>,
                                     absl::Span<const uint64_t>);

}  // namespace ringfleet::cluster
