// SPDX-License-Identifier: Apache-2.0
#include "cluster/collectives/group_communicator.h"

#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cluster/collectives/all_gather.h"
#include "cluster/collectives/all_reduce.h"
#include "cluster/collectives/all_to_all.h"
#include "cluster/collectives/broadcast.h"
#include "cluster/collectives/direct_streaming.h"
#include "cluster/collectives/reduce_scatter.h"
#include "cluster/collectives/ring.h"
#include "cluster/collectives/ring_streaming.h"
#include "cluster/process/status_macros.h"
#include "cluster/wire/wire_format.h"
#include "kernels/check.h"

namespace ringfleet::cluster {
namespace {

// How long a failed operation waits for its memory to be released.
constexpr absl::Duration kReclaimTime = absl::Milliseconds(250);

int PositionOf(int rank, absl::Span<const int> ranks) {
  const auto found = std::find(ranks.begin(), ranks.end(), rank);
  RF_CHECK(found != ranks.end());
  return static_cast<int>(found - ranks.begin());
}

// Tells one layout of shares from another (FNV-1a).
uint64_t HashOffsets(absl::Span<const uint64_t> offsets) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const uint64_t offset : offsets) {
    for (int shift = 0; shift < 64; shift += 8) {
      hash = (hash ^ (offset >> shift & 0xff)) * 0x100000001b3u;
    }
  }
  return hash;
}

// Shares of about equal size, on borders of the format.
class EvenOffsets {
 public:
  EvenOffsets(const WireFormat& format, size_t count, int ranks)
      : size_(static_cast<size_t>(ranks) + 1) {
    for (size_t r = 0; r < size_; ++r) {
      offsets_[r] = format.FloorToBorder(count / (size_ - 1) * r +
                                         count % (size_ - 1) * r / (size_ - 1));
    }
    offsets_[size_ - 1] = count;
  }
  absl::Span<const uint64_t> span() const { return {offsets_.data(), size_}; }

 private:
  std::array<uint64_t, kMaxGroupSize + 1> offsets_;
  const size_t size_;
};

}  // namespace

GroupCommunicator::GroupCommunicator(Transport* transport, Group group,
                                     AlgorithmTable table,
                                     FlightRecorder* recorder,
                                     TraceRecorder* trace)
    : transport_(transport),
      group_(std::move(group)),
      table_(std::move(table)),
      recorder_(recorder),
      trace_(trace),
      rank_(PositionOf(transport->rank(), group_.ranks)) {
  RF_CHECK(group_.ranks.size() <= kMaxGroupSize);
  for (const int rank : group_.ranks) {
    RF_CHECK(rank >= 0 && rank < transport->world_size());
    RF_CHECK(std::count(group_.ranks.begin(), group_.ranks.end(), rank) == 1);
  }
}

Exchange GroupCommunicator::Begin(const OpDescriptor& descriptor,
                                  uint64_t check, uint64_t count,
                                  uint64_t bytes, Deadline deadline) {
  FrameHeader head;
  head.group = group_.id;
  head.sequence = ++sequence_;
  head.op_descriptor = PackDescriptor(descriptor);
  head.check = check;
  head.count = count;
  begun_ = true;
  if (recorder_ != nullptr) {
    recorder_->Begin({.epoch = transport_->epoch(),
                      .group = head.group,
                      .sequence = head.sequence,
                      .op_descriptor = head.op_descriptor,
                      .count = count,
                      .bytes = bytes});
  }
  return Exchange(transport_, &group_, rank_, head, bytes, deadline, &arena_,
                  recorder_, trace_);
}

absl::Status GroupCommunicator::End(absl::Status status) {
  if (!status.ok()) {
    transport_->Abort(status);
    // Frames that still point at the caller's memory are given up. An earlier
    // cause, from here or from another rank, is the one to report.
    const absl::Status first = transport_->AwaitReleased(
        arena_.caller(), Deadline::After(kReclaimTime));
    if (!first.ok()) status = first;
  }
  // Not the one before, where the arguments of this one were refused.
  if (std::exchange(begun_, false) && recorder_ != nullptr) {
    recorder_->End(status);
  }
  return status;
}

