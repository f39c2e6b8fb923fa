// SPDX-License-Identifier: Apache-2.0
#include "tests/testing/operation_stream.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "cluster/process/status_macros.h"
#include "cluster/wire/wire_format.h"
#include "tests/testing/collective_cases.h"

namespace ringfleet::testing {
namespace {

using cluster::Algorithm;
using cluster::AlgorithmTable;
using cluster::Deadline;
using cluster::Operation;
using cluster::Wire;

// What no value is.
constexpr float kUntouched = -100.0f;

// SplitMix64 (Steele, Lea, Flood, OOPSLA 2014): any counter becomes noise.
uint64_t Mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

class Random {
 public:
  Random(uint64_t seed, int index)
      : state_(Mix(seed) ^ Mix(static_cast<uint64_t>(index) + 1)) {}
  uint64_t Below(uint64_t end) { return (state_ = Mix(state_)) % end; }

 private:
  uint64_t state_;
};

// Integers of -7 to 7: a sum of 16 of them has 7 bits, which bf16 holds too.
std::vector<float> Values(const DrawnOperation& drawn, int rank, size_t count) {
  std::vector<float> values(count);
  uint64_t state = Mix(drawn.values + static_cast<uint64_t>(rank));
  for (float& value : values) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    value = static_cast<float>(static_cast<int>((state >> 40) % 15) - 7);
  }
  return values;
}

void Round(const DrawnOperation& drawn, std::vector<float>& values) {
  RoundToWire(drawn.wire, drawn.row_elements, values);
}

cluster::Encoding EncodingOf(const DrawnOperation& drawn) {
  return {drawn.wire, drawn.row_elements};
}

// Even or uneven, with borders between groups of int8.
std::vector<uint64_t> Offsets(const DrawnOperation& drawn, int ranks) {
  if (drawn.values % 2 == 0) return UnevenOffsets(ranks, drawn.count, 128);
  std::vector<uint64_t> offsets(ranks + 1);
  for (int r = 1; r < ranks; ++r) {
    offsets[r] = drawn.count * r / ranks / 128 * 128;
  }
  offsets[ranks] = drawn.count;
  return offsets;
}

// Elements that `from` sends to `to` in an all-to-all.
size_t PartSize(const DrawnOperation& drawn, int from, int to) {
  return drawn.count * ((drawn.values + from * 5 + to * 3) % 4) / 3;
}

template <typename Value>
absl::Status Compare(absl::Span<const Value> got,
                     absl::Span<const Value> want) {
  for (size_t i = 0; i < want.size(); ++i) {
    if (got[i] == want[i]) continue;
    return absl::InternalError(absl::StrCat(
        "wrong result: element ", i, " of ", want.size(), " is ",
        static_cast<float>(got[i]), ", want ", static_cast<float>(want[i])));
  }
  return absl::OkStatus();
}

absl::Status CompareFloats(absl::Span<const float> got,
                           absl::Span<const float> want) {
  return Compare<float>(got, want);
}

}  // namespace

OperationStream::OperationStream(cluster::Transport* transport,
                                 cluster::FlightRecorder* recorder)
    : rank_(transport->rank()), ranks_(transport->world_size()) {
  tables_ = {AlgorithmTable::Default(),
             AlgorithmTable::Only(Algorithm::kOneShot),
             AlgorithmTable::Only(Algorithm::kTwoShot),
             AlgorithmTable::Only(Algorithm::kRing)};
  for (uint32_t table = 0; table < tables_.size(); ++table) {
    cluster::Group group = cluster::WorldGroup(ranks_);
    group.id = table;
    communicators_.push_back(std::make_unique<cluster::GroupCommunicator>(
        transport, group, tables_[table], recorder));
  }
}

