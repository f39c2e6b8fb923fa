// SPDX-License-Identifier: Apache-2.0
#include "tests/integration/fault_world.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <utility>

namespace ringfleet::integration {
namespace {

using ::testing::AnyOfArray;
using ::testing::Contains;
using ::testing::HasSubstr;
using testing::kSlowdown;

// Enough to see that a world works.
constexpr int kHealthyOperations = 4;

constexpr std::chrono::milliseconds kLook{5};
// Later than this, and it was no scheduler's whim.
constexpr std::chrono::milliseconds kLate{50};

}  // namespace

PauseWatch::PauseWatch()
    : thread_([this] {
        using Clock = std::chrono::steady_clock;
        while (!stopping_) {
          const auto before = Clock::now();
          std::this_thread::sleep_for(kLook);
          const auto pause = Clock::now() - before;
          if (pause < kLate) continue;
          paused_us_ +=
              std::chrono::duration_cast<std::chrono::microseconds>(pause)
                  .count();
        }
      }) {}

PauseWatch::~PauseWatch() {
  stopping_ = true;
  thread_.join();
}

FaultWorld::FaultWorld(int size, const std::string& transport,
                       const std::string& folder,
                       const testing::TestNetwork* network)
    : transport_(transport), folder_(folder), network_(network) {
  for (int rank = 0; rank < size; ++rank) ranks_.push_back(Start(rank));
}

std::unique_ptr<RankProcess> FaultWorld::Start(int rank) {
  const std::string host =
      network_ == nullptr ? "127.0.0.1" : network_->Address(rank);
  std::vector<std::string> command = {RINGFLEET_COLLECTIVE_RANK_BINARY, host};
  if (network_ != nullptr) command = network_->Command(rank, command);
  return std::make_unique<RankProcess>(
      command, host,
      folder_ + "/" + std::to_string(rank) + "-" + std::to_string(started_++));
}

std::vector<std::string> FaultWorld::Addresses() const {
  std::vector<std::string> addresses;
  for (const auto& rank : ranks_) addresses.push_back(rank->address());
  return addresses;
}

std::string FaultWorld::Name(int rank) const {
  return "rank " + std::to_string(rank) + " (" + ranks_[rank]->address() + ")";
}

void FaultWorld::Connect() {
  ++epoch_;
  for (int rank = 0; rank < size(); ++rank) {
    ranks_[rank]->Connect(epoch_, rank, transport_, kConnectMs, Addresses());
  }
  for (const auto& [rank, answer] : Collect({})) {
    ASSERT_EQ(answer.kind, "connected") << answer.code << answer.message;
  }
}

void FaultWorld::RunHealthy(uint64_t seed) {
  // Only a hang is too slow here.
  for (const auto& rank : ranks_) {
    rank->Run(seed, kHealthyOperations, 5 * kDeadlineMs);
  }
  ExpectDone(Collect({}));
}

FaultWorld::Answers FaultWorld::Collect(const std::vector<int>& silent) {
  collected_ = pauses_.seconds();
  Answers answers;
  for (int rank = 0; rank < size(); ++rank) {
    if (std::find(silent.begin(), silent.end(), rank) != silent.end()) continue;
    const std::optional<Answer> answer = ranks_[rank]->Next(kHang);
    EXPECT_TRUE(answer.has_value())
        << "rank " << rank
        << " hangs or has ended: " << ranks_[rank]->process().errors();
    if (answer.has_value()) answers[rank] = *answer;
  }
  return answers;
}

void FaultWorld::ExpectFailed(const Answers& answers, int culprit,
                              const std::vector<std::string>& codes,
                              const std::vector<std::string>& texts, int late) {
  const double paused = pauses_.seconds() - collected_;
  for (const auto& [rank, answer] : answers) {
    SCOPED_TRACE("rank " + std::to_string(rank) + ", operation " +
                 std::to_string(answer.number) + ", " + answer.code + ": " +
                 answer.message);
    EXPECT_EQ(answer.kind, "failed");
    EXPECT_THAT(codes, Contains(answer.code));
    if (rank != late) {
      EXPECT_LE(answer.late, kReportSeconds * kSlowdown + paused);
      times_.late = std::max(times_.late, answer.late - paused);
    }
    if (rank == culprit) continue;
    for (const std::string& text : texts) {
      EXPECT_THAT(answer.message, HasSubstr(text));
    }
  }
  ++times_.faults;
}

void FaultWorld::ExpectDone(const Answers& answers) {
  for (const auto& [rank, answer] : answers) {
    EXPECT_EQ(answer.kind, "done")
        << "rank " << rank << ", operation " << answer.number << ", "
        << answer.code << ": " << answer.message;
  }
}

std::unique_ptr<RankProcess> FaultWorld::Replace(int rank) {
  std::unique_ptr<RankProcess> next = Start(rank);
  return std::exchange(ranks_[rank], std::move(next));
}

void FaultWorld::Recover(const Answers& answers, uint64_t seed,
                         std::chrono::steady_clock::time_point mended) {
  const double paused = pauses_.seconds();
  double from =
      std::chrono::duration<double>(mended.time_since_epoch()).count();
  for (const auto& [rank, answer] : answers) from = std::max(from, answer.at);
  Connect();
  for (const auto& rank : ranks_) {
    rank->Run(seed, kHealthyOperations, 5 * kDeadlineMs);
  }
  const Answers results = Collect({});
  ExpectDone(results);
  double until = 0;
  for (const auto& [rank, answer] : results) until = std::max(until, answer.at);
  const double took = until - from - (pauses_.seconds() - paused);
  EXPECT_LE(took, kRecoverySeconds * kSlowdown);
  times_.recovery = std::max(times_.recovery, took);
}

void FaultWorld::ExpectFenced(RankProcess& zombie, int rank, uint64_t seed) {
  zombie.process().Signal(SIGCONT);
  std::optional<Answer> answer = zombie.Next(kHang);
  ASSERT_TRUE(answer.has_value()) << "the rank that was stopped hangs";
  EXPECT_EQ(answer->kind, "failed") << "of an epoch that is over";
  zombie.Connect(epoch_, rank, transport_, kDeadlineMs, Addresses());
  answer = zombie.Next(kHang);
  ASSERT_TRUE(answer.has_value()) << "the rank that was stopped hangs";
  EXPECT_EQ(answer->kind, "refused") << "its successor is in this epoch";
  RunHealthy(seed);
}

}  // namespace ringfleet::integration
