// SPDX-License-Identifier: Apache-2.0
#include "cluster/group_communicator.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cluster/all_gather.h"
#include "cluster/reduce_scatter.h"
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

// Tells one layout of segments from another (FNV-1a).
uint64_t HashOffsets(absl::Span<const uint64_t> offsets) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const uint64_t offset : offsets) {
    for (int shift = 0; shift < 64; shift += 8) {
      hash = (hash ^ (offset >> shift & 0xff)) * 0x100000001b3u;
    }
  }
  return hash;
}

constexpr Direction DirectionOf(Algorithm algorithm) {
  return algorithm == Algorithm::kRing ? Direction::kRight : Direction::kNone;
}

}  // namespace

Algorithm ChooseAlgorithm(Operation operation, uint64_t bytes, int size) {
  // One shot costs one latency but sends everything size - 1 times; the ring
  // sends each byte twice at most but needs up to 2 (size - 1) latencies. The
  // borders follow the alpha-beta model with 40 us per message at 10 Gbit/s.
  // Between two ranks a one-shot all-reduce sends no more than a ring does.
  switch (operation) {
    case Operation::kAllReduce:
      return bytes <= (size == 2 ? 1u << 20 : 64u << 10) ? Algorithm::kOneShot
                                                         : Algorithm::kRing;
    case Operation::kAllGather:
      return bytes <= 64u << 10 ? Algorithm::kOneShot : Algorithm::kRing;
    case Operation::kReduceScatter:
      return Algorithm::kRing;
    case Operation::kBarrier:
      return Algorithm::kOneShot;
  }
  return Algorithm::kRing;
}

GroupCommunicator::GroupCommunicator(Transport* transport, Group group)
    : transport_(transport),
      group_(std::move(group)),
      rank_(PositionOf(transport->rank(), group_.ranks)) {
  for (const int rank : group_.ranks) {
    RF_CHECK(rank >= 0 && rank < transport->world_size());
    RF_CHECK(std::count(group_.ranks.begin(), group_.ranks.end(), rank) == 1);
  }
}

Exchange GroupCommunicator::Begin(const OpDescriptor& descriptor,
                                  uint64_t check, uint64_t count,
                                  Deadline deadline) {
  FrameHeader head;
  head.group = group_.id;
  head.sequence = ++sequence_;
  head.op_descriptor = PackDescriptor(descriptor);
  head.check = check;
  head.count = count;
  return Exchange(transport_, &group_, rank_, head, deadline);
}

absl::Status GroupCommunicator::End(absl::Status status) {
  if (status.ok()) return status;
  transport_->Abort(status);
  // Frames that still point at the caller's memory are given up. An earlier
  // cause, from here or from another rank, is the one to report.
  const absl::Status first = transport_->Flush(Deadline::After(kReclaimTime));
  return first.ok() ? status : first;
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
        absl::StrCat("segment offsets must ascend and end within ", limit,
                     ", the last one is ", offsets.back()));
  }
  return absl::OkStatus();
}

absl::Status GroupCommunicator::AllReduce(absl::Span<float> data, Wire wire,
                                          uint64_t check, Deadline deadline) {
  const uint64_t bytes = data.size() * (wire == Wire::kF32 ? 4 : 2);
  const Algorithm algorithm =
      ChooseAlgorithm(Operation::kAllReduce, bytes, size());
  Exchange exchange =
      Begin({Operation::kAllReduce, algorithm, wire, DirectionOf(algorithm)},
            check, data.size(), deadline);
  if (size() == 1) return End(exchange.Flush());
  return End(algorithm == Algorithm::kOneShot
                 ? OneShotAllReduce(exchange, data, wire, scratch_)
                 : RingAllReduce(exchange, data, wire, scratch_));
}

absl::Status GroupCommunicator::AllGather(absl::Span<char> data,
                                          absl::Span<const uint64_t> offsets,
                                          Deadline deadline) {
  absl::Status valid = CheckOffsets(offsets, data.size());
  if (!valid.ok()) return End(std::move(valid));
  const Algorithm algorithm = ChooseAlgorithm(
      Operation::kAllGather, offsets.back() - offsets.front(), size());
  Exchange exchange = Begin(
      {Operation::kAllGather, algorithm, Wire::kF32, DirectionOf(algorithm)},
      HashOffsets(offsets), offsets.back(), deadline);
  return End(algorithm == Algorithm::kOneShot
                 ? OneShotAllGather(exchange, data, offsets)
                 : RingAllGather(exchange, data, offsets));
}

absl::Status GroupCommunicator::ReduceScatter(
    absl::Span<float> data, absl::Span<const uint64_t> offsets, Wire wire,
    Deadline deadline) {
  absl::Status valid = CheckOffsets(offsets, data.size());
  if (!valid.ok()) return End(std::move(valid));
  Exchange exchange = Begin(
      {Operation::kReduceScatter, Algorithm::kRing, wire, Direction::kRight},
      HashOffsets(offsets), offsets.back(), deadline);
  absl::Status status = RingReduceScatter(exchange, data, offsets);
  if (status.ok()) status = exchange.Flush();
  return End(std::move(status));
}

absl::Status GroupCommunicator::Barrier(Deadline deadline) {
  Exchange exchange = Begin(
      {Operation::kBarrier, Algorithm::kOneShot, Wire::kF32, Direction::kNone},
      0, 0, deadline);
  const std::vector<uint64_t> empty(group_.ranks.size() + 1, 0);
  return End(OneShotAllGather(exchange, {}, empty));
}

}  // namespace ringfleet::cluster
