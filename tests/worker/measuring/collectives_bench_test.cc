// SPDX-License-Identifier: Apache-2.0
#include "worker/measuring/collectives_bench.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "cluster/collectives/algorithm_table.h"
#include "cluster/collectives/group_communicator.h"
#include "kernels/mutex.h"
#include "tests/testing/fake_transport.h"
#include "tests/testing/soon.h"
#include "worker/measuring/collective_case.h"
#include "worker/measuring/fused_case.h"

namespace ringfleet::worker {
namespace {

using cluster::Algorithm;
using cluster::AlgorithmTable;
using cluster::Communicator;
using cluster::Deadline;
using cluster::Encoding;
using cluster::GroupCommunicator;
using cluster::Operation;
using cluster::Transport;
using cluster::Wire;
using cluster::WorldGroup;
using ringfleet::testing::FakeNetwork;
using ::testing::Each;
using ::testing::SizeIs;

constexpr Operation kOperations[] = {
    Operation::kAllReduce, Operation::kAllGather, Operation::kReduceScatter,
    Operation::kAllToAll,  Operation::kBroadcast, Operation::kBarrier};
constexpr Algorithm kAlgorithms[] = {Algorithm::kOneShot, Algorithm::kTwoShot,
                                     Algorithm::kRing};
constexpr Wire kWires[] = {Wire::kF32, Wire::kBf16, Wire::kInt8};

Deadline WithinAMinute() { return Deadline::After(absl::Seconds(60)); }

std::string Name(const CollectiveCase::Spec& spec) {
  return absl::StrCat(cluster::OperationText(spec.operation), " ",
                      cluster::AlgorithmText(spec.algorithm), " ",
                      cluster::WireText(spec.wire), " ", spec.count);
}

// Passes everything on to a real communicator and, when asked, changes what a
// collective has left in the output.
class MeddlingCommunicator : public Communicator {
 public:
  using Meddle = std::function<void(absl::Span<float>)>;

  MeddlingCommunicator(Communicator* real, Meddle meddle)
      : real_(real), meddle_(std::move(meddle)) {}

  int rank() const override { return real_->rank(); }
  int size() const override { return real_->size(); }
  absl::Status AllReduce(absl::Span<const float> input,
                         absl::Span<float> output, Encoding encoding,
                         uint64_t check, Deadline deadline) override {
    return Then(real_->AllReduce(input, output, encoding, check, deadline),
                output);
  }
  absl::Status AllGather(absl::Span<const char> share, absl::Span<char> output,
                         absl::Span<const uint64_t> offsets,
                         Deadline deadline) override {
    return real_->AllGather(share, output, offsets, deadline);
  }
  absl::Status AllGather(absl::Span<const float> share,
                         absl::Span<float> output,
                         absl::Span<const uint64_t> offsets, Encoding encoding,
                         Deadline deadline) override {
    return Then(real_->AllGather(share, output, offsets, encoding, deadline),
                output);
  }
  absl::Status ReduceScatter(absl::Span<float> input, absl::Span<float> share,
                             absl::Span<const uint64_t> offsets,
                             Encoding encoding, uint64_t check,
                             Deadline deadline) override {
    return Then(
        real_->ReduceScatter(input, share, offsets, encoding, check, deadline),
        share);
  }
  absl::Status AllToAll(absl::Span<const char> input,
                        absl::Span<const uint64_t> input_offsets,
                        absl::Span<char> output,
                        absl::Span<const uint64_t> output_offsets,
                        Deadline deadline) override {
    return real_->AllToAll(input, input_offsets, output, output_offsets,
                           deadline);
  }
  absl::Status AllToAll(absl::Span<const float> input,
                        absl::Span<const uint64_t> input_offsets,
                        absl::Span<float> output,
                        absl::Span<const uint64_t> output_offsets,
                        Encoding encoding, Deadline deadline) override {
    return Then(real_->AllToAll(input, input_offsets, output, output_offsets,
                                encoding, deadline),
                output);
  }
  absl::Status Broadcast(absl::Span<float> values, int root, Encoding encoding,
                         Deadline deadline) override {
    return Then(real_->Broadcast(values, root, encoding, deadline), values);
  }
  absl::Status StreamingAllGather(const cluster::SplitRowsLayout& layout,
                                  absl::Span<const char> own,
                                  cluster::StreamingReceiver& receiver,
                                  uint64_t check, Deadline deadline) override {
    return real_->StreamingAllGather(layout, own, receiver, check, deadline);
  }
  absl::Status StreamingReduceScatter(const cluster::SplitRowsLayout& layout,
                                      Encoding encoding,
                                      cluster::StreamingSource& source,
                                      uint64_t check,
                                      Deadline deadline) override {
    return real_->StreamingReduceScatter(layout, encoding, source, check,
                                         deadline);
  }
  void Wake() override { real_->Wake(); }
  absl::Status Barrier(Deadline deadline) override {
    return real_->Barrier(deadline);
  }