absl::Status GroupCommunicator::CheckOffsets(absl::Span<const uint64_t> offsets,
                                             uint64_t limit) const {
  if (offsets.size() != group_.ranks.size() + 1) {
    return absl::InvalidArgumentError(
        absl::StrCat(offsets.size(), " offsets for ", group_.ranks.size(),
                     " ranks, want one more than ranks"));
  }
  if (!std::is_sorted(offsets.begin(), offsets.end()) ||
      offsets.back() > limit) {
    return absl::InvalidArgumentError(
        absl::StrCat("share offsets must ascend and end within ", limit,
                     ", the last one is ", offsets.back()));
  }
  return absl::OkStatus();
}

absl::Status GroupCommunicator::CheckShares(absl::Span<const uint64_t> offsets,
                                            uint64_t limit, size_t own,
                                            const WireFormat& format) const {
  RF_RETURN_IF_ERROR(CheckOffsets(offsets, limit));
  const ElementRange share = ShareOf(offsets, rank_);
  if (own != share.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank ", rank_, "'s share has ", own, " elements, want ",
                     share.size()));
  }
  if (format.wire() != Wire::kInt8) return absl::OkStatus();
  for (const uint64_t offset : offsets) {
    if (offset != offsets.back() && format.FloorToBorder(offset) != offset) {
      return absl::InvalidArgumentError(
          absl::StrCat("share offset ", offset,
                       " lies within a group of the int8 wire, "
                       "want ",
                       format.FloorToBorder(offset), " or a later border"));
    }
  }
  return absl::OkStatus();
}

absl::Status GroupCommunicator::AllReduce(absl::Span<const float> input,
                                          absl::Span<float> output,
                                          Encoding encoding, uint64_t check,
                                          Deadline deadline) {
  const WireFormat format(encoding.wire, encoding.row_elements);
  const uint64_t bytes = format.EncodedBytes(0, input.size());
  const Algorithm algorithm =
      table_.Choose(Operation::kAllReduce, bytes, size());
  Exchange exchange = Begin({Operation::kAllReduce, algorithm, encoding.wire},
                            check, input.size(), bytes, deadline);
  if (output.size() != input.size()) {
    return End(absl::InvalidArgumentError(absl::StrCat(
        "an all_reduce of ", input.size(), " elements into ", output.size())));
  }
  if (size() == 1) {
    if (input.data() != output.data()) {
      std::copy(input.begin(), input.end(), output.begin());
    }
    return End(exchange.AwaitCallerMemory());
  }
  if (algorithm == Algorithm::kOneShot) {
    return End(OneShotAllReduce(exchange, format, input, output));
  }
  const EvenOffsets offsets(format, input.size(), size());
  return End(
      algorithm == Algorithm::kTwoShot
          ? TwoShotAllReduce(exchange, format, input, output, offsets.span())
          : RingAllReduce(exchange, format, input, output, offsets.span(),
                          table_.ring_slice_bytes()));
}

template <typename Format, typename Value>
absl::Status GroupCommunicator::Gather(const Format& format, Wire wire,
                                       absl::Span<const Value> share,
                                       absl::Span<Value> output,
                                       absl::Span<const uint64_t> offsets,
                                       Deadline deadline) {
  const uint64_t bytes = format.EncodedBytes(offsets.front(), offsets.back());
  const Algorithm algorithm =
      table_.Choose(Operation::kAllGather, bytes, size());
  Exchange exchange =
      Begin({Operation::kAllGather, algorithm, wire}, HashOffsets(offsets),
            offsets.back(), bytes, deadline);
  if (size() == 1) {
    Value* const own = output.data() + offsets.front();
    if (share.data() != own) std::copy(share.begin(), share.end(), own);
    return End(exchange.AwaitCallerMemory());
  }
  return End(algorithm == Algorithm::kOneShot
                 ? DirectAllGather(exchange, format, share, output, offsets)
                 : RingAllGather(exchange, format, share, output, offsets,
                                 table_.ring_slice_bytes()));
}

