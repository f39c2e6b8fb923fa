// SPDX-License-Identifier: Apache-2.0
#include "worker/measuring/collective_case.h"

#include <xxhash.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "cluster/collectives/send_arena.h"
#include "cluster/transport/link_transport.h"
#include "kernels/check.h"
#include "kernels/dtype.h"
#include "kernels/reduce.h"

namespace ringfleet::worker {
namespace {

using cluster::Algorithm;
using cluster::Operation;
using cluster::Wire;
using kernels::kInt8GroupElements;

// Expected results are computed in blocks of this many elements: whole groups
// of the int8 wire, small enough for the cache.
constexpr size_t kBlock = 64 * kInt8GroupElements;

// Unit roundoff of float32 and bfloat16: half the distance of 1 to its
// successor.
constexpr double kF32Rounding = 0x1p-24;
constexpr double kBf16Rounding = 0x1p-8;

// splitmix64's finaliser: every bit of `x` decides about every bit of the
// result.
uint64_t Mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

// Rounds `values`, which begin a quantisation group, to the wire.
void Round(Wire wire, absl::Span<float> values) {
  if (wire == Wire::kBf16) {
    for (float& value : values) value = kernels::RoundToBf16(value);
    return;
  }
  if (wire == Wire::kF32) return;
  for (size_t i = 0; i < values.size(); i += kInt8GroupElements) {
    const size_t count = std::min(kInt8GroupElements, values.size() - i);
    char codes[kInt8GroupElements];
    const float scale =
        kernels::EncodeInt8Group(values.data() + i, count, codes);
    kernels::DecodeInt8Group(codes, count, scale, values.data() + i);
  }
}

uint64_t CountDifferences(absl::Span<const float> found,
                          absl::Span<const float> expected) {
  uint64_t wrong = 0;
  for (size_t i = 0; i < found.size(); ++i) {
    wrong += std::bit_cast<uint32_t>(found[i]) !=
             std::bit_cast<uint32_t>(expected[i]);
  }
  return wrong;
}

// Calls body(begin, end) for consecutive blocks of a part. Each block begins a
// quantisation group if the part does.
template <typename Body>
uint64_t SumOverBlocks(size_t begin, size_t end, Body&& body) {
  uint64_t sum = 0;
  for (size_t at = begin; at < end; at += kBlock) {
    sum += body(at, std::min(end, at + kBlock));
  }
  return sum;
}

}  // namespace

float GeneratedElement(int rank, size_t index) {
  const uint64_t bits =
      Mix(Mix(index + 1) + static_cast<uint64_t>(rank) * 0x9e3779b97f4a7c15u);
  const auto significand = static_cast<int32_t>(bits >> 40) - (1 << 23);
  static constexpr float kScales[] = {0x1p-23f, 0x1p-24f, 0x1p-25f, 0x1p-26f,
                                      0x1p-27f, 0x1p-28f, 0x1p-29f, 0x1p-30f};
  return static_cast<float>(significand) * kScales[bits & 7];
}

uint64_t WireBytes(Wire wire, uint64_t count) {
  switch (wire) {
    case Wire::kF32:
      return 4 * count;
    case Wire::kBf16:
      return 2 * count;
    case Wire::kInt8:
      break;
  }
  const uint64_t groups =
      count / kInt8GroupElements + (count % kInt8GroupElements != 0 ? 1 : 0);
  return count + groups * sizeof(float);
}

CollectiveCase::CollectiveCase(cluster::Communicator* communicator,
                               const Spec& spec)
    : communicator_(communicator),
      spec_(spec),
      rank_(communicator->rank()),
      size_(communicator->size()) {
  // Shares are as even as the count allows. On an int8 wire, shares begin with
  // a quantisation group.
  const auto ranks = static_cast<size_t>(size_);
  for (size_t r = 0; r <= ranks; ++r) {
    size_t offset = spec.count / ranks * r + spec.count % ranks * r / ranks;
    if (spec.wire == Wire::kInt8 && r < ranks) {
      offset -= offset % kInt8GroupElements;
    }
    offsets_.push_back(offset);
  }
  const size_t own = offsets_[rank_ + 1] - offsets_[rank_];
  input_.resize(spec.count);
  switch (spec.operation) {
    case Operation::kAllReduce:
    case Operation::kAllGather:
      output_.resize(spec.count);
      break;
    case Operation::kReduceScatter:
      output_.resize(own);
      break;
    case Operation::kAllToAll:
      output_.resize(own * ranks);
      for (size_t r = 0; r <= ranks; ++r) output_offsets_.push_back(own * r);
      break;
    case Operation::kBroadcast:
    case Operation::kBarrier:
      break;  // In place, and nothing.
    case Operation::kAllGatherMatmul:
    case Operation::kMatmulReduceScatter:
      RF_CHECK(false);
  }
  Reset();
}

uint64_t CollectiveCase::MemoryBytes(const Spec& spec, int ranks) {
  const uint64_t vector = sizeof(float) * static_cast<uint64_t>(spec.count);
  const uint64_t encoded =
      spec.wire == Wire::kF32
          ? 0
          : cluster::SendArena::kBlocks * WireBytes(spec.wire, spec.count);
  const uint64_t arrived =
      static_cast<uint64_t>(ranks - 1) *
      std::min<uint64_t>(
          vector, cluster::CollectiveEndpoint::Options().max_queued_bytes);
  return 2 * vector + encoded + arrived;  // Input and output.
}

void CollectiveCase::Reset() {
  const bool from_root = spec_.operation == Operation::kBroadcast && rank_ != 0;
  const float spoilt = std::numeric_limits<float>::quiet_NaN();
  for (size_t i = 0; i < input_.size(); ++i) {
    input_[i] = from_root ? spoilt : GeneratedElement(rank_, i);
  }
  std::fill(output_.begin(), output_.end(), spoilt);
}

absl::Status CollectiveCase::Run(cluster::Deadline deadline) {
  const cluster::Encoding encoding{.wire = spec_.wire};
  const auto input = absl::MakeSpan(input_);
  const auto output = absl::MakeSpan(output_);
  switch (spec_.operation) {
    case Operation::kAllReduce:
      return communicator_->AllReduce(input, output, encoding, /*check=*/0,
                                      deadline);
    case Operation::kAllGather:
      return communicator_->AllGather(
          absl::Span<const float>(input).subspan(
              offsets_[rank_], offsets_[rank_ + 1] - offsets_[rank_]),
          output, offsets_, encoding, deadline);
    case Operation::kReduceScatter:
      return communicator_->ReduceScatter(input, output, offsets_, encoding,
                                          /*check=*/0, deadline);
    case Operation::kAllToAll:
      return communicator_->AllToAll(input, offsets_, output, output_offsets_,
                                     encoding, deadline);
    case Operation::kBroadcast:
      return communicator_->Broadcast(input, /*root=*/0, encoding, deadline);
    case Operation::kBarrier:
      return communicator_->Barrier(deadline);
    case Operation::kAllGatherMatmul:
    case Operation::kMatmulReduceScatter:
      break;
  }
  return absl::InvalidArgumentError("no such collective");
}

bool CollectiveCase::Replicated() const {
  return spec_.operation != Operation::kReduceScatter &&
         spec_.operation != Operation::kAllToAll;
}

absl::Span<const float> CollectiveCase::result() const {
  return spec_.operation == Operation::kBroadcast ? input_ : output_;
}

uint64_t CollectiveCase::ResultHash() const {
  return XXH64(result().data(), result().size() * sizeof(float), /*seed=*/0);
}

std::vector<CollectiveCase::Part> CollectiveCase::Parts() const {
  std::vector<Part> parts;
  switch (spec_.operation) {
    case Operation::kAllReduce:
      parts.push_back({Part::kSum, 0, spec_.count, 0});
      break;
    case Operation::kReduceScatter:
      parts.push_back({Part::kSum, offsets_[rank_], offsets_[rank_ + 1], 0});
      break;
    case Operation::kAllGather:
      for (int r = 0; r < size_; ++r) {
        parts.push_back({r, offsets_[r], offsets_[r + 1], offsets_[r]});
      }
      break;
    case Operation::kAllToAll:
      for (int r = 0; r < size_; ++r) {
        parts.push_back(
            {r, offsets_[rank_], offsets_[rank_ + 1], output_offsets_[r]});
      }
      break;
    case Operation::kBroadcast:
      parts.push_back({/*source=*/0, 0, spec_.count, 0});
      break;
    case Operation::kBarrier:
    case Operation::kAllGatherMatmul:
    case Operation::kMatmulReduceScatter:
      break;
  }
  return parts;
}

uint64_t CollectiveCase::CountWrong() {
  uint64_t wrong = 0;
  for (const Part& part : Parts()) {
    wrong += part.source != Part::kSum             ? CountWrongCopies(part)
             : spec_.algorithm == Algorithm::kRing ? CountDistantSums(part)
                                                   : CountWrongSums(part);
  }
  return wrong;
}

// A quantisation group of the wire begins at `begin`, as in all shares. A
// single rank sends nothing, so nothing is rounded.
void CollectiveCase::Contribution(int rank, size_t begin, size_t end,
                                  float* out) const {
  for (size_t i = begin; i < end; ++i) {
    out[i - begin] = GeneratedElement(rank, i);
  }
  if (size_ > 1) Round(spec_.wire, absl::MakeSpan(out, end - begin));
}

uint64_t CollectiveCase::CountWrongCopies(const Part& part) const {
  std::vector<float> expected(kBlock);
  return SumOverBlocks(part.begin, part.end, [&](size_t begin, size_t end) {
    Contribution(part.source, begin, end, expected.data());
    return CountDifferences(
        result().subspan(part.first + begin - part.begin, end - begin),
        absl::MakeSpan(expected).subspan(0, end - begin));
  });
}

uint64_t CollectiveCase::CountWrongSums(const Part& part) const {
  std::vector<float> sum(kBlock);
  std::vector<float> term(kBlock);
  return SumOverBlocks(part.begin, part.end, [&](size_t begin, size_t end) {
    Contribution(0, begin, end, sum.data());
    for (int r = 1; r < size_; ++r) {
      Contribution(r, begin, end, term.data());
      for (size_t i = 0; i < end - begin; ++i) sum[i] += term[i];
    }
    const auto expected = absl::MakeSpan(sum).subspan(0, end - begin);
    if (spec_.operation == Operation::kAllReduce && size_ > 1) {
      Round(spec_.wire, expected);
    }
    return CountDifferences(
        result().subspan(part.first + begin - part.begin, end - begin),
        expected);
  });
}

// With u = 2^-24, a float32 sum s of n terms x in any order obeys
// |s - sum x| <= (n - 1) u sum |x| / (1 - (n - 1) u) (Higham, Accuracy and
// Stability of Numerical Algorithms, section 4.2). An all_reduce then rounds s
// to the wire: by 2^-8 |s| for bfloat16, by half a scale for int8, where the
// scale is the group's largest |s| over 127 and three float32 operations round.
uint64_t CollectiveCase::CountDistantSums(const Part& part) const {
  const double share = (size_ - 1) * kF32Rounding;
  const double rounding = share / (1 - share);
  const Wire wire = spec_.operation == Operation::kAllReduce && size_ > 1
                        ? spec_.wire
                        : Wire::kF32;
  std::vector<double> sum(kBlock);
  std::vector<double> bound(kBlock);
  return SumOverBlocks(part.begin, part.end, [&](size_t begin, size_t end) {
    const size_t count = end - begin;
    for (size_t i = 0; i < count; ++i) {
      double total = 0;
      double magnitude = 0;
      for (int r = 0; r < size_; ++r) {
        const double x = GeneratedElement(r, begin + i);
        total += x;
        magnitude += std::abs(x);
      }
      sum[i] = total;
      bound[i] = rounding * magnitude;
      if (wire == Wire::kBf16) {
        bound[i] += kBf16Rounding * (std::abs(total) + bound[i]);
      }
    }
    if (wire == Wire::kInt8) {
      for (size_t group = 0; group < count; group += kInt8GroupElements) {
        const size_t last = std::min(count, group + kInt8GroupElements);
        double largest = 0;
        for (size_t i = group; i < last; ++i) {
          largest = std::max(largest, std::abs(sum[i]) + bound[i]);
        }
        const double step = largest / 127 * (0.5 + 127 * 4 * kF32Rounding);
        for (size_t i = group; i < last; ++i) bound[i] += step;
      }
    }
    uint64_t wrong = 0;
    const auto found = result().subspan(part.first + begin - part.begin, count);
    for (size_t i = 0; i < count; ++i) {
      // Not "greater": a NaN is wrong too.
      wrong += !(std::abs(found[i] - sum[i]) <= bound[i]);
    }
    return wrong;
  });
}

}  // namespace ringfleet::worker