 private:
  absl::Status Then(absl::Status status, absl::Span<float> output) {
    if (status.ok()) meddle_(output);
    return status;
  }

  Communicator* const real_;
  const Meddle meddle_;
};

// Runs body(communicator, rank) for every rank of a world under one algorithm.
void OnEveryRank(int ranks, Algorithm algorithm,
                 const std::function<absl::Status(GroupCommunicator&)>& body) {
  FakeNetwork network(ranks);
  const auto statuses = network.RunOnEveryRank([&](Transport& transport) {
    GroupCommunicator group(&transport, WorldGroup(ranks),
                            AlgorithmTable::Only(algorithm), nullptr);
    return body(group);
  });
  EXPECT_THAT(statuses, Each(absl::OkStatus()));
}

TEST(GeneratedElementTest, DiffersByRankAndIndexAndStaysWithinOne) {
  std::set<float> seen;
  for (int rank = 0; rank < 4; ++rank) {
    for (size_t i = 0; i < 1000; ++i) {
      const float value = GeneratedElement(rank, i);
      EXPECT_LE(std::abs(value), 1.0f);
      seen.insert(value);
    }
  }
  // 2^24 significands times 8 scales: a few of 4000 may collide.
  EXPECT_GT(seen.size(), 3990u);
}

TEST(WireBytesTest, CountsScalesOfInt8) {
  EXPECT_EQ(WireBytes(Wire::kF32, 7168), 28672u);
  EXPECT_EQ(WireBytes(Wire::kBf16, 7168), 14336u);
  EXPECT_EQ(WireBytes(Wire::kInt8, 7168), 7392u);
  EXPECT_EQ(WireBytes(Wire::kInt8, 129), 129u + 8);
  EXPECT_EQ(WireBytes(Wire::kInt8, 0), 0u);
}

TEST(CollectiveCaseTest, EveryCollectiveMeetsItsReference) {
  for (const int ranks : {1, 2, 3, 5}) {
    for (const Algorithm algorithm : kAlgorithms) {
      OnEveryRank(ranks, algorithm, [&](GroupCommunicator& group) {
        for (const Operation operation : kOperations) {
          if (!Supports(operation, algorithm)) continue;
          for (const Wire wire : kWires) {
            for (const size_t count : {0, 1, 7, 300, 20000}) {
              CollectiveCase bench(&group, {operation, algorithm, wire, count});
              for (int repeat = 0; repeat < 2; ++repeat) {
                bench.Reset();
                const absl::Status status = bench.Run(WithinAMinute());
                if (!status.ok()) return status;
                EXPECT_EQ(bench.CountWrong(), 0u)
                    << Name(bench.spec()) << ", " << ranks << " ranks";
              }
            }
          }
        }
        return absl::OkStatus();
      });
    }
  }
}

TEST(CollectiveCaseTest, OneShotAndTwoShotGiveTheSameBits) {
  Mutex mu;
  std::map<std::tuple<Wire, size_t>, std::set<uint64_t>> hashes;
  for (const Algorithm algorithm : {Algorithm::kOneShot, Algorithm::kTwoShot}) {
    OnEveryRank(4, algorithm, [&](GroupCommunicator& group) {
      for (const Wire wire : kWires) {
        for (const size_t count : {1, 1000, 7168}) {
          CollectiveCase bench(&group,
                               {Operation::kAllReduce, algorithm, wire, count});
          const absl::Status status = bench.Run(WithinAMinute());
          if (!status.ok()) return status;
          MutexLock lock(&mu);
          hashes[{wire, count}].insert(bench.ResultHash());
        }
      }
      return absl::OkStatus();
    });
  }
  EXPECT_THAT(hashes, SizeIs(9));
  for (const auto& [key, values] : hashes) EXPECT_THAT(values, SizeIs(1));
}

// What was never received is not taken for a result of an earlier run.
TEST(CollectiveCaseTest, AnOutputThatNobodyWroteIsWrong) {
  OnEveryRank(2, Algorithm::kOneShot, [](GroupCommunicator& group) {
    for (const Operation operation : kOperations) {
      CollectiveCase bench(&group,
                           {operation, Algorithm::kOneShot, Wire::kF32, 1000});
      const absl::Status status = bench.Run(WithinAMinute());
      if (!status.ok()) return status;
      bench.Reset();
      const bool has_own =
          operation == Operation::kBarrier ||
          (operation == Operation::kBroadcast && group.rank() == 0);
      const bool part = operation == Operation::kReduceScatter;
      EXPECT_EQ(bench.CountWrong(), has_own ? 0u
                                    : part  ? 500u
                                            : 1000u)
          << Name(bench.spec());
    }
    return absl::OkStatus();
  });
}

// One bit of one element, where the order of the sum is fixed; for a ring, what
// no order of three additions explains.
TEST(CollectiveCaseTest, OneWrongElementIsFound) {
  for (const Algorithm algorithm : kAlgorithms) {
    OnEveryRank(3, algorithm, [&](GroupCommunicator& group) {
      for (const Operation operation : kOperations) {
        if (!Supports(operation, algorithm) ||
            operation == Operation::kBarrier) {
          continue;
        }
        for (const Wire wire : kWires) {
          MeddlingCommunicator meddling(&group, [&](absl::Span<float> output) {
            if (group.rank() != 1) return;
            float& value = output[output.size() / 2];
            value =
                algorithm == Algorithm::kRing
                    ? value + 0.5f
                    : std::bit_cast<float>(std::bit_cast<uint32_t>(value) ^ 1u);
          });
          CollectiveCase bench(&meddling, {operation, algorithm, wire, 3000});
          const absl::Status status = bench.Run(WithinAMinute());
          if (!status.ok()) return status;
          EXPECT_EQ(bench.CountWrong(), group.rank() == 1 ? 1u : 0u)
              << Name(bench.spec());
        }
      }
      return absl::OkStatus();
    });
  }
}

// A rank that was left out or added twice, on every wire.
TEST(CollectiveCaseTest, ARingsBoundIsTighterThanAnyContribution) {
  OnEveryRank(4, Algorithm::kRing, [](GroupCommunicator& group) {
    for (const Wire wire : kWires) {
      for (const float factor : {-1.0f, 1.0f}) {
        MeddlingCommunicator meddling(&group, [&](absl::Span<float> output) {
          for (size_t i = 0; i < output.size(); ++i) {
            output[i] += factor * GeneratedElement(2, i);
          }
        });
        CollectiveCase bench(
            &meddling, {Operation::kAllReduce, Algorithm::kRing, wire, 10000});
        const absl::Status status = bench.Run(WithinAMinute());
        if (!status.ok()) return status;
        // Some contributions are smaller than an int8 step.
        EXPECT_GT(bench.CountWrong(), wire == Wire::kInt8 ? 7000u : 9000u);
      }
    }
    return absl::OkStatus();
  });
}

CollectivesBench::Options Quick() {
  return {.iterations = 20,
          .case_time = absl::Milliseconds(100),
          .timeout = absl::Seconds(60)};
}

TEST(CollectivesBenchTest, AllRanksReportTheSame) {
  Mutex mu;
  std::map<std::string, std::vector<CollectiveFigures>> figures;
  OnEveryRank(3, Algorithm::kOneShot, [&](GroupCommunicator& group) {
    CollectivesBench bench(Quick());
    for (const Operation operation : kOperations) {
      const CollectiveCase::Spec spec{
          operation, Algorithm::kOneShot, Wire::kBf16,
          operation == Operation::kBarrier ? size_t{0} : size_t{1000}};
      const auto measured = bench.Measure(group, group, spec);
      if (!measured.ok()) return measured.status();
      MutexLock lock(&mu);
      figures[Name(spec)].push_back(*measured);
    }
    return absl::OkStatus();
  });
  EXPECT_THAT(figures, SizeIs(6));
  for (const auto& [name, ranks] : figures) {
    ASSERT_THAT(ranks, SizeIs(3)) << name;
    for (const CollectiveFigures& rank : ranks) {
      EXPECT_EQ(rank.iterations, 20);
      EXPECT_EQ(rank.wrong, 0u) << name;
      EXPECT_EQ(rank.hash, ranks[0].hash) << name;
      EXPECT_EQ(rank.p50_us, ranks[0].p50_us);
      EXPECT_GT(rank.p50_us, 0);
      EXPECT_GE(rank.p99_us, rank.p50_us);
      EXPECT_EQ(rank.cpu_seconds_per_gb > 0,
                name.find("barrier") == std::string::npos);
    }
  }
}

// Fused products over all worlds and forms, and what they are compared with:
// a gather that is fused or not has the same bits.
TEST(FusedCaseTest, EveryWayIsRight) {
  for (const Operation operation :
       {Operation::kAllGatherMatmul, Operation::kMatmulReduceScatter}) {
    for (const auto& one_case :
         {std::pair(1, Algorithm::kOneShot), std::pair(2, Algorithm::kOneShot),
          std::pair(3, Algorithm::kOneShot), std::pair(3, Algorithm::kRing)}) {
      const Algorithm algorithm = one_case.second;
      OnEveryRank(one_case.first, algorithm, [&](GroupCommunicator& group) {
        kernels::ThreadPool pool(1);
        for (const auto form :
             {kernels::WeightForm::kF32, kernels::WeightForm::kInt8}) {
          for (const Wire wire : kWires) {
            FusedCase one(&group, &pool,
                          {operation, wire, algorithm, 37, 130, 70, form});
            absl::Status status;
            uint64_t fused = 0;
            for (const int way :
                 {FusedCase::kFused, FusedCase::kCompute, FusedCase::kUnfused,
                  FusedCase::kCommunicate, FusedCase::kFused}) {
              if (way == FusedCase::kFused) one.Reset();
              status = one.Run(way, testing::Soon());
              if (!status.ok()) return status;
              if (way == FusedCase::kFused) {
                EXPECT_EQ(one.CountWrong(), 0u);
                fused = one.ResultHash();
              } else if (way == FusedCase::kUnfused &&
                         operation == Operation::kAllGatherMatmul) {
                EXPECT_EQ(one.ResultHash(), fused);
              }
            }
            one.Reset();  // Nothing has been written.
            EXPECT_GT(one.CountWrong(), 0u);
          }
        }
        return absl::OkStatus();
      });
    }
  }
}

TEST(FusedCaseTest, TheBenchTimesEveryWay) {
  OnEveryRank(2, Algorithm::kRing, [&](GroupCommunicator& group) {
    kernels::ThreadPool pool(1);
    CollectivesBench bench(Quick());
    const auto figures = bench.Measure(
        group, std::make_unique<FusedCase>(
                   &group, &pool,
                   FusedCase::Spec{Operation::kMatmulReduceScatter, Wire::kF32,
                                   Algorithm::kRing, 40, 64, 65}));
    if (!figures.ok()) return figures.status();
    EXPECT_EQ(figures->wrong, 0u);
    EXPECT_EQ(figures->iterations, 20);
    EXPECT_THAT(figures->way_p50_us, SizeIs(FusedCase::kWays));
    EXPECT_THAT(figures->way_p50_us, Each(::testing::Gt(0)));
    EXPECT_EQ(figures->p50_us, figures->way_p50_us[FusedCase::kFused]);
    return absl::OkStatus();
  });
}

// Ranks that share a CPU: one has it from a barrier to the next operation.
class SharedCpuCommunicator final : public MeddlingCommunicator {
 public:
  SharedCpuCommunicator(Communicator* real, std::mutex* cpu)
      : MeddlingCommunicator(real, [](absl::Span<float>) {}),
        cpu_(*cpu, std::defer_lock) {}

