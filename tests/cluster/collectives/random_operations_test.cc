// SPDX-License-Identifier: Apache-2.0
// Random streams of operations over every transport. All of a stream follows
// from one seed: the world's size, two groups that split it, and for each
// operation its kind, algorithm, wire, rows, sizes, borders, buffers and
// values. Every rank compares what it gets, bit for bit, with sums in rank
// order that it computes from all ranks' values; where a ring chooses the order
// of a sum, with that of float64 within the bound of the roundings, and all
// ranks must hold the same bits.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "cluster/collectives/group_communicator.h"
#include "tests/cluster/collectives/random_steps.h"
#include "tests/testing/fake_transport.h"
#include "tests/testing/grpc_world.h"
#include "tests/testing/sanitized.h"

namespace ringfleet::cluster {
namespace {

using ::ringfleet::testing::FakeNetwork;
using ::ringfleet::testing::GrpcWorld;
using ::ringfleet::testing::kSanitized;
using ::ringfleet::testing::kSlowdown;

Deadline Unhurried() { return Deadline::After(absl::Seconds(120) * kSlowdown); }

template <typename T>
uint64_t HashOf(absl::Span<const T> values) {
  return std::hash<std::string_view>()(
      {reinterpret_cast<const char*>(values.data()),
       values.size() * sizeof(T)});
}

// What a rank saw of one step.
struct Seen {
  absl::Status transport;  // An operation's error: the epoch is over.
  absl::Status result;     // What differs from the reference.
  uint64_t hash = 0;       // Of what all ranks must hold alike.
};

// Runs one step on one rank of its group and checks what comes out.
class StepRunner {
 public:
  StepRunner(GroupCommunicator& group, const Step& step)
      : group_(group), step_(step), ranks_(group.size()), me_(group.rank()) {}

  Seen Run() {
    switch (step_.operation) {
      case Operation::kAllReduce:
        AllReduce();
        break;
      case Operation::kAllGather:
        step_.bytes ? GatherBytes() : GatherFloats();
        break;
      case Operation::kReduceScatter:
        ReduceScatter();
        break;
      case Operation::kAllToAll:
        AllToAll();
        break;
      case Operation::kBroadcast:
        Broadcast();
        break;
      default:
        seen_.transport = group_.Barrier(Unhurried());
    }
    return seen_;
  }

 private:
  Wire wire() const { return step_.encoding.wire; }
  size_t row() const { return step_.encoding.row_elements; }
  size_t begin() const { return step_.offsets[me_]; }
  size_t end() const { return step_.offsets[me_ + 1]; }
  std::vector<float> Of(int rank, size_t count) const {
    return Values(step_.seed, rank, count);
  }
  void Rounded(std::vector<float>& values) const {
    if (ranks_ > 1) ToWire(wire(), row(), values);
  }
  bool IsRing(size_t first, size_t last) const {
    return ranks_ > 1 &&
           TableOf(step_).Choose(step_.operation,
                                 EncodedBytes(step_.encoding, first, last),
                                 ranks_) == Algorithm::kRing;
  }

  // In rank order, each partial as it travels.
  std::vector<float> Sum(size_t count) const {
    std::vector<float> sum = Of(0, count);
    Rounded(sum);
    for (int rank = 1; rank < ranks_; ++rank) {
      std::vector<float> part = Of(rank, count);
      Rounded(part);
      for (size_t i = 0; i < count; ++i) sum[i] += part[i];
    }
    return sum;
  }

