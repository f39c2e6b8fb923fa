// SPDX-License-Identifier: Apache-2.0
// Ranks that die, stop, lie, lag and vanish in the middle of collectives. For
// every fault: nobody hangs, no result is wrong, every survivor has an error
// soon after the deadline that names the faulty rank, and a new epoch works at
// once. Faults come at random frames of random operations of a fixed seed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>

#include <chrono>
#include <filesystem>
#include <random>

#include "tests/integration/fault_world.h"

namespace ringfleet::integration {
namespace {

using testing::TestNetwork;

// A fault strikes in the first ones, so that others follow it.
constexpr int kOperations = 16;
constexpr int kLastStruck = 12;

class CollectiveFaultsTest : public ::testing::Test {
 protected:
  CollectiveFaultsTest() {
    char folder[] = "/tmp/rf-faults-XXXXXX";
    folder_ = mkdtemp(folder);
  }
  ~CollectiveFaultsTest() override { std::filesystem::remove_all(folder_); }

  void StartWorld(int size, const std::string& transport,
                  const TestNetwork* network = nullptr) {
    world_.reset();  // Its processes write where the next ones will.
    world_ = std::make_unique<FaultWorld>(size, transport, folder_, network);
    ASSERT_NO_FATAL_FAILURE(world_->Connect());
    world_->RunHealthy(random_());
  }

  // One fault of `kind` at a random place, its consequences, and the way back.
  void Inject(const std::string& kind) {
    const int culprit = static_cast<int>(random_() % world_->size());
    const int operation = static_cast<int>(random_() % kLastStruck);
    const int frame = static_cast<int>(random_() % 6);
    const uint64_t seed = random_() % 1000000;
    SCOPED_TRACE(::testing::Message()
                 << kind << " of rank " << culprit << " of " << world_->size()
                 << " over " << world_->transport() << " at operation "
                 << operation << ", frame " << frame << ", seed " << seed);
    const bool gone = kind == "kill" || kind == "stop";
    const bool harmless =
        kind == "stale" || kind == "duplicate" || kind == "pause";
    const int stall_ms = kind == "pause" ? FaultWorld::kDeadlineMs / 4
                                         : FaultWorld::kDeadlineMs * 3 / 2;
    for (int rank = 0; rank < world_->size(); ++rank) {
      const bool struck = rank == culprit || kind == "abort";
      world_->rank(rank).Run(
          seed, kOperations, FaultWorld::kDeadlineMs,
          (struck ? (kind == "pause" ? "stall" : kind) : std::string("none")) +
              " " + std::to_string(operation) + " " + std::to_string(frame) +
              " " + std::to_string(stall_ms));
    }
    std::vector<int> silent;
    if (gone) silent.push_back(culprit);
    const FaultWorld::Answers answers = world_->Collect(silent);
    if (HasFatalFailure() ||
        answers.size() + silent.size() < static_cast<size_t>(world_->size())) {
      return;
    }
    if (harmless) return world_->ExpectDone(answers);
    ExpectConsequences(kind, culprit, answers);
    std::unique_ptr<RankProcess> old;
    if (gone) old = world_->Replace(culprit);
    ASSERT_NO_FATAL_FAILURE(world_->Recover(answers, random_()));
    if (kind == "stop") world_->ExpectFenced(*old, culprit, random_());
  }

  void ExpectConsequences(const std::string& kind, int culprit,
                          const FaultWorld::Answers& answers) {
    const std::string name = world_->Name(culprit);
    const std::string rank = "rank " + std::to_string(culprit);
    if (kind == "kill" || kind == "reset") {
      world_->ExpectFailed(answers, culprit, {"UNAVAILABLE"}, {"lost " + name});
      for (const auto& [survivor, answer] : answers) {
        EXPECT_LT(answer.late, 0) << "waited for the deadline";
      }
    } else if (kind == "stop") {
      world_->ExpectFailed(answers, culprit, {"DEADLINE_EXCEEDED"},
                           {name + ", which is stopped or starved"});
    } else if (kind == "stall") {
      world_->ExpectFailed(answers, culprit, {"DEADLINE_EXCEEDED"},
                           {name + ", which is alive"}, /*late=*/culprit);
    } else if (kind == "corrupt") {
      world_->ExpectFailed(answers, culprit, {"DATA_LOSS"},
                           {"a frame of " + rank, "crc32c"});
    } else if (kind == "misshapen" || kind == "skip") {
      world_->ExpectFailed(answers, culprit,
                           {"FAILED_PRECONDITION", "DEADLINE_EXCEEDED"},
                           {rank});
    } else if (kind == "abort") {
      world_->ExpectFailed(answers, -1, {"INTERNAL"}, {"injected"});
    } else {
      FAIL() << "no such fault";
    }
  }

  void Report() {
    const FaultTimes& times = world_->times();
    std::printf(
        "%d ranks (%s), %d faults: errors at most %.0f ms after the deadline, "
        "new epochs within %.0f ms\n",
        world_->size(), world_->transport().c_str(), times.faults,
        times.late * 1e3, times.recovery * 1e3);
  }