DrawnOperation OperationStream::Draw(uint64_t seed, int index, int ranks) {
  Random random(seed, index);
  DrawnOperation drawn;
  constexpr Operation kOperations[] = {
      Operation::kAllReduce, Operation::kAllReduce, Operation::kAllReduce,
      Operation::kAllGather, Operation::kAllGather, Operation::kReduceScatter,
      Operation::kAllToAll,  Operation::kBroadcast, Operation::kBarrier};
  drawn.operation = kOperations[random.Below(std::size(kOperations))];
  drawn.bytes = random.Below(2) == 0;
  drawn.table = static_cast<int>(random.Below(4));
  drawn.wire = static_cast<Wire>(random.Below(3));
  constexpr uint64_t kLimits[] = {1, 64, 64, 4096, 4096, 70000, 70000, 300000};
  drawn.count = random.Below(kLimits[random.Below(std::size(kLimits))]);
  drawn.root = static_cast<int>(random.Below(ranks));
  drawn.in_place = random.Below(2) == 0;
  drawn.values = random.Below(uint64_t{1} << 48);
  // Rows other than one matter to int8 only, where shares must respect them.
  const bool shares = drawn.operation == Operation::kAllGather ||
                      drawn.operation == Operation::kReduceScatter;
  if (!shares && random.Below(2) == 0)
    drawn.row_elements = 1 + random.Below(999);
  return drawn;
}

std::string OperationStream::Describe(const DrawnOperation& drawn) {
  return absl::StrCat(cluster::OperationText(drawn.operation),
                      drawn.bytes ? " bytes" : "", ", table ", drawn.table,
                      ", ", cluster::WireText(drawn.wire), ", ", drawn.count,
                      " elements in rows of ", drawn.row_elements);
}

absl::Status OperationStream::Run(uint64_t seed, int index, bool misshapen,
                                  Deadline deadline) {
  DrawnOperation drawn = Draw(seed, index, ranks_);
  if (misshapen) {
    if (drawn.operation == Operation::kBarrier ||
        drawn.operation == Operation::kAllToAll) {
      drawn.operation = Operation::kBroadcast;
    }
    ++drawn.count;
  }
  const absl::Status status = RunOne(drawn, deadline);
  if (!absl::IsUnknown(status)) return status;
  return absl::UnknownError(
      absl::StrCat(Describe(drawn), ": ", status.message()));
}

absl::Status OperationStream::RunOne(const DrawnOperation& drawn,
                                     Deadline deadline) {
  switch (drawn.operation) {
    case Operation::kAllReduce:
      return AllReduce(drawn, deadline);
    case Operation::kAllGather:
      return drawn.bytes ? GatherBytes(drawn, deadline)
                         : AllGather(drawn, deadline);
    case Operation::kReduceScatter:
      return ReduceScatter(drawn, deadline);
    case Operation::kAllToAll:
      return AllToAll(drawn, deadline);
    case Operation::kBroadcast:
      return Broadcast(drawn, deadline);
    case Operation::kBarrier:
      return communicators_[drawn.table]->Barrier(deadline);
    case Operation::kAllGatherMatmul:
    case Operation::kMatmulReduceScatter:
      break;  // Never drawn: they need products (tests/worker).
  }
  return absl::InternalError("no such operation");
}

Algorithm OperationStream::AlgorithmOf(const DrawnOperation& drawn) const {
  const cluster::WireFormat format(drawn.wire, drawn.row_elements);
  return tables_[drawn.table].Choose(
      drawn.operation, format.EncodedBytes(0, drawn.count), ranks_);
}

std::vector<float> OperationStream::Sum(const DrawnOperation& drawn) const {
  // A ring's partial sums are float32; the others round each partial.
  const bool partials = AlgorithmOf(drawn) != Algorithm::kRing;
  std::vector<float> sum(drawn.count);
  for (int rank = 0; rank < ranks_; ++rank) {
    std::vector<float> part = Values(drawn, rank, drawn.count);
    if (partials) Round(drawn, part);
    for (size_t i = 0; i < sum.size(); ++i) {
      sum[i] = rank == 0 ? part[i] : sum[i] + part[i];
    }
  }
  return sum;
}

absl::Status OperationStream::AllReduce(const DrawnOperation& drawn,
                                        Deadline deadline) {
  input_ = Values(drawn, rank_, drawn.count);
  output_.assign(drawn.in_place ? 0 : drawn.count, kUntouched);
  const absl::Span<float> result =
      absl::MakeSpan(drawn.in_place ? input_ : output_);
  RF_RETURN_IF_ERROR(communicators_[drawn.table]->AllReduce(
      input_, result, EncodingOf(drawn), drawn.values, deadline));
  std::vector<float> want = Sum(drawn);
  Round(drawn, want);
  return CompareFloats(result, want);
}