  // A sum of n values in float32 in any order is off by at most
  // (n - 1) u / (1 - (n - 1) u) times the sum of their magnitudes, u = 2^-24;
  // n u is more than that for n <= 16. Bf16 then rounds to 8 bits; int8 to half
  // a step of max / 127, where the three roundings of scale, inverse and
  // product move the 127 codes by less than 2^-14.
  absl::Status NearSum(absl::Span<const float> got) const {
    std::vector<double> sum(got.size()), bound(got.size());
    for (int rank = 0; rank < ranks_; ++rank) {
      const std::vector<float> part = Of(rank, got.size());
      for (size_t i = 0; i < got.size(); ++i) {
        sum[i] += part[i];
        bound[i] += std::fabs(part[i]);
      }
    }
    for (double& value : bound) value *= std::ldexp(ranks_, -24);
    for (size_t first = 0; first < got.size();) {
      size_t last = first + 1;
      if (wire() == Wire::kInt8) {
        while (last < got.size() && GroupBegin(row(), last) == first) ++last;
      }
      double max = 0;
      for (size_t i = first; i < last; ++i) {
        max = std::max(max, std::fabs(sum[i]) + bound[i]);
      }
      double rounding = 0;
      if (wire() == Wire::kBf16) rounding = std::ldexp(max, -8);
      if (wire() == Wire::kInt8) {
        rounding = (0.5 + std::ldexp(1, -14)) * max / 127;
      }
      for (size_t i = first; i < last; ++i) {
        if (!(std::fabs(got[i] - sum[i]) <= bound[i] + rounding)) {
          return absl::InternalError(absl::StrCat("element ", i, " is ", got[i],
                                                  ", want ", sum[i], " within ",
                                                  bound[i] + rounding));
        }
      }
      first = last;
    }
    return absl::OkStatus();
  }

  void AllReduce() {
    const std::vector<float> own = Of(me_, step_.count);
    Buffer<float> input(own, step_.shift);
    Buffer<float> output(step_.count, step_.shift);
    Buffer<float>& result = step_.in_place ? input : output;
    seen_.transport = group_.AllReduce(input.span(), result.span(),
                                       step_.encoding, step_.seed, Unhurried());
    if (!seen_.transport.ok()) return;
    if (!step_.in_place) Expect(input.Check(0, step_.count, own.data()));
    const absl::Span<const float> got = result.span();
    seen_.hash = HashOf(got);
    if (IsRing(0, step_.count)) {
      Expect(NearSum(got));
      Expect(result.Check(0, step_.count, got.data()));
      return;
    }
    std::vector<float> want = Sum(step_.count);
    Rounded(want);
    Expect(result.Check(0, step_.count, want.data()));
  }

  void ReduceScatter() {
    const std::vector<float> own = Of(me_, step_.count);
    Buffer<float> input(own, step_.shift);
    Buffer<float> output(end() - begin(), step_.shift);
    const auto place = input.span().subspan(begin(), end() - begin());
    const auto share = step_.in_place ? place : output.span();
    seen_.transport =
        group_.ReduceScatter(input.span(), share, step_.offsets, step_.encoding,
                             /*check=*/0, Unhurried());
    if (!seen_.transport.ok()) return;
    std::vector<float> want = Sum(step_.count);
    if (IsRing(step_.offsets.front(), step_.count)) {
      // A share's sum ends at its owner, having come from the rank behind it
      // to the right, or from the one before it to the left.
      for (size_t i = begin(); i < end(); ++i) want[i] = share[i - begin()];
      const std::vector<float> right = Walk(1), left = Walk(-1);
      for (size_t i = begin(); i < end(); ++i) {
        if (want[i] != right[i] && want[i] != left[i]) want[i] = right[i];
      }
    }
    // The rest of the input is unspecified.
    if (step_.in_place) {
      Expect(input.Check(begin(), end(), want.data() + begin(), false));
    } else {
      Expect(output.Check(0, end() - begin(), want.data() + begin()));
      Expect(input.Check(0, 0, nullptr, false));
    }
  }

  std::vector<float> Walk(int sign) const {
    std::vector<float> sum;
    for (int hop = 1; hop <= ranks_; ++hop) {
      const int rank = (me_ + sign * hop + 2 * ranks_) % ranks_;
      const std::vector<float> part = Of(rank, step_.count);
      if (hop == 1) {
        sum = part;
        continue;
      }
      for (size_t i = 0; i < sum.size(); ++i) sum[i] += part[i];
    }
    return sum;
  }

