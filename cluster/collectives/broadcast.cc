// SPDX-License-Identifier: Apache-2.0
#include "cluster/collectives/broadcast.h"

#include "cluster/collectives/frame_cuts.h"
#include "cluster/process/status_macros.h"

namespace ringfleet::cluster {

absl::Status OneShotBroadcast(Exchange& exchange, const WireFormat& format,
                              int root, absl::Span<float> values) {
  FrameCursor cursor(format, {0, values.size()});
  if (exchange.rank() != root) {
    do {
      RF_ASSIGN_OR_RETURN(
          const ReceivedFrame frame,
          exchange.Receive(root, Lane::kDirect, {0, cursor.offset()},
                           cursor.bytes()));
      const auto [begin, end] = cursor.elements();
      format.Decode(frame->payload, begin, end, values.data() + begin);
    } while (cursor.Next());
    return absl::OkStatus();
  }
  SendArena::Block* block = nullptr;
  if (!format.IdentityBytes()) {
    RF_ASSIGN_OR_RETURN(
        block, exchange.NextBlock(format.EncodedBytes(0, values.size())));
  }
  do {
    const auto [begin, end] = cursor.elements();
    float* const own = values.data() + begin;
    absl::Span<const char> sent = BytesOf(own, end - begin);
    if (block != nullptr) {
      char* const encoded = block->data() + cursor.offset();
      format.Encode(own, begin, end, encoded);
      sent = {encoded, cursor.bytes()};
      format.Decode({&sent, 1}, begin, end, own);
    }
    RF_RETURN_IF_ERROR(exchange.SendToOthers(
        {0, cursor.offset()}, sent,
        block == nullptr ? exchange.caller_ledger() : block->ledger));
  } while (cursor.Next());
  return exchange.AwaitCallerMemory();
}

}  // namespace ringfleet::cluster