  std::string folder_;
  std::mt19937_64 random_{20261121};
  std::unique_ptr<FaultWorld> world_;
};

const std::vector<std::string>& Kinds() {
  static const auto& kinds = *new std::vector<std::string>{
      "kill", "stop",  "corrupt", "stall",     "reset", "misshapen",
      "skip", "abort", "stale",   "duplicate", "pause"};
  return kinds;
}

TEST_F(CollectiveFaultsTest, FourRanksSurviveEveryKind) {
  StartWorld(4, "grpc");
  for (const std::string& kind : Kinds()) {
    ASSERT_NO_FATAL_FAILURE(Inject(kind));
  }
  Report();
}

TEST_F(CollectiveFaultsTest, TwoRanksSurvive) {
  StartWorld(2, "grpc");
  for (const char* kind : {"kill", "stop", "corrupt", "misshapen", "reset"}) {
    ASSERT_NO_FATAL_FAILURE(Inject(kind));
  }
  Report();
}

TEST_F(CollectiveFaultsTest, RanksThatShareMemorySurvive) {
  StartWorld(3, "auto");
  for (const char* kind :
       {"kill", "stop", "corrupt", "stall", "reset", "skip", "stale"}) {
    ASSERT_NO_FATAL_FAILURE(Inject(kind));
  }
  Report();
}

TEST_F(CollectiveFaultsTest, ARankThatIsNotThereIsNamed) {
  StartWorld(3, "grpc");
  world_->rank(1).process().Signal(SIGKILL);
  world_->rank(1).process().Wait(5);
  for (const int rank : {0, 2}) {
    world_->rank(rank).Connect(
        100, rank, "grpc", FaultWorld::kDeadlineMs,
        {world_->rank(0).address(), world_->rank(1).address(),
         world_->rank(2).address()});
  }
  for (const auto& [rank, answer] : world_->Collect({1})) {
    EXPECT_EQ(answer.kind, "refused");
    EXPECT_EQ(answer.code, "DEADLINE_EXCEEDED") << answer.message;
    EXPECT_THAT(answer.message, ::testing::HasSubstr(world_->Name(1)));
  }
}

// What only a network can do: hosts are namespaces here.
class NetworkFaultsTest : public CollectiveFaultsTest {
 protected:
  void SetUp() override {
    const absl::Status available = TestNetwork::Available();
    if (!available.ok()) GTEST_SKIP() << available.message();
    network_.emplace(testing::TestNetworkOptions{.hosts = 3});
    StartWorld(3, "grpc", &*network_);
  }

  // Breaks the network while operations run, and mends it afterwards. Returns
  // what the ranks said.
  FaultWorld::Answers Break(const std::function<void()>& fault,
                            const std::vector<std::string>& texts,
                            int deadline_ms = FaultWorld::kDeadlineMs) {
    constexpr int kManyOperations = 1000000;
    const uint64_t seed = random_() % 1000000;
    for (int rank = 0; rank < world_->size(); ++rank) {
      world_->rank(rank).Run(seed, kManyOperations, deadline_ms);
    }
    fault();
    const FaultWorld::Answers answers = world_->Collect({});
    world_->ExpectFailed(answers, -1, {"UNAVAILABLE", "DEADLINE_EXCEEDED"},
                         texts);
    network_->HealAll();  // Takes seconds where others use the cores.
    world_->Recover(answers, random_(), std::chrono::steady_clock::now());
    Report();
    return answers;
  }

  std::optional<TestNetwork> network_;
};

TEST_F(NetworkFaultsTest, OneWayLossIsNamed) {
  Break([this] { network_->DropFrom(/*host=*/0, /*other=*/2); },
        {"which is unreachable"});
}

TEST_F(NetworkFaultsTest, APartitionIsNamed) {
  Break(
      [this] {
        network_->Partition(0, 1);
        network_->Partition(2, 1);
      },
      {"which is unreachable"});
}

// A host that answers to nothing is not waited for as long as an operation may
// take: it is silent for a second, and three probes find nobody.
TEST_F(NetworkFaultsTest, AVanishedHostEndsALongOperationEarly) {
  constexpr int kLongMs = 10 * FaultWorld::kDeadlineMs;
  const FaultWorld::Answers answers = Break(
      [this] {
        network_->Partition(0, 1);
        network_->Partition(2, 1);
      },
      {}, kLongMs);
  for (const auto& [rank, answer] : answers) {
    EXPECT_LT(answer.late, -kLongMs * 0.5e-3) << answer.message;
    EXPECT_THAT(answer.message, ::testing::HasSubstr("which is unreachable"));
    if (rank == 1) {
      EXPECT_THAT(answer.message, ::testing::HasSubstr("suspects itself"));
    }
  }
}

TEST_F(NetworkFaultsTest, ResetsAreNamed) {
  Break([this] { network_->ResetFrom(0, 1); }, {"lost rank"});
}

// Of all kinds, in worlds of every size, until the time or the faults are over.
TEST_F(CollectiveFaultsTest, SoakRandomFaultsInRandomWorlds) {
  constexpr int kFaults = 1000;
  const char* const minutes = std::getenv("RINGFLEET_SOAK_MINUTES");
  const auto end = std::chrono::steady_clock::now() +
                   std::chrono::duration<double>(
                       60.0 * std::atof(minutes == nullptr ? "1" : minutes));
  random_.seed(std::random_device{}());
  int faults = 0;
  FaultTimes worst;
  while (faults < kFaults && std::chrono::steady_clock::now() < end &&
         !HasFailure()) {
    StartWorld(2 + static_cast<int>(random_() % 5),
               random_() % 3 == 0 ? "auto" : "grpc");
    for (int i = 0; i < 20 && faults < kFaults && !HasFailure(); ++i) {
      ASSERT_NO_FATAL_FAILURE(Inject(Kinds()[random_() % Kinds().size()]));
      ++faults;
    }
    worst.late = std::max(worst.late, world_->times().late);
    worst.recovery = std::max(worst.recovery, world_->times().recovery);
  }
  RecordProperty("faults", faults);
  std::printf(
      "%d faults: errors at most %.0f ms after the deadline, new epochs within "
      "%.0f ms\n",
      faults, worst.late * 1e3, worst.recovery * 1e3);
}

}  // namespace
}  // namespace ringfleet::integration