  template <typename T, typename Gather>
  void GatherValues(const std::vector<T>& all, const std::vector<T>& want,
                    Gather gather) {
    const std::vector<T> own(all.begin() + begin(), all.begin() + end());
    Buffer<T> share(own, step_.shift);
    Buffer<T> output(step_.count, step_.shift);
    const auto place = output.span().subspan(begin(), own.size());
    if (step_.in_place) std::copy(own.begin(), own.end(), place.begin());
    const absl::Span<const T> sent = step_.in_place ? place : share.span();
    seen_.transport = gather(sent, output.span());
    if (!seen_.transport.ok()) return;
    seen_.hash = HashOf<T>(output.span());
    const size_t first = step_.offsets.front();
    Expect(output.Check(first, step_.count, want.data() + first));
    Expect(share.Check(0, own.size(), own.data()));
  }

  void GatherFloats() {
    const std::vector<float> all = Of(99, step_.count);
    std::vector<float> want = all;
    Rounded(want);
    GatherValues(all, want, [&](auto share, auto output) {
      return group_.AllGather(share, output, step_.offsets, step_.encoding,
                              Unhurried());
    });
  }

  void GatherBytes() {
    std::vector<char> all(step_.count);
    for (size_t i = 0; i < all.size(); ++i) {
      all[i] = static_cast<char>(Mix(step_.seed + i));
    }
    GatherValues(all, all, [&](auto share, auto output) {
      return group_.AllGather(share, output, step_.offsets, Unhurried());
    });
  }

  // What rank `from` sends to rank `to`; some parts are empty.
  size_t PartSize(int from, int to) const {
    const uint64_t bits =
        Mix(step_.seed + static_cast<uint64_t>(from * 64 + to));
    return bits % 4 == 0 ? 0 : (bits >> 8) % (step_.count / ranks_ + 1);
  }

  void AllToAll() {
    std::vector<uint64_t> sent(ranks_ + 1, step_.seed % 3);
    std::vector<uint64_t> got(ranks_ + 1, step_.seed % 5);
    std::vector<float> values(sent[0]);
    std::vector<float> want;
    for (int r = 0; r < ranks_; ++r) {
      const auto part = Of(me_ * 64 + r, PartSize(me_, r));
      values.insert(values.end(), part.begin(), part.end());
      sent[r + 1] = values.size();
      auto expected = Of(r * 64 + me_, PartSize(r, me_));
      Rounded(expected);
      want.insert(want.end(), expected.begin(), expected.end());
      got[r + 1] = got[0] + want.size();
    }
    Buffer<float> input(values, step_.shift);
    Buffer<float> output(got.back(), step_.shift);
    seen_.transport = group_.AllToAll(input.span(), sent, output.span(), got,
                                      step_.encoding, Unhurried());
    if (!seen_.transport.ok()) return;
    Expect(input.Check(0, values.size(), values.data()));
    Expect(output.Check(got.front(), got.back(), want.data()));
  }

  void Broadcast() {
    Buffer<float> values(Of(me_, step_.count), step_.shift);
    seen_.transport = group_.Broadcast(values.span(), step_.root,
                                       step_.encoding, Unhurried());
    if (!seen_.transport.ok()) return;
    seen_.hash = HashOf<float>(values.span());
    std::vector<float> want = Of(step_.root, step_.count);
    Rounded(want);
    Expect(values.Check(0, step_.count, want.data()));
  }

  void Expect(const absl::Status& status) { seen_.result.Update(status); }

