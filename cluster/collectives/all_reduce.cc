// SPDX-License-Identifier: Apache-2.0
#include "cluster/collectives/all_reduce.h"

#include "cluster/collectives/all_gather.h"
#include "cluster/collectives/frame_cuts.h"
#include "cluster/collectives/rank_order_sum.h"
#include "cluster/collectives/reduce_scatter.h"
#include "cluster/process/status_macros.h"

namespace ringfleet::cluster {

absl::Status OneShotAllReduce(Exchange& exchange, const WireFormat& format,
                              absl::Span<const float> input,
                              absl::Span<float> output) {
  const ElementRange all{0, input.size()};
  const bool in_place = input.data() == output.data();
  const bool identity = format.IdentityBytes();
  const bool as_it_lies = identity && !in_place;
  SendArena::Block* block = nullptr;
  if (!as_it_lies) {
    RF_ASSIGN_OR_RETURN(block,
                        exchange.NextBlock(format.EncodedBytes(0, all.end)));
  }
  const auto sent = [&](const FrameCursor<WireFormat>& cursor) {
    return as_it_lies ? BytesOf(input.data() + cursor.elements().begin,
                                cursor.elements().size())
                      : absl::Span<const char>(block->data() + cursor.offset(),
                                               cursor.bytes());
  };
  FrameCursor sending(format, all);
  do {
    const auto [begin, end] = sending.elements();
    if (!as_it_lies) {
      format.Encode(input.data() + begin, begin, end,
                    block->data() + sending.offset());
    }
    RF_RETURN_IF_ERROR(exchange.SendToOthers(
        {0, sending.offset()}, sent(sending),
        as_it_lies ? exchange.caller_ledger() : block->ledger));
  } while (sending.Next());

  FrameCursor cursor(format, all);
  do {
    const auto [begin, end] = cursor.elements();
    float* const sum = output.data() + begin;
    RF_RETURN_IF_ERROR(SumInRankOrder(
        exchange, format, {begin, end}, {0, cursor.offset()}, sent(cursor),
        /*sum_has_own=*/identity && in_place, sum));
    format.Round(begin, end, sum);
  } while (cursor.Next());
  return as_it_lies ? exchange.AwaitCallerMemory() : absl::OkStatus();
}

absl::Status TwoShotAllReduce(Exchange& exchange, const WireFormat& format,
                              absl::Span<const float> input,
                              absl::Span<float> output,
                              absl::Span<const uint64_t> offsets) {
  constexpr uint32_t kReduce = 1;
  constexpr uint32_t kGather = 2;
  const ElementRange own = ShareOf(offsets, exchange.rank());
  const auto share = output.subspan(own.begin, own.size());
  SendArena::Block* block = nullptr;
  if (!format.IdentityBytes()) {
    RF_ASSIGN_OR_RETURN(
        block, exchange.NextBlock(format.EncodedBytes(own.begin, own.end)));
  }
  const auto send_sum = [&](const FrameCursor<WireFormat>& cursor) {
    const auto [begin, end] = cursor.elements();
    float* const sum = output.data() + begin;
    if (block == nullptr) {
      return exchange.SendToOthers({kGather, cursor.offset()},
                                   BytesOf(sum, end - begin),
                                   exchange.caller_ledger());
    }
    char* const encoded = block->data() + cursor.offset();
    const absl::Span<const char> sent(encoded, cursor.bytes());
    format.Encode(sum, begin, end, encoded);
    format.Decode({&sent, 1}, begin, end, sum);
    return exchange.SendToOthers({kGather, cursor.offset()}, sent,
                                 block->ledger);
  };
  RF_RETURN_IF_ERROR(DirectReduceScatter(exchange, format, kReduce, input,
                                         share, offsets, send_sum));
  // Partials of other ranks' shares in `output` may be overwritten with their
  // sums, which prove that the partials have arrived.
  RF_RETURN_IF_ERROR(ReceiveShares(exchange, format, kGather, output, offsets));
  return exchange.AwaitCallerMemory();
}

}  // namespace ringfleet::cluster