absl::Status OperationStream::AllGather(const DrawnOperation& drawn,
                                        Deadline deadline) {
  const std::vector<uint64_t> offsets = Offsets(drawn, ranks_);
  const size_t begin = offsets[rank_];
  const size_t size = offsets[rank_ + 1] - begin;
  std::vector<float> want = Values(drawn, 0, drawn.count);
  output_.assign(drawn.count, kUntouched);
  input_.assign(want.begin() + begin, want.begin() + begin + size);
  absl::Span<const float> share = input_;
  if (drawn.in_place) {
    std::copy(input_.begin(), input_.end(), output_.begin() + begin);
    share = absl::MakeConstSpan(output_).subspan(begin, size);
  }
  RF_RETURN_IF_ERROR(communicators_[drawn.table]->AllGather(
      share, absl::MakeSpan(output_), offsets, EncodingOf(drawn), deadline));
  Round(drawn, want);
  return CompareFloats(output_, want);
}

absl::Status OperationStream::GatherBytes(const DrawnOperation& drawn,
                                          Deadline deadline) {
  const std::vector<uint64_t> offsets = Offsets(drawn, ranks_);
  const size_t begin = offsets[rank_];
  const size_t size = offsets[rank_ + 1] - begin;
  std::string want(drawn.count, '\0');
  for (size_t i = 0; i < want.size(); ++i) {
    want[i] = static_cast<char>((drawn.values + i) * 7 + i / 251);
  }
  input_bytes_ = want.substr(begin, size);
  output_bytes_.assign(drawn.count, '?');
  RF_RETURN_IF_ERROR(communicators_[drawn.table]->AllGather(
      input_bytes_, absl::MakeSpan(output_bytes_), offsets, deadline));
  return Compare<char>(output_bytes_, want);
}

absl::Status OperationStream::ReduceScatter(const DrawnOperation& drawn,
                                            Deadline deadline) {
  const std::vector<uint64_t> offsets = Offsets(drawn, ranks_);
  const size_t begin = offsets[rank_];
  const size_t size = offsets[rank_ + 1] - begin;
  input_ = Values(drawn, rank_, drawn.count);
  output_.assign(size, kUntouched);
  const absl::Span<float> share =
      drawn.in_place ? absl::MakeSpan(input_).subspan(begin, size)
                     : absl::MakeSpan(output_);
  RF_RETURN_IF_ERROR(communicators_[drawn.table]->ReduceScatter(
      absl::MakeSpan(input_), share, offsets, EncodingOf(drawn), /*check=*/0,
      deadline));
  const std::vector<float> want = Sum(drawn);
  return CompareFloats(share, absl::MakeConstSpan(want).subspan(begin, size));
}

absl::Status OperationStream::AllToAll(const DrawnOperation& drawn,
                                       Deadline deadline) {
  std::vector<uint64_t> sent(ranks_ + 1);
  std::vector<uint64_t> got(ranks_ + 1);
  std::vector<float> want;
  input_.clear();
  for (int r = 0; r < ranks_; ++r) {
    const std::vector<float> out =
        Values(drawn, rank_ * 16 + r, PartSize(drawn, rank_, r));
    std::vector<float> in =
        Values(drawn, r * 16 + rank_, PartSize(drawn, r, rank_));
    Round(drawn, in);
    input_.insert(input_.end(), out.begin(), out.end());
    want.insert(want.end(), in.begin(), in.end());
    sent[r + 1] = input_.size();
    got[r + 1] = want.size();
  }
  output_.assign(want.size(), kUntouched);
  RF_RETURN_IF_ERROR(communicators_[drawn.table]->AllToAll(
      input_, sent, absl::MakeSpan(output_), got, EncodingOf(drawn), deadline));
  return CompareFloats(output_, want);
}

absl::Status OperationStream::Broadcast(const DrawnOperation& drawn,
                                        Deadline deadline) {
  input_ = Values(drawn, rank_, drawn.count);
  RF_RETURN_IF_ERROR(communicators_[drawn.table]->Broadcast(
      absl::MakeSpan(input_), drawn.root, EncodingOf(drawn), deadline));
  std::vector<float> want = Values(drawn, drawn.root, drawn.count);
  Round(drawn, want);
  return CompareFloats(input_, want);
}

}  // namespace ringfleet::testing