  GroupCommunicator& group_;
  const Step& step_;
  const int ranks_;
  const int me_;
  Seen seen_;
};

enum class Network { kMemory, kStreams, kSharedMemory };

constexpr absl::string_view kNetworks[] = {"memory", "gRPC streams",
                                           "shared memory"};

// One world and its stream of operations.
class Stream {
 public:
  Stream(uint64_t seed, Network network, int ranks, int steps)
      : seed_(seed), network_(network), ranks_(ranks), steps_(steps) {
    groups_[0] = WorldGroup(ranks).ranks;
    std::vector<int> order = groups_[0];
    Random random(Mix(seed));
    for (size_t i = order.size(); i > 1; --i) {
      std::swap(order[i - 1], order[random.Below(i)]);
    }
    const size_t cut = ranks < 2 ? 0 : 1 + random.Below(ranks - 1);
    groups_[1].assign(order.begin(), order.begin() + cut);
    groups_[2].assign(order.begin() + cut, order.end());
  }

  // Returns the number of operations that groups have completed.
  int Run() {
    std::vector<std::vector<Seen>> seen(ranks_);
    if (network_ == Network::kMemory) {
      FakeNetwork world(ranks_, /*piece_bytes=*/1 + Mix(seed_ + 1) % 5000);
      world.RunOnEveryRank([&](Transport& transport) {
        seen[transport.rank()] = RunRank(transport);
        return absl::OkStatus();
      });
    } else {
      GrpcWorld world(ranks_, {.spin = Spin::kNever, .warm_up_bytes = 0},
                      network_ == Network::kStreams ? TransportKind::kGrpc
                                                    : TransportKind::kAuto);
      for (const int group : {1, 2}) {
        if (groups_[group].size() > 1) {
          world.world().rings.push_back(groups_[group]);
        }
      }
      world.RunConnected([&](Transport& transport) {
        const int lanes = world.endpoint(transport.rank()).shared_lanes();
        EXPECT_EQ(lanes > 0, network_ == Network::kSharedMemory && ranks_ > 1);
        seen[transport.rank()] = RunRank(transport);
      });
    }
    return Compare(seen);
  }

 private:
  // The group of `rank` in a step; one step in three is the sub-groups'.
  int GroupOf(int rank, int step) const {
    if (ranks_ < 2 || Mix(seed_ * 1000 + step) % 3 != 0) return 0;
    return std::count(groups_[1].begin(), groups_[1].end(), rank) > 0 ? 1 : 2;
  }
  Step StepOf(int group, int step) const {
    return RandomStep(Mix(seed_) + static_cast<uint64_t>(step * 3 + group),
                      static_cast<int>(groups_[group].size()));
  }

  std::vector<Seen> RunRank(Transport& transport) const {
    std::array<std::array<std::unique_ptr<GroupCommunicator>, 4>, 3> all;
    std::vector<Seen> seen;
    for (int i = 0; i < steps_; ++i) {
      const int group = GroupOf(transport.rank(), i);
      const Step step = StepOf(group, i);
      auto& communicator = all[group][step.table];
      if (communicator == nullptr || step.fresh) {
        const auto id = static_cast<uint32_t>(group * 10 + step.table);
        communicator = std::make_unique<GroupCommunicator>(
            &transport, Group{id, groups_[group]}, TableOf(step), nullptr);
      }
      seen.push_back(StepRunner(*communicator, step).Run());
      if (!seen.back().transport.ok()) break;
    }
    return seen;
  }

  int Compare(const std::vector<std::vector<Seen>>& seen) const {
    int operations = 0;
    for (int i = 0; i < steps_; ++i) {
      std::array<const Seen*, 3> first = {};
      for (int rank = 0; rank < ranks_; ++rank) {
        const int group = GroupOf(rank, i);
        const auto where = [&] {
          return absl::StrCat("seed ", seed_, " over ",
                              kNetworks[static_cast<int>(network_)], ", ",
                              ranks_, " ranks, step ", i, ", group ", group,
                              " of ", groups_[group].size(), ", rank ", rank,
                              ": ", StepOf(group, i).Text());
        };
        if (static_cast<int>(seen[rank].size()) <= i) {
          ADD_FAILURE() << where() << ": not reached";
          return operations;
        }
        const Seen& own = seen[rank][i];
        EXPECT_TRUE(own.transport.ok()) << where() << ": " << own.transport;
        EXPECT_TRUE(own.result.ok()) << where() << ": " << own.result;
        if (first[group] == nullptr) {
          first[group] = &own;
          ++operations;
        }
        EXPECT_EQ(own.hash, first[group]->hash) << where();
      }
      if (::testing::Test::HasFailure()) return operations;
    }
    return operations;
  }

