// SPDX-License-Identifier: Apache-2.0
// Hosts that go and come back while a fleet of data groups serves.
#include <atomic>
#include <csignal>
#include <iterator>
#include <thread>

#include "tests/integration/fleet_fixture.h"
#include "tests/testing/golden.h"

namespace ringfleet::integration {
namespace {

class LostHostTest : public HandFleet {
 protected:
  void StartGroups(int world, const std::string& mesh, int slots) {
    ASSERT_NO_FATAL_FAILURE(
        StartFleet(world, {"--dtype", "f32", "--wire", "f32", "--mesh", mesh,
                           "--expert-slots", std::to_string(slots)}));
  }

  // The prompts' continuations are those of the goldens, all at once.
  void ExpectGoldens() {
    std::vector<std::unique_ptr<Process>> jobs;
    for (const json& expected : golden_) jobs.push_back(SubmitOne(expected));
    for (size_t i = 0; i < jobs.size(); ++i) ExpectGolden(golden_[i], *jobs[i]);
  }

  std::unique_ptr<Process> SubmitOne(const json& expected) {
    return StartCli({"submit", "--cluster", cluster(), "--prompt-ids",
                     JoinIds(expected["prompt_ids"]), "-n",
                     std::to_string(expected["greedy_ids"].size()), "--temp",
                     "0", "--ignore-eos", "--json"});
  }

  void ExpectGolden(const json& expected, Process& process) {
    const Finished job = Finish(process);
    ASSERT_EQ(job.code, 0) << job.errors;
    testing::ExpectGreedy(expected,
                          job.document()["ids"].get<std::vector<uint32_t>>());
  }

  // Waits until a later epoch serves with so many data groups.
  json WaitForGroups(int groups, const json& before, double seconds = 30) {
    json now;
    EXPECT_TRUE(WaitUntil(seconds, [&] {
      now = Status();
      return now["state"] == "ready" && now["epoch"] > before["epoch"] &&
             now["mesh"]["data"] == groups;
    })) << now;
    return now;
  }

  // What the workers' logs say of it.
  int CountInLogs(const std::string& what) {
    int count = 0;
    for (const auto& [rank, worker] : workers_) {
      const std::string log = worker->errors();
      for (size_t at = log.find(what); at != std::string::npos;
           at = log.find(what, at + 1)) {
        ++count;
      }
    }
    return count;
  }

  // All but the longest prompt.
  const json golden_ = [] {
    json cases = Golden("tiny-v3")["cases"];
    cases.erase(std::prev(cases.end()));
    return cases;
  }();
};

// Two groups that both hold all experts: one goes on without the other, and
// loads nothing for it; the other comes back while jobs run, and none fails.
TEST_F(LostHostTest, TheFleetGoesOnAndBecomesWholeAgain) {
  ASSERT_NO_FATAL_FAILURE(StartGroups(2, "2x1x1", 32));
  ASSERT_NO_FATAL_FAILURE(ExpectGoldens());
  const json whole = Status();
  EXPECT_EQ(whole["mesh"]["data"], 2);
  EXPECT_EQ(whole["data_groups"], json({{"serving", 2}, {"total", 2}}));
  EXPECT_EQ(CountInLogs("of weights in"), 2);

  workers_[1]->Signal(SIGKILL);
  const json narrowed = WaitForGroups(1, whole);
  EXPECT_EQ(narrowed["workers"][0]["state"], "ready");
  EXPECT_EQ(narrowed["workers"][1]["state"], "lost");
  EXPECT_EQ(narrowed["workers"][0]["resident_bytes"],
            whole["workers"][0]["resident_bytes"]);
  EXPECT_EQ(CountInLogs("kept "), 1);
  EXPECT_EQ(narrowed["data_groups"], json({{"serving", 1}, {"total", 2}}));
  const Finished bench =
      Cli({"bench", "--cluster", cluster(), "-p", "8", "-n", "0", "-r", "1",
           "--no-memory-test", "-o", "json"});
  ASSERT_EQ(bench.code, 0) << bench.errors;
  EXPECT_EQ(bench.document()[0]["world"], 1);
  ASSERT_NO_FATAL_FAILURE(ExpectGoldens());
  const Finished refused = Cli({"rebalance", "--cluster", cluster()});
  EXPECT_EQ(refused.code, 3) << refused.errors;
  EXPECT_THAT(refused.error_line(), HasSubstr("1 of 2 workers serve"));

  // Jobs without a pause.
  std::atomic<bool> stop = false;
  std::atomic<int> done = 0;
  std::thread user([&] {
    while (!stop && !HasFailure()) {
      const json& expected = golden_[done % golden_.size()];
      ExpectGolden(expected, *SubmitOne(expected));
      ++done;
    }
  });
  StartWorker(1);
  const json again = WaitForGroups(2, narrowed);
  const int until_then = done;
  EXPECT_TRUE(WaitUntil(30, [&] { return done > until_then + 2; }));
  stop = true;
  user.join();
  EXPECT_EQ(again["workers"][1]["state"], "ready");
  // The survivor twice; the other what it had loaded ahead.
  EXPECT_EQ(CountInLogs("kept "), 3);
  ASSERT_NO_FATAL_FAILURE(ExpectGoldens());
}

// Where experts have no copy elsewhere, the fleet waits for the worker.
TEST_F(LostHostTest, WithoutCopiesTheFleetWaits) {
  ASSERT_NO_FATAL_FAILURE(StartGroups(2, "2x1x1", 16));
  const json whole = Status();
  workers_[1]->Signal(SIGKILL);
  const json failed = WaitForState("failed");
  EXPECT_EQ(failed["epoch"], whole["epoch"]);
  StartWorker(1);
  const json again = WaitForGroups(2, whole);
  // Who has survived loads nothing anew.
  EXPECT_EQ(CountInLogs("kept "), 1);
  ASSERT_NO_FATAL_FAILURE(ExpectGoldens());
}

// A job in the middle of a generation goes on with the group that is left. A
// second loss leaves none.
TEST_F(LostHostTest, ARunningJobGoesOnWithTheGroupThatIsLeft) {
  ASSERT_NO_FATAL_FAILURE(StartGroups(4, "2x1x2", 32));
  const json whole = Status();
  const auto job =
      StartCli({"submit", "--cluster", cluster(), "--prompt-ids", "1,2,3", "-n",
                "400", "--temp", "0", "--ignore-eos"});
  ASSERT_TRUE(WaitUntil(20, [&] { return job->output().size() > 20; }));
  workers_[2]->Signal(SIGKILL);
  const Finished ended = Finish(*job);
  EXPECT_EQ(ended.code, 0) << ended.errors;
  EXPECT_THAT(ended.errors, HasSubstr("worker 2 "));
  const json narrowed = WaitForGroups(1, whole);
  // The lost worker's group has another, which waits.
  EXPECT_EQ(narrowed["workers"][2]["state"], "lost");
  EXPECT_EQ(narrowed["workers"][3]["state"], "registered");
  ASSERT_NO_FATAL_FAILURE(ExpectGoldens());
  workers_[0]->Signal(SIGKILL);
  WaitForState("failed");
}

}  // namespace
}  // namespace ringfleet::integration
