// SPDX-License-Identifier: Apache-2.0
#include "cluster/collectives/reduce_scatter.h"

#include <algorithm>

#include "cluster/collectives/all_gather.h"
#include "cluster/collectives/rank_order_sum.h"
#include "cluster/process/status_macros.h"

namespace ringfleet::cluster {
namespace {

// Sends the partials of all shares to their owners. Encoded, they lie in
// `block` one share after the other.
absl::Status SendPartials(Exchange& exchange, const WireFormat& format,
                          uint32_t step, absl::Span<const float> input,
                          absl::Span<const uint64_t> offsets,
                          SendArena::Block* block) {
  for (int distance = 1; distance < exchange.size(); ++distance) {
    const int to = exchange.Wrap(exchange.rank() + distance);
    const ElementRange share = ShareOf(offsets, to);
    const size_t base = format.EncodedBytes(offsets[0], share.begin);
    FrameCursor cursor(format, share);
    do {
      const auto [begin, end] = cursor.elements();
      const Exchange::Place place{step, cursor.offset()};
      if (block == nullptr) {
        RF_RETURN_IF_ERROR(
            exchange.Send(to, Lane::kDirect, place,
                          BytesOf(input.data() + begin, end - begin),
                          exchange.caller_ledger()));
        continue;
      }
      char* const encoded = block->data() + base + cursor.offset();
      format.Encode(input.data() + begin, begin, end, encoded);
      RF_RETURN_IF_ERROR(exchange.Send(
          to, Lane::kDirect, place, {encoded, cursor.bytes()}, block->ledger));
    } while (cursor.Next());
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status DirectReduceScatter(
    Exchange& exchange, const WireFormat& format, uint32_t step,
    absl::Span<const float> input, absl::Span<float> share,
    absl::Span<const uint64_t> offsets,
    absl::FunctionRef<absl::Status(const FrameCursor<WireFormat>&)> reduced) {
  const ElementRange own = ShareOf(offsets, exchange.rank());
  const bool identity = format.IdentityBytes();
  const bool in_place = share.data() == input.data() + own.begin;
  // The own partial is needed as it would be sent when rounding changes it,
  // and beside the sum where its turn comes after others' have been added.
  const bool keep_own = !identity || (in_place && exchange.rank() > 1);
  SendArena::Block* block = nullptr;
  size_t own_base = 0;
  if (!identity || keep_own) {
    own_base = identity ? 0 : format.EncodedBytes(offsets[0], own.begin);
    const size_t bytes = identity
                             ? format.EncodedBytes(own.begin, own.end)
                             : format.EncodedBytes(offsets[0], offsets.back());
    RF_ASSIGN_OR_RETURN(block, exchange.NextBlock(bytes));
  }
  RF_RETURN_IF_ERROR(SendPartials(exchange, format, step, input, offsets,
                                  identity ? nullptr : block));
  FrameCursor cursor(format, own);
  do {
    const auto [begin, end] = cursor.elements();
    const float* const partial = input.data() + begin;
    float* const sum = share.data() + (begin - own.begin);
    absl::Span<const char> sent = BytesOf(partial, end - begin);
    if (keep_own) {
      char* const encoded = block->data() + own_base + cursor.offset();
      format.Encode(partial, begin, end, encoded);
      sent = {encoded, cursor.bytes()};
    }
    RF_RETURN_IF_ERROR(SumInRankOrder(
        exchange, format, {begin, end}, {step, cursor.offset()}, sent,
        /*sum_has_own=*/identity && in_place, sum));
    RF_RETURN_IF_ERROR(reduced(cursor));
  } while (cursor.Next());
  return absl::OkStatus();
}

}  // namespace ringfleet::cluster