absl::Status GroupCommunicator::AllGather(absl::Span<const char> share,
                                          absl::Span<char> output,
                                          absl::Span<const uint64_t> offsets,
                                          Deadline deadline) {
  absl::Status valid = CheckShares(offsets, output.size(), share.size(),
                                   WireFormat(Wire::kF32, 0));
  if (!valid.ok()) return End(std::move(valid));
  return Gather(ByteFormat(), Wire::kF32, share, output, offsets, deadline);
}

absl::Status GroupCommunicator::AllGather(absl::Span<const float> share,
                                          absl::Span<float> output,
                                          absl::Span<const uint64_t> offsets,
                                          Encoding encoding,
                                          Deadline deadline) {
  const WireFormat format(encoding.wire, encoding.row_elements);
  absl::Status valid =
      CheckShares(offsets, output.size(), share.size(), format);
  if (!valid.ok()) return End(std::move(valid));
  return Gather(format, encoding.wire, share, output, offsets, deadline);
}

absl::Status GroupCommunicator::ReduceScatter(
    absl::Span<float> input, absl::Span<float> share,
    absl::Span<const uint64_t> offsets, Encoding encoding, uint64_t check,
    Deadline deadline) {
  const WireFormat format(encoding.wire, encoding.row_elements);
  absl::Status valid = CheckShares(offsets, input.size(), share.size(), format);
  if (!valid.ok()) return End(std::move(valid));
  const uint64_t bytes = format.EncodedBytes(offsets.front(), offsets.back());
  const Algorithm algorithm =
      table_.Choose(Operation::kReduceScatter, bytes, size());
  const std::array<uint64_t, 2> agreed = {HashOffsets(offsets), check};
  Exchange exchange =
      Begin({Operation::kReduceScatter, algorithm, encoding.wire},
            HashOffsets(agreed), offsets.back(), bytes, deadline);
  if (size() == 1) {
    float* const own = input.data() + offsets.front();
    if (share.data() != own) {
      std::copy(own, own + share.size(), share.begin());
    }
    return End(exchange.AwaitCallerMemory());
  }
  if (algorithm == Algorithm::kRing) {
    return End(RingReduceScatter(exchange, format, input, share, offsets,
                                 table_.ring_slice_bytes()));
  }
  absl::Status status = DirectReduceScatter(
      exchange, format, 0, input, share, offsets,
      [](const FrameCursor<WireFormat>&) { return absl::OkStatus(); });
  if (status.ok()) status = exchange.AwaitCallerMemory();
  return End(std::move(status));
}

template <typename Format, typename Value>
absl::Status GroupCommunicator::ExchangeParts(
    const Format& format, Wire wire, absl::Span<const Value> input,
    absl::Span<const uint64_t> input_offsets, absl::Span<Value> output,
    absl::Span<const uint64_t> output_offsets, Deadline deadline) {
  absl::Status valid = CheckOffsets(input_offsets, input.size());
  if (valid.ok()) valid = CheckOffsets(output_offsets, output.size());
  if (!valid.ok()) return End(std::move(valid));
  const ElementRange own = ShareOf(input_offsets, rank_);
  const ElementRange kept = ShareOf(output_offsets, rank_);
  if (own.size() != kept.size()) {
    return End(absl::InvalidArgumentError(
        absl::StrCat("rank ", rank_, " keeps ", own.size(),
                     " elements of its own, want ", kept.size())));
  }
  // Ranks send different amounts, so the count says nothing.
  Exchange exchange =
      Begin({Operation::kAllToAll, Algorithm::kOneShot, wire}, 0, 0,
            format.EncodedBytes(0, input_offsets.back()), deadline);
  if (size() == 1) {
    std::copy(input.begin() + own.begin, input.begin() + own.end,
              output.begin() + kept.begin);
    return End(exchange.AwaitCallerMemory());
  }
  return End(DirectAllToAll(exchange, format, input, input_offsets, output,
                            output_offsets));
}

absl::Status GroupCommunicator::AllToAll(
    absl::Span<const float> input, absl::Span<const uint64_t> input_offsets,
    absl::Span<float> output, absl::Span<const uint64_t> output_offsets,
    Encoding encoding, Deadline deadline) {
  return ExchangeParts(WireFormat(encoding.wire, encoding.row_elements),
                       encoding.wire, input, input_offsets, output,
                       output_offsets, deadline);
}

