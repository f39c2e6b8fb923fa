// SPDX-License-Identifier: Apache-2.0
// Jobs outlive the failure of a worker or a link. They go on where they
// stopped, with the ids and log probabilities of a run that nothing disturbs,
// bit for bit.
#include <signal.h>

#include <chrono>
#include <cstdlib>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "tests/integration/fleet_fixture.h"
#include "tests/integration/streamed_jobs.h"
#include "tests/testing/sanitized.h"

namespace ringfleet::integration {
namespace {

constexpr uint32_t kGoOnTokens = 220;

// Half of the jobs are greedy, half draw with a seed of their own.
constexpr int kGoOnJobs = kSanitized ? 6 : 16;

std::vector<v1::GenerateRequest> GoOnRequests() {
  std::vector<v1::GenerateRequest> requests(kGoOnJobs);
  for (int i = 0; i < kGoOnJobs; ++i) {
    v1::GenerateRequest& request = requests[i];
    for (const uint32_t id : {0, 318, 287, 40 + i}) {
      request.mutable_prompt()->mutable_ids()->add_ids(id);
    }
    request.set_max_tokens(kGoOnTokens);
    request.set_ignore_eos(true);
    request.set_temperature(i % 2 == 0 ? 0.0f : 0.8f);
    if (i % 2 == 1) request.set_seed(i);
  }
  return requests;
}

// Rounds of a soak test: 50, unless the time is over before.
constexpr int kSoakRounds = 50;

// The parameter says whether the test is a soak test.
class JobsGoOnTest : public HandFleet,
                     public ::testing::WithParamInterface<bool> {
 protected:
  void StartFleetFor(int world, Arguments more) {
    more.insert(more.end(), {"--parallel", std::to_string(kGoOnJobs)});
    ASSERT_NO_FATAL_FAILURE(StartFleet(world, std::move(more)));
    ASSERT_NO_FATAL_FAILURE(RunUndisturbed());
  }

  void RunUndisturbed() {
    StreamedJobs jobs(port());
    ASSERT_NO_FATAL_FAILURE(SubmitTo(jobs));
    right_ = jobs.Wait();
    for (const StreamedResult& result : right_) {
      ASSERT_EQ(result.code, grpc::StatusCode::OK) << result.message;
      ASSERT_EQ(result.ids.size(), kGoOnTokens);
    }
  }

  // One job after the other, so that each gets the same slot in every run.
  static void SubmitTo(StreamedJobs& jobs) {
    size_t submitted = 0;
    for (const v1::GenerateRequest& request : GoOnRequests()) {
      jobs.Generate(request);
      ++submitted;
      ASSERT_TRUE(WaitUntil(30, [&] { return jobs.accepted() == submitted; }));
    }
  }

  // Returns true as often as there are rounds: `few` times, or many in a soak
  // test. A failure ends them.
  bool NextRound(int few) {
    if (HasFailure()) return false;
    if (kSanitized) few = 1;
    const bool next = GetParam() ? rounds_ < kSoakRounds &&
                                       std::chrono::steady_clock::now() < end_
                                 : rounds_ < few;
    if (next) ++rounds_;
    return next;
  }

  // Lets `disturb` fail a part of the fleet while jobs run, in each round.
  // `disturb` returns once the fleet can run again. `repair` is called when the
  // jobs have ended.
  void ExpectJobsGoOn(
      int few, const std::function<void()>& disturb,
      const std::function<void()>& repair = [] {}) {
    std::mt19937_64 random(GetParam() ? std::random_device{}() : 17);
    while (NextRound(few)) {
      // On both sides of the border of a cache block, position 128.
      const size_t tokens = random() % 160;
      SCOPED_TRACE(::testing::Message()
                   << "round " << rounds_ << ", after " << tokens << " tokens");
      const json epoch = Status()["epoch"];
      StreamedJobs jobs(port());
      ASSERT_NO_FATAL_FAILURE(SubmitTo(jobs));
      ASSERT_TRUE(WaitUntil(30, [&] { return jobs.least_tokens() >= tokens; }));
      disturb();
      ExpectRight(jobs.Wait());
      EXPECT_GT(Status()["epoch"], epoch);
      repair();
    }
  }

  void TearDown() override { RecordProperty("rounds", rounds_); }

  virtual void ExpectRight(const std::vector<StreamedResult>& results) {
    EXPECT_EQ(results, right_) << coordinator_->errors();
  }

  void StartAgain(int rank) {
    workers_[rank]->Signal(SIGKILL);
    workers_[rank]->Wait(5);
    StartWorker(rank);
  }

  std::vector<StreamedResult> right_;

 private:
  static std::chrono::duration<double> SoakTime() {
    const char* const minutes = std::getenv("RINGFLEET_SOAK_MINUTES");
    return std::chrono::duration<double>(
        60.0 * std::atof(minutes == nullptr ? "1" : minutes));
  }

  const std::chrono::time_point<std::chrono::steady_clock,
                                std::chrono::duration<double>>
      end_ = std::chrono::steady_clock::now() + SoakTime();
  int rounds_ = 0;  // So far.
};

TEST_P(JobsGoOnTest, AfterAKilledWorkerInF32) {
  ASSERT_NO_FATAL_FAILURE(StartFleetFor(2, {"--dtype", "f32"}));
  int rank = 0;
  ExpectJobsGoOn(3, [&] { StartAgain(rank ^= 1); });
}

TEST_P(JobsGoOnTest, AfterAKilledWorkerInInt8) {
  ASSERT_NO_FATAL_FAILURE(StartFleetFor(2, {"--dtype", "int8"}));
  int rank = 0;
  ExpectJobsGoOn(3, [&] { StartAgain(rank ^= 1); });
}

// A round takes longer than the lease of 10 s.
TEST_P(JobsGoOnTest, AfterAWorkerThatWasFrozenBeyondItsLease) {
  ASSERT_NO_FATAL_FAILURE(StartFleetFor(2, {}));
  ExpectJobsGoOn(1, [this] {
    workers_[1]->Signal(SIGSTOP);
    EXPECT_TRUE(WaitUntil(
        20, [this] { return Status()["workers"][1]["state"] == "lost"; }));
    workers_[1]->Signal(SIGCONT);
  });
}

// Calls and exchanges reach worker 1 through a relay only.
class CutLinkTest : public JobsGoOnTest {
 protected:
  void StartRelayedFleet() {
    const int port = testing::FreePort();
    to_ = "127.0.0.1:" + std::to_string(port);
    ASSERT_NO_FATAL_FAILURE(StartRelay("127.0.0.1:0"));
    ASSERT_NO_FATAL_FAILURE(StartCoordinator(
        2, {"--transport", "grpc", "--parallel", std::to_string(kGoOnJobs)}));
    StartWorker(0);
    StartWorker(1, {},
                {.addresses = {"--listen", to_, "--advertise", relayed_}});
    ASSERT_EQ(WaitForState("ready")["state"], "ready")
        << coordinator_->errors();
    ASSERT_NO_FATAL_FAILURE(RunUndisturbed());
  }