  const uint64_t seed_;
  const Network network_;
  const int ranks_;
  const int steps_;
  std::array<std::vector<int>, 3> groups_;  // The world, and a split of it.
};

// A part of what takes seconds without a sanitizer.
constexpr int kSliceSteps = kSanitized ? (kSlowdown > 4 ? 15 : 40) : 100;

class RandomOperationsTest : public ::testing::TestWithParam<Network> {};

INSTANTIATE_TEST_SUITE_P(All, RandomOperationsTest,
                         ::testing::Values(Network::kMemory, Network::kStreams,
                                           Network::kSharedMemory),
                         [](const auto& info) {
                           return std::string(
                               info.param == Network::kMemory    ? "Memory"
                               : info.param == Network::kStreams ? "Streams"
                                                                 : "Shared");
                         });

TEST_P(RandomOperationsTest, EveryRankGetsTheReferencesBits) {
  int operations = 0;
  for (const int ranks : {1, 2, 3, 4, 5, 6, 7, 8, 16}) {
    if (ranks > 8 && (kSanitized || GetParam() != Network::kMemory)) break;
    operations += Stream(20000 + ranks, GetParam(), ranks,
                         ranks > 8 ? kSliceSteps / 4 : kSliceSteps)
                      .Run();
    if (HasFailure()) break;
  }
  RecordProperty("operations", operations);
}

double NumberFrom(const char* variable, double otherwise) {
  const char* const text = std::getenv(variable);
  return text == nullptr ? otherwise : std::atof(text);
}

// World after world, each from a seed of its own: the first one's follow from
// RINGFLEET_SOAK_SEED, so the seed that a failure names repeats it at once.
TEST(RandomOperationsSoakTest, EveryRankGetsTheReferencesBits) {
  const auto end = std::chrono::steady_clock::now() +
                   std::chrono::duration<double>(
                       60 * NumberFrom("RINGFLEET_SOAK_MINUTES", 1));
  const double wanted = NumberFrom("RINGFLEET_SOAK_OPERATIONS", 100000);
  const char* const given = std::getenv("RINGFLEET_SOAK_SEED");
  const uint64_t first = given != nullptr ? std::strtoull(given, nullptr, 10)
                                          : std::random_device{}();
  printf("seed %llu\n", static_cast<unsigned long long>(first));
  fflush(stdout);
  int operations = 0;
  std::array<int, 3> by_network = {};
  for (uint64_t seed = first; operations < wanted && !HasFailure() &&
                              std::chrono::steady_clock::now() < end;
       ++seed) {
    Random random(Mix(seed + 17));
    constexpr Network kChoices[] = {Network::kMemory, Network::kMemory,
                                    Network::kStreams, Network::kSharedMemory};
    const Network network = kChoices[random.Below(4)];
    const int ranks =
        random.OneIn(24) ? 16 : 1 + static_cast<int>(random.Below(8));
    const int done = Stream(seed, network, ranks, 200).Run();
    operations += done;
    by_network[static_cast<int>(network)] += done;
  }
  printf(
      "operations %d (memory %d, streams %d, shared memory %d), seed %llu, "
      "mismatches %s\n",
      operations, by_network[0], by_network[1], by_network[2],
      static_cast<unsigned long long>(first), HasFailure() ? "above" : "0");
  RecordProperty("operations", operations);
}

}  // namespace
}  // namespace ringfleet::cluster