absl::Status GroupCommunicator::AllToAll(
    absl::Span<const char> input, absl::Span<const uint64_t> input_offsets,
    absl::Span<char> output, absl::Span<const uint64_t> output_offsets,
    Deadline deadline) {
  return ExchangeParts(ByteFormat(), Wire::kF32, input, input_offsets, output,
                       output_offsets, deadline);
}

absl::Status GroupCommunicator::Broadcast(absl::Span<float> values, int root,
                                          Encoding encoding,
                                          Deadline deadline) {
  if (root < 0 || root >= size()) {
    return End(absl::InvalidArgumentError(
        absl::StrCat("a broadcast of rank ", root, " in a group of ", size())));
  }
  const WireFormat format(encoding.wire, encoding.row_elements);
  const uint64_t bytes = format.EncodedBytes(0, values.size());
  const Algorithm algorithm =
      table_.Choose(Operation::kBroadcast, bytes, size());
  Exchange exchange =
      Begin({Operation::kBroadcast, algorithm, encoding.wire},
            static_cast<uint64_t>(root), values.size(), bytes, deadline);
  if (size() == 1) return End(exchange.AwaitCallerMemory());
  return End(algorithm == Algorithm::kOneShot
                 ? OneShotBroadcast(exchange, format, root, values)
                 : RingBroadcast(exchange, format, root, values));
}

absl::Status GroupCommunicator::StreamingAllGather(
    const SplitRowsLayout& layout, absl::Span<const char> own,
    StreamingReceiver& receiver, uint64_t check, Deadline deadline) {
  const std::array<uint64_t, 4> agreed = {layout.rows, layout.row_size,
                                          layout.segment_bytes, check};
  const uint64_t bytes = layout.rows * layout.row_size;
  Exchange exchange =
      Begin({Operation::kAllGatherMatmul, Algorithm::kRing, Wire::kF32},
            HashOffsets(agreed), bytes, bytes, deadline);
  const size_t want =
      SplitRows(layout.rows, size()).Shard(rank_).size() * layout.row_size;
  if (own.size() != want) {
    return End(absl::InvalidArgumentError(
        absl::StrCat("rank ", rank_, " gathers ", own.size(),
                     " bytes of its own, want ", want)));
  }
  if (size() == 1) return End(exchange.AwaitCallerMemory());
  return End(RingStreamingAllGather(exchange, layout, own, receiver));
}

absl::Status GroupCommunicator::StreamingReduceScatter(
    const SplitRowsLayout& layout, Encoding encoding, StreamingSource& source,
    uint64_t check, Deadline deadline) {
  const std::array<uint64_t, 4> agreed = {layout.rows, layout.row_size,
                                          layout.segment_bytes, check};
  const WireFormat format(encoding.wire, encoding.row_elements);
  const uint64_t count = layout.rows * layout.row_size;
  const uint64_t bytes = format.EncodedBytes(0, count);
  const Algorithm algorithm =
      table_.Choose(Operation::kMatmulReduceScatter, bytes, size());
  const bool ring = algorithm == Algorithm::kRing;
  Exchange exchange =
      Begin({Operation::kMatmulReduceScatter, algorithm, encoding.wire},
            HashOffsets(agreed), count, ring ? count * sizeof(float) : bytes,
            deadline);
  if (size() == 1) return End(exchange.AwaitCallerMemory());
  return End(
      ring ? RingStreamingReduceScatter(exchange, layout, source)
           : DirectStreamingReduceScatter(exchange, layout, format, source));
}

absl::Status GroupCommunicator::Barrier(Deadline deadline) {
  Exchange exchange =
      Begin({Operation::kBarrier, Algorithm::kOneShot, Wire::kF32}, 0, 0, 0,
            deadline);
  constexpr std::array<uint64_t, kMaxGroupSize + 1> kNothing = {};
  return End(DirectAllGather<ByteFormat, char>(
      exchange, ByteFormat(), {}, {},
      absl::MakeConstSpan(kNothing).subspan(0, group_.ranks.size() + 1)));
}

}  // namespace ringfleet::cluster