  void StartRelay(const std::string& listen) {
    relay_ =
        Start(RINGFLEET_DELAY_RELAY_BINARY, {"--listen", listen, "--to", to_});
    static constexpr char kWord[] = "listening ";
    ASSERT_TRUE(WaitUntil(10, [this] {
      return relay_->output().find('\n') != std::string::npos;
    })) << relay_->errors();
    relayed_ = relay_->output().substr(sizeof(kWord) - 1);
    relayed_.pop_back();
  }

  // Waits until the epoch has ended.
  void AwaitEnd() {
    EXPECT_TRUE(WaitUntil(20, [this] { return Status()["state"] != "ready"; }));
  }

  std::unique_ptr<Process> relay_;
  std::string relayed_;  // Address of worker 1, as others know it.

 private:
  std::string to_;  // Where worker 1 listens.
};

TEST_P(CutLinkTest, JobsGoOnWhenConnectionsBreak) {
  ASSERT_NO_FATAL_FAILURE(StartRelayedFleet());
  ExpectJobsGoOn(3, [this] {
    relay_->Signal(SIGKILL);
    relay_->Wait(5);
    AwaitEnd();
    StartRelay(relayed_);
  });
}

// The copy of an expert that evaluates a token depends on the other tokens of
// the step and on the mesh. So sums have other orders in other runs.
class NarrowedTest : public JobsGoOnTest {
 protected:
  void ExpectRight(const std::vector<StreamedResult>& results) override {
    ASSERT_EQ(results.size(), right_.size());
    int other_texts = 0;
    for (size_t i = 0; i < results.size(); ++i) {
      const StreamedResult& result = results[i];
      ASSERT_EQ(result.code, grpc::StatusCode::OK) << result.message;
      ASSERT_EQ(result.ids.size(), kGoOnTokens);
      for (size_t t = 0; t < kGoOnTokens; ++t) {
        if (result.ids[t] != right_[i].ids[t]) {
          ++other_texts;
          break;
        }
        ASSERT_NEAR(result.logprobs[t], right_[i].logprobs[t], 1e-3);
      }
    }
    // Two ids are equally likely within rounding once in many thousand tokens.
    EXPECT_LE(other_texts, 1);
  }
};

// Each of two groups holds all experts: the jobs of the lost group go on in the
// other.
TEST_P(NarrowedTest, JobsGoOnWithTheDataGroupThatIsLeft) {
  ASSERT_NO_FATAL_FAILURE(
      StartFleetFor(2, {"--dtype", "f32", "--wire", "f32", "--mesh", "2x1x1",
                        "--expert-slots", "32"}));
  int rank = 0;
  ExpectJobsGoOn(
      3, [&] { workers_[rank ^= 1]->Signal(SIGKILL); },
      [&] {
        EXPECT_EQ(Status()["mesh"]["data"], 1);
        StartAgain(rank);
        EXPECT_TRUE(WaitUntil(30, [this] {
          const json status = Status();
          return status["state"] == "ready" && status["mesh"]["data"] == 2;
        }));
      });
}

// Experts have no copies: the jobs of both groups wait.
TEST_P(JobsGoOnTest, WhenALostDataGroupIsBack) {
  ASSERT_NO_FATAL_FAILURE(
      StartFleetFor(2, {"--mesh", "2x1x1", "--expert-slots", "16"}));
  int rank = 0;
  ExpectJobsGoOn(3, [&] { StartAgain(rank ^= 1); });
}

// A caller who takes one event at a time gets all of them in the end, and
// nobody waits for him.
TEST_P(JobsGoOnTest, BesideCallersWhoReadSlowly) {
  ASSERT_NO_FATAL_FAILURE(StartFleetFor(2, {}));
  while (NextRound(3)) {
    StreamedJobs slow(port());
    StreamedJobs others(port());
    std::vector<StreamedResult> right[2];
    const std::vector<v1::GenerateRequest> requests = GoOnRequests();
    for (int i = 0; i < kGoOnJobs; ++i) {
      const bool held = i % 4 < 2;  // Greedy and seeded ones.
      (held ? slow : others).Generate(requests[i], held);
      right[held].push_back(right_[i]);
    }
    ASSERT_TRUE(WaitUntil(30, [&] { return others.least_tokens() >= 20; }));
    StartAgain(1);
    EXPECT_EQ(others.Wait(), right[false]);
    EXPECT_EQ(slow.least_tokens(), 0u);
    EXPECT_TRUE(
        WaitUntil(30, [this] { return Status()["requests"]["running"] == 0; }));
    EXPECT_EQ(slow.ended(), 0u);
    EXPECT_TRUE(WaitUntil(60, [&] {
      slow.ReadOne();
      return slow.ended() == right[true].size();
    }));
    EXPECT_EQ(slow.Wait(), right[true]);
  }
}

INSTANTIATE_TEST_SUITE_P(Rounds, JobsGoOnTest, ::testing::Values(false),
                         [](const auto&) { return "Few"; });
INSTANTIATE_TEST_SUITE_P(Rounds, NarrowedTest, ::testing::Values(false),
                         [](const auto&) { return "Few"; });
INSTANTIATE_TEST_SUITE_P(Rounds, CutLinkTest, ::testing::Values(false),
                         [](const auto&) { return "Few"; });
INSTANTIATE_TEST_SUITE_P(Soak, JobsGoOnTest, ::testing::Values(true),
                         [](const auto&) { return "Many"; });
INSTANTIATE_TEST_SUITE_P(Soak, NarrowedTest, ::testing::Values(true),
                         [](const auto&) { return "Many"; });
INSTANTIATE_TEST_SUITE_P(Soak, CutLinkTest, ::testing::Values(true),
                         [](const auto&) { return "Many"; });

}  // namespace
}  // namespace ringfleet::integration