  using MeddlingCommunicator::AllGather;
  absl::Status AllGather(absl::Span<const char> share, absl::Span<char> output,
                         absl::Span<const uint64_t> offsets,
                         Deadline deadline) override {
    if (cpu_.owns_lock()) cpu_.unlock();
    return MeddlingCommunicator::AllGather(share, output, offsets, deadline);
  }
  absl::Status Barrier(Deadline deadline) override {
    if (cpu_.owns_lock()) cpu_.unlock();
    const absl::Status status = MeddlingCommunicator::Barrier(deadline);
    cpu_.lock();
    return status;
  }

 private:
  std::unique_lock<std::mutex> cpu_;
};

// Computes for a while and waits for nobody.
class ComputeCase final : public BenchCase {
 public:
  static constexpr absl::Duration kTime = absl::Milliseconds(4);

  uint64_t bytes() const override { return 4; }
  bool EndsWithTheLast() const override { return true; }
  void Reset() override {}
  absl::Status Run(int, Deadline) override {
    absl::SleepFor(kTime);
    return absl::OkStatus();
  }
  uint64_t CountWrong() override { return 0; }
  uint64_t ResultHash() const override { return 0; }
  bool Replicated() const override { return false; }
};

// A case may take most of the memory that there is.
TEST(CollectivesBenchTest, ACaseIsGoneBeforeTheNextOneIsMade) {
  struct CountedCase final : public BenchCase {
    explicit CountedCase(int* alive) : alive(alive) { ++*alive; }
    ~CountedCase() override { --*alive; }
    uint64_t bytes() const override { return 4; }
    void Reset() override {}
    absl::Status Run(int, Deadline) override { return absl::OkStatus(); }
    uint64_t CountWrong() override { return 0; }
    uint64_t ResultHash() const override { return 0; }
    bool Replicated() const override { return false; }

    int* const alive;
  };
  OnEveryRank(1, Algorithm::kOneShot, [](GroupCommunicator& group) {
    CollectivesBench bench(Quick());
    int alive = 0;
    const auto figures =
        bench.Measure(group, std::make_unique<CountedCase>(&alive));
    EXPECT_EQ(alive, 0);
    return figures.status();
  });
}

// Each rank by its own clock takes the time of one, all together that of three.
TEST(CollectivesBenchTest, ACaseThatEndsWithTheLastTakesTheTimeOfAll) {
  constexpr int kRanks = 3;
  std::mutex cpu;
  OnEveryRank(kRanks, Algorithm::kOneShot, [&](GroupCommunicator& group) {
    SharedCpuCommunicator control(&group, &cpu);
    CollectivesBench bench(Quick());
    const auto figures =
        bench.Measure(control, std::make_unique<ComputeCase>());
    if (!figures.ok()) return figures.status();
    EXPECT_GT(figures->p50_us,
              absl::ToDoubleMicroseconds((kRanks - 0.5) * ComputeCase::kTime));
    EXPECT_THAT(figures->way_p50_us, SizeIs(1));
    return absl::OkStatus();
  });
}

// An exchange that is right at first and wrong in the end, as a buffer that is
// used again too early makes it.
TEST(CollectivesBenchTest, AResultThatChangesLaterIsWrong) {
  OnEveryRank(2, Algorithm::kOneShot, [](GroupCommunicator& group) {
    CollectivesBench bench(Quick());
    int runs = 0;
    MeddlingCommunicator meddling(&group, [&](absl::Span<float> output) {
      if (++runs > 1 && group.rank() == 1) output[3] += 1;
    });
    const auto figures = bench.Measure(
        group, meddling,
        {Operation::kAllReduce, Algorithm::kOneShot, Wire::kF32, 100});
    if (!figures.ok()) return figures.status();
    // The element, and a rank that differs from rank 0.
    EXPECT_EQ(figures->wrong, 2u);
    return absl::OkStatus();
  });
}

TEST(CollectivesBenchTest, IterationsFitTheTimeOnAllRanksAlike) {
  Mutex mu;
  std::set<int> iterations;
  OnEveryRank(3, Algorithm::kOneShot, [&](GroupCommunicator& group) {
    CollectivesBench bench(
        {.case_time = absl::Microseconds(1), .timeout = absl::Seconds(60)});
    const auto figures = bench.Measure(
        group, group,
        {Operation::kAllReduce, Algorithm::kOneShot, Wire::kF32, 10});
    if (!figures.ok()) return figures.status();
    MutexLock lock(&mu);
    iterations.insert(figures->iterations);
    return absl::OkStatus();
  });
  EXPECT_THAT(iterations, ::testing::ElementsAre(5));  // However slow.
}

// What ends the epoch ends the measurement, with its cause.
TEST(CollectivesBenchTest, AnAbortEndsIt) {
  const absl::Status cause = absl::CancelledError("enough");
  FakeNetwork network(2);
  const auto statuses = network.RunOnEveryRank([&](Transport& transport) {
    CollectivesBench bench(Quick());
    GroupCommunicator group(&transport, WorldGroup(2),
                            AlgorithmTable::Default(), nullptr);
    int runs = 0;
    MeddlingCommunicator meddling(&group, [&](absl::Span<float>) {
      if (++runs == 5 && group.rank() == 0) transport.Abort(cause);
    });
    return bench
        .Measure(group, meddling,
                 {Operation::kAllReduce, Algorithm::kOneShot, Wire::kF32, 10})
        .status();
  });
  EXPECT_THAT(statuses, Each(cause));
}

}  // namespace
}  // namespace ringfleet::worker
