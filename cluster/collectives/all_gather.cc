// SPDX-License-Identifier: Apache-2.0
#include "cluster/collectives/all_gather.h"

#include <algorithm>

#include "cluster/process/status_macros.h"

namespace ringfleet::cluster {

template <typename Format, typename Value>
absl::Status ReceiveShares(Exchange& exchange, const Format& format,
                           uint32_t step, absl::Span<Value> output,
                           absl::Span<const uint64_t> offsets) {
  for (int distance = 1; distance < exchange.size(); ++distance) {
    const int from = exchange.Wrap(exchange.rank() - distance);
    FrameCursor cursor(format, ShareOf(offsets, from));
    do {
      RF_ASSIGN_OR_RETURN(
          const ReceivedFrame frame,
          exchange.Receive(from, Lane::kDirect, {step, cursor.offset()},
                           cursor.bytes()));
      const auto [begin, end] = cursor.elements();
      format.Decode(frame->payload, begin, end, output.data() + begin);
    } while (cursor.Next());
  }
  return absl::OkStatus();
}

template <typename Format, typename Value>
absl::Status DirectAllGather(Exchange& exchange, const Format& format,
                             absl::Span<const Value> share,
                             absl::Span<Value> output,
                             absl::Span<const uint64_t> offsets) {
  const ElementRange own = ShareOf(offsets, exchange.rank());
  const bool as_it_lies = format.IdentityBytes();
  SendArena::Block* block = nullptr;
  if (!as_it_lies) {
    RF_ASSIGN_OR_RETURN(
        block, exchange.NextBlock(format.EncodedBytes(own.begin, own.end)));
  }
  FrameCursor cursor(format, own);
  do {
    const auto [begin, end] = cursor.elements();
    const Value* const values = share.data() + (begin - own.begin);
    if (as_it_lies) {
      RF_RETURN_IF_ERROR(exchange.SendToOthers({0, cursor.offset()},
                                               BytesOf(values, end - begin),
                                               exchange.caller_ledger()));
      continue;
    }
    char* const encoded = block->data() + cursor.offset();
    const absl::Span<const char> sent(encoded, cursor.bytes());
    format.Encode(values, begin, end, encoded);
    RF_RETURN_IF_ERROR(
        exchange.SendToOthers({0, cursor.offset()}, sent, block->ledger));
    format.Decode({&sent, 1}, begin, end, output.data() + begin);
  } while (cursor.Next());
  if (as_it_lies && share.data() != output.data() + own.begin) {
    std::copy(share.begin(), share.end(), output.begin() + own.begin);
  }
  RF_RETURN_IF_ERROR(ReceiveShares(exchange, format, 0, output, offsets));
  return exchange.AwaitCallerMemory();
}

template absl::Status DirectAllGather(Exchange&, const ByteFormat&,
                                      absl::Span<const char>, absl::Span<char>,
                                      absl::Span<const uint64_t>);
template absl::Status DirectAllGather(Exchange&, const WireFormat&,
                                      absl::Span<const float>,
                                      absl::Span<float>,
                                      absl::Span<const uint64_t>);
template absl::Status ReceiveShares(Exchange&, const WireFormat&, uint32_t,
                                    absl::Span<float>,
                                    absl::Span<const uint64_t>);

}  // namespace ringfleet::cluster
