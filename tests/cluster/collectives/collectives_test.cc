// SPDX-License-Identifier: Apache-2.0
// Every operation by every algorithm over all world sizes, wires, odd sizes
// and layouts, against plain sums; bit for bit.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"
#include "cluster/collectives/frame_cuts.h"
#include "cluster/collectives/group_communicator.h"
#include "cluster/process/status_macros.h"
#include "tests/testing/collective_cases.h"
#include "tests/testing/fake_transport.h"
#include "tests/testing/sanitized.h"
#include "tests/testing/soon.h"

namespace ringfleet::cluster {
namespace {

using ::ringfleet::testing::FakeNetwork;
using ::ringfleet::testing::kSanitized;
using ::ringfleet::testing::kSlowdown;
using ::ringfleet::testing::RankOrderPartialSum;
using ::ringfleet::testing::RankOrderSum;
using ::ringfleet::testing::RankValues;
using ::ringfleet::testing::RingOrderSum;
using ::ringfleet::testing::RoundToWire;
using ::ringfleet::testing::Soon;
using ::ringfleet::testing::UnevenOffsets;
using ::testing::Each;

// The longest are cut into several chunks; 7168 with rows of 1000 has groups of
// 104 elements.
struct Shape {
  size_t count;
  size_t row;
};
constexpr Shape kShapes[] = {{0, 0},    {1, 0},       {2, 1},
                             {3, 2},    {129, 0},     {1000, 300},
                             {7168, 0}, {7168, 1000}, {70000, 7000}};
constexpr Shape kLong = {3 * kMaxFrameElements + 700, 5000};
// With which most of them go round a ring in several slices.
constexpr uint64_t kShortSlices = 4096;

std::vector<Shape> ShapesFor(int ranks) {
  std::vector<Shape> shapes(std::begin(kShapes), std::end(kShapes));
  if (ranks > 6) shapes.pop_back();
  if (ranks == 2 || ranks == 3) shapes.push_back(kLong);
  return shapes;
}

// Runs body for every shape and wire on each rank of every world size.
using Body = std::function<absl::Status(GroupCommunicator&, Shape, Wire)>;
void ForAll(Algorithm algorithm, const Body& body) {
  // Under a sanitizer a rank costs tens of times as much, and under that of
  // threads, of which it has one, the most.
  const int most = kSlowdown > 4 ? 3 : 16;
  for (int ranks = 1; ranks <= most; ranks += kSanitized && ranks > 4 ? 4 : 1) {
    FakeNetwork network(ranks, /*piece_bytes=*/1001);
    const auto statuses =
        network.RunOnEveryRank([&](Transport& transport) -> absl::Status {
          GroupCommunicator group(&transport, WorldGroup(ranks),
                                  AlgorithmTable::Only(algorithm, kShortSlices),
                                  nullptr);
          for (const Shape shape : ShapesFor(ranks)) {
            for (const Wire wire : {Wire::kF32, Wire::kBf16, Wire::kInt8}) {
              const absl::Status status = body(group, shape, wire);
              if (!status.ok()) {
                return absl::Status(
                    status.code(),
                    absl::StrCat(ranks, " ranks, rank ", group.rank(), ", ",
                                 shape.count, " elements in rows of ",
                                 shape.row, ", ", WireText(wire), ": ",
                                 status.message()));
              }
            }
          }
          return absl::OkStatus();
        });
    EXPECT_THAT(statuses, Each(absl::OkStatus()));
  }
}

absl::Status Differs(size_t i, float got, float want) {
  return absl::InternalError(
      absl::StrCat("element ", i, " is ", got, ", want ", want));
}

absl::Status ExpectEqual(absl::Span<const float> got,
                         absl::Span<const float> want) {
  const size_t bytes = want.size() * sizeof(float);
  if (bytes == 0 || std::memcmp(got.data(), want.data(), bytes) == 0) {
    return absl::OkStatus();
  }
  for (size_t i = 0; i < want.size(); ++i) {
    if (got[i] != want[i]) return Differs(i, got[i], want[i]);
  }
  return absl::OkStatus();
}

std::vector<float> RoundedSum(int ranks, Shape shape, Wire wire) {
  // A single rank's input is its sum as it is.
  if (ranks == 1) return RankValues(0, shape.count);
  return RankOrderSum(ranks, shape.count, wire, shape.row);
}

class AllReduceSweep : public ::testing::TestWithParam<Algorithm> {};

TEST_P(AllReduceSweep, IsTheRankOrderSumInPlaceOrNot) {
  ForAll(GetParam(), [](GroupCommunicator& group, Shape shape, Wire wire) {
    const Encoding encoding{wire, shape.row};
    const std::vector<float> want = RoundedSum(group.size(), shape, wire);
    const std::vector<float> input = RankValues(group.rank(), shape.count);
    std::vector<float> output(shape.count, -1.0f);
    RF_RETURN_IF_ERROR(
        group.AllReduce(input, absl::MakeSpan(output), encoding, 9, Soon()));
    RF_RETURN_IF_ERROR(ExpectEqual(output, want));
    RF_RETURN_IF_ERROR(
        ExpectEqual(input, RankValues(group.rank(), shape.count)));
    std::vector<float> data = input;
    RF_RETURN_IF_ERROR(
        group.AllReduce(data, absl::MakeSpan(data), encoding, 9, Soon()));
    return ExpectEqual(data, want);
  });
}

INSTANTIATE_TEST_SUITE_P(Direct, AllReduceSweep,
                         ::testing::Values(Algorithm::kOneShot,
                                           Algorithm::kTwoShot),
                         [](const auto& info) {
                           return std::string(AlgorithmText(info.param));
                         });

// The sum of share `owner` as it walked the ring in either direction.
absl::Status ExpectRingSum(absl::Span<const float> got, size_t first,
                           absl::Span<const float> right,
                           absl::Span<const float> left) {
  for (size_t i = 0; i < got.size(); ++i) {
    const size_t at = first + i;
    if (got[i] != right[at] && got[i] != left[at]) {
      return Differs(at, got[i], right[at]);
    }
  }
  return absl::OkStatus();
}

TEST(RingTest, AllReduceSumsEachElementAlongTheRing) {
  ForAll(Algorithm::kRing,
         [](GroupCommunicator& group, Shape shape, Wire wire) -> absl::Status {
           if (wire != Wire::kF32 || group.size() == 1) return absl::OkStatus();
           std::vector<float> data = RankValues(group.rank(), shape.count);
           RF_RETURN_IF_ERROR(
               group.AllReduce(data, absl::MakeSpan(data), {wire}, 0, Soon()));
           if (group.rank() != 0) return absl::OkStatus();
           // Whose share an element is in, the sum may have walked from
           // anywhere.
           std::vector<std::vector<float>> sums;
           for (int owner = 0; owner < group.size(); ++owner) {
             for (const bool right : {true, false}) {
               sums.push_back(
                   RingOrderSum(group.size(), owner, right, shape.count));
             }
           }
           for (size_t i = 0; i < shape.count; ++i) {
             const bool known = std::any_of(sums.begin(), sums.end(),
                                            [&](const std::vector<float>& sum) {
                                              return sum[i] == data[i];
                                            });
             if (!known) return Differs(i, data[i], sums[0][i]);
           }
           return absl::OkStatus();
         });
}

TEST(RingTest, AllReduceRoundsTheSumOnceAndAlikeOnAllRanks) {
  ForAll(Algorithm::kRing,
         [](GroupCommunicator& group, Shape shape, Wire wire) -> absl::Status {
           if (group.size() == 1) return absl::OkStatus();
           const std::vector<float> input =
               RankValues(group.rank(), shape.count);
           const Encoding encoding{wire, shape.row};
           // The sum in float32 follows from the same shares, which follow
           // from the format; gather the ranks' results to compare them.
           std::vector<float> data = input;
           std::vector<float> output(shape.count);
           RF_RETURN_IF_ERROR(group.AllReduce(input, absl::MakeSpan(output),
                                              encoding, 0, Soon()));
           RF_RETURN_IF_ERROR(group.AllReduce(data, absl::MakeSpan(data),
                                              encoding, 0, Soon()));
           RF_RETURN_IF_ERROR(ExpectEqual(data, output));
           std::vector<uint64_t> offsets(group.size() + 1);
           for (size_t r = 0; r < offsets.size(); ++r)
             offsets[r] = r * shape.count;
           std::vector<float> all(offsets.back());
           RF_RETURN_IF_ERROR(group.AllGather(output, absl::MakeSpan(all),
                                              offsets, {}, Soon()));
           for (int rank = 0; rank < group.size(); ++rank) {
             RF_RETURN_IF_ERROR(ExpectEqual(
                 absl::MakeConstSpan(all).subspan(offsets[rank], shape.count),
                 output));
           }
           // Rounding to the wire again changes nothing but by float32's own
           // error in scales: a value on the wire is a value of the wire.
           if (wire == Wire::kBf16) {
             RoundToWire(wire, shape.row, data);
             RF_RETURN_IF_ERROR(ExpectEqual(data, output));
           }
           return absl::OkStatus();
         });
}

TEST(RingTest, ReduceScatterSumsTheOwnShareFromItsNeighbourOn) {
  ForAll(
      Algorithm::kRing,
      [](GroupCommunicator& group, Shape shape, Wire wire) -> absl::Status {
        if (shape.row != 0 && wire == Wire::kInt8) return absl::OkStatus();
        const std::vector<uint64_t> offsets =
            UnevenOffsets(group.size(), shape.count, 128);
        const size_t begin = offsets[group.rank()];
        const size_t size = offsets[group.rank() + 1] - begin;
        const auto right =
            RingOrderSum(group.size(), group.rank(), true, shape.count);
        const auto left =
            RingOrderSum(group.size(), group.rank(), false, shape.count);
        std::vector<float> input = RankValues(group.rank(), shape.count);
        std::vector<float> share(size);
        RF_RETURN_IF_ERROR(group.ReduceScatter(
            absl::MakeSpan(input), absl::MakeSpan(share), offsets,
            {wire, shape.row}, /*check=*/0, Soon()));
        RF_RETURN_IF_ERROR(ExpectRingSum(share, begin, right, left));
        input = RankValues(group.rank(), shape.count);
        RF_RETURN_IF_ERROR(group.ReduceScatter(
            absl::MakeSpan(input), absl::MakeSpan(input).subspan(begin, size),
            offsets, {wire, shape.row}, /*check=*/0, Soon()));
        return ExpectRingSum(absl::MakeConstSpan(input).subspan(begin, size),
                             begin, right, left);
      });
}

// Three ranks: the first and the second share are cut in two, the third is
// empty. Values are whole numbers, whose sums are exact in any order.
TEST(RingTest, SlicesOfUnevenSharesFollowEachOther) {
  constexpr size_t kSlice = kDefaultRingSliceBytes / sizeof(float);
  constexpr int kRanks = 3;
  const std::vector<uint64_t> offsets = {0, kSlice + 128, 6 * kSlice + 1000,
                                         6 * kSlice + 1000};
  const auto value = [](size_t i, int rank) {
    return static_cast<float>(i % 4093 * (rank + 1));
  };
  FakeNetwork network(kRanks, /*piece_bytes=*/70001);
  const auto statuses =
      network.RunOnEveryRank([&](Transport& transport) -> absl::Status {
        GroupCommunicator group(&transport, WorldGroup(kRanks),
                                AlgorithmTable::Only(Algorithm::kRing),
                                nullptr);
        std::vector<float> input(offsets.back());
        std::vector<float> want(offsets.back());
        for (size_t i = 0; i < input.size(); ++i) {
          input[i] = value(i, group.rank());
          want[i] = value(i, 5);  // 1 + 2 + 3 times.
        }
        std::vector<float> sum(input.size());
        RF_RETURN_IF_ERROR(
            group.AllReduce(input, absl::MakeSpan(sum), {}, 0, Soon()));
        RF_RETURN_IF_ERROR(ExpectEqual(sum, want));
        const size_t begin = offsets[group.rank()];
        const size_t size = offsets[group.rank() + 1] - begin;
        RF_RETURN_IF_ERROR(group.ReduceScatter(
            absl::MakeSpan(input), absl::MakeSpan(input).subspan(begin, size),
            offsets, {}, /*check=*/0, Soon()));
        RF_RETURN_IF_ERROR(
            ExpectEqual(absl::MakeConstSpan(input).subspan(begin, size),
                        absl::MakeConstSpan(want).subspan(begin, size)));
        std::fill(sum.begin(), sum.end(), -1.0f);
        std::vector<uint64_t> bytes = offsets;
        for (uint64_t& offset : bytes) offset *= sizeof(float);
        RF_RETURN_IF_ERROR(group.AllGather(
            BytesOf(want.data() + begin, size),
            absl::MakeSpan(reinterpret_cast<char*>(sum.data()), bytes.back()),
            bytes, Soon()));
        return ExpectEqual(sum, want);
      });
  EXPECT_THAT(statuses, Each(absl::OkStatus()));
}

TEST(DirectTest, ReduceScatterIsTheRankOrderSum) {
  ForAll(
      Algorithm::kOneShot,
      [](GroupCommunicator& group, Shape shape, Wire wire) -> absl::Status {
        const size_t row = 0;
        const std::vector<uint64_t> offsets =
            UnevenOffsets(group.size(), shape.count, 128);
        const size_t begin = offsets[group.rank()];
        const size_t size = offsets[group.rank() + 1] - begin;
        const std::vector<float> sum =
            group.size() == 1
                ? RankValues(0, shape.count)
                : RankOrderPartialSum(group.size(), shape.count, wire, row);
        const auto want = absl::MakeConstSpan(sum).subspan(begin, size);
        std::vector<float> input = RankValues(group.rank(), shape.count);
        std::vector<float> share(size);
        RF_RETURN_IF_ERROR(
            group.ReduceScatter(absl::MakeSpan(input), absl::MakeSpan(share),
                                offsets, {wire, row}, /*check=*/0, Soon()));
        RF_RETURN_IF_ERROR(ExpectEqual(share, want));
        RF_RETURN_IF_ERROR(group.ReduceScatter(
            absl::MakeSpan(input), absl::MakeSpan(input).subspan(begin, size),
            offsets, {wire, row}, /*check=*/0, Soon()));
        return ExpectEqual(absl::MakeConstSpan(input).subspan(begin, size),
                           want);
      });
}

class GatherSweep : public ::testing::TestWithParam<Algorithm> {};

TEST_P(GatherSweep, EveryRankEndsWithAllShares) {
  ForAll(GetParam(),
         [](GroupCommunicator& group, Shape shape, Wire wire) -> absl::Status {
           const std::vector<uint64_t> offsets =
               UnevenOffsets(group.size(), shape.count, 128);
           const size_t begin = offsets[group.rank()];
           const size_t size = offsets[group.rank() + 1] - begin;
           const std::vector<float> all = RankValues(99, shape.count);
           std::vector<float> want = all;
           if (group.size() > 1) RoundToWire(wire, 0, want);
           const auto own = absl::MakeConstSpan(all).subspan(begin, size);
           std::vector<float> output(shape.count, -1.0f);
           RF_RETURN_IF_ERROR(group.AllGather(own, absl::MakeSpan(output),
                                              offsets, {wire}, Soon()));
           RF_RETURN_IF_ERROR(ExpectEqual(output, want));
           std::fill(output.begin(), output.end(), -1.0f);
           std::copy(own.begin(), own.end(), output.begin() + begin);
           RF_RETURN_IF_ERROR(group.AllGather(
               absl::MakeConstSpan(output).subspan(begin, size),
               absl::MakeSpan(output), offsets, {wire}, Soon()));
           return ExpectEqual(output, want);
         });
}

TEST_P(GatherSweep, BytesTravelAsTheyAre) {
  ForAll(GetParam(),
         [](GroupCommunicator& group, Shape shape, Wire wire) -> absl::Status {
           if (wire != Wire::kF32) return absl::OkStatus();
           const std::vector<uint64_t> offsets =
               UnevenOffsets(group.size(), shape.count);
           const size_t begin = offsets[group.rank()];
           const size_t size = offsets[group.rank() + 1] - begin;
           std::string all(shape.count, '\0');
           for (size_t i = 0; i < all.size(); ++i) {
             all[i] = static_cast<char>(i * 7 + i / 251);
           }
           std::string output(shape.count, '?');
           RF_RETURN_IF_ERROR(
               group.AllGather(absl::MakeConstSpan(all).subspan(begin, size),
                               absl::MakeSpan(output), offsets, Soon()));
           return output == all ? absl::OkStatus()
                                : absl::InternalError("differs");
         });
}

INSTANTIATE_TEST_SUITE_P(
    All, GatherSweep, ::testing::Values(Algorithm::kOneShot, Algorithm::kRing),
    [](const auto& info) { return std::string(AlgorithmText(info.param)); });

class BroadcastSweep : public ::testing::TestWithParam<Algorithm> {};

TEST_P(BroadcastSweep, EveryRankEndsWithTheRootsValues) {
  ForAll(GetParam(),
         [](GroupCommunicator& group, Shape shape, Wire wire) -> absl::Status {
           for (int root = 0; root < group.size();
                root += 1 + group.size() / 3) {
             std::vector<float> want = RankValues(root, shape.count);
             if (group.size() > 1) RoundToWire(wire, shape.row, want);
             std::vector<float> values = RankValues(group.rank(), shape.count);
             RF_RETURN_IF_ERROR(group.Broadcast(absl::MakeSpan(values), root,
                                                {wire, shape.row}, Soon()));
             RF_RETURN_IF_ERROR(ExpectEqual(values, want));
           }
           return absl::OkStatus();
         });
}

INSTANTIATE_TEST_SUITE_P(All, BroadcastSweep,
                         ::testing::Values(Algorithm::kOneShot,
                                           Algorithm::kRing),
                         [](const auto& info) {
                           return std::string(AlgorithmText(info.param));
                         });

// What rank `from` sends to rank `to`: some parts are empty.
size_t PartSize(int from, int to, size_t count) {
  return count * static_cast<size_t>((from * 5 + to * 3) % 4) / 7;
}

TEST(AllToAllTest, EachPartArrivesAtItsRank) {
  ForAll(
      Algorithm::kOneShot,
      [](GroupCommunicator& group, Shape shape, Wire wire) -> absl::Status {
        std::vector<uint64_t> sent(group.size() + 1);
        std::vector<uint64_t> got(group.size() + 1);
        for (int r = 0; r < group.size(); ++r) {
          sent[r + 1] = sent[r] + PartSize(group.rank(), r, shape.count);
          got[r + 1] = got[r] + PartSize(r, group.rank(), shape.count);
        }
        std::vector<float> input;
        for (int r = 0; r < group.size(); ++r) {
          const auto part =
              RankValues(group.rank() * 16 + r, sent[r + 1] - sent[r]);
          input.insert(input.end(), part.begin(), part.end());
        }
        std::vector<float> output(got.back(), -1.0f);
        RF_RETURN_IF_ERROR(group.AllToAll(input, sent, absl::MakeSpan(output),
                                          got, {wire, shape.row}, Soon()));
        for (int r = 0; r < group.size(); ++r) {
          auto want = RankValues(r * 16 + group.rank(), got[r + 1] - got[r]);
          if (group.size() > 1) RoundToWire(wire, shape.row, want);
          RF_RETURN_IF_ERROR(ExpectEqual(
              absl::MakeConstSpan(output).subspan(got[r], want.size()), want));
        }
        return absl::OkStatus();
      });
}

// Of any size and alignment, none and more than one frame included.
TEST(AllToAllTest, BytesArriveAsTheyAre) {
  constexpr int kRanks = 3;
  const size_t sizes[] = {0, 1, 4099, 3 * kMaxPayloadBytes + 5};
  const auto size = [&](int from, int to) {
    return sizes[(from + 2 * to) % std::size(sizes)];
  };
  const auto byte = [](int from, int to, size_t i) {
    return static_cast<char>(from * 91 + to * 7 + i * 31 + i / 255);
  };
  FakeNetwork network(kRanks);
  const auto statuses =
      network.RunOnEveryRank([&](Transport& transport) -> absl::Status {
        GroupCommunicator group(&transport, WorldGroup(kRanks),
                                AlgorithmTable::Default(), nullptr);
        const int me = group.rank();
        std::vector<uint64_t> sent = {1};
        std::vector<uint64_t> got = {3};
        std::string input = " ";
        std::string want = "---";
        for (int r = 0; r < kRanks; ++r) {
          for (size_t i = 0; i < size(me, r); ++i) input += byte(me, r, i);
          for (size_t i = 0; i < size(r, me); ++i) want += byte(r, me, i);
          sent.push_back(input.size());
          got.push_back(want.size());
        }
        std::string output(want.size(), '-');
        RF_RETURN_IF_ERROR(group.AllToAll(
            input, sent, absl::MakeSpan(output.data(), output.size()), got,
            Soon()));
        return output == want ? absl::OkStatus()
                              : absl::DataLossError("other bytes");
      });
  for (const absl::Status& status : statuses)
    EXPECT_TRUE(status.ok()) << status;
}

TEST(AllToAllTest, PartsThatDisagreeAreAnError) {
  FakeNetwork network(2);
  const auto statuses = network.RunOnEveryRank([&](Transport& transport) {
    GroupCommunicator group(&transport, WorldGroup(2),
                            AlgorithmTable::Default(), nullptr);
    const std::vector<float> input(8);
    std::vector<float> output(9);
    // Rank 0 sends 4 elements and rank 1 expects 5.
    const std::vector<uint64_t> got = transport.rank() == 0
                                          ? std::vector<uint64_t>{0, 4, 8}
                                          : std::vector<uint64_t>{0, 5, 9};
    return group.AllToAll(input, {0, 4, 8}, absl::MakeSpan(output), got, {},
                          Soon());
  });
  // Rank 0 gets what it expects, and may be done before it hears of rank 1.
  EXPECT_TRUE(statuses[0].ok() || statuses[0] == statuses[1]) << statuses[0];
  EXPECT_EQ(statuses[1].code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(statuses[1].message()),
              ::testing::HasSubstr("rank 0 sends 16 bytes"));
}

}  // namespace
}  // namespace ringfleet::cluster
