// SPDX-License-Identifier: Apache-2.0
// Experts that move while a fleet of processes serves.
#include <csignal>
#include <iterator>

#include "tests/integration/fleet_fixture.h"
#include "tests/testing/golden.h"

namespace ringfleet::integration {
namespace {

const Arguments kExact = {"--dtype", "f32", "--wire", "f32"};

Arguments With(Arguments arguments, const Arguments& more) {
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

class RebalanceTest : public HandFleet {
 protected:
  // The prompts' probabilities are those of the goldens.
  void ExpectGoldens(const Arguments& fleet) {
    for (const json& expected : golden_) {
      const Finished scored = Cli(
          With({"score", "--ids", JoinIds(expected["prompt_ids"]), "--json"},
               fleet));
      ASSERT_EQ(scored.code, 0) << scored.errors;
      const json logprobs = scored.document()["logprobs"];
      const json& want = expected["prompt_token_logprobs"];
      ASSERT_EQ(logprobs.size(), want.size());
      for (size_t i = 0; i < want.size(); ++i) {
        EXPECT_NEAR(logprobs[i].get<double>(), want[i].get<double>(),
                    testing::kGoldenLogprobTolerance)
            << "position " << i;
      }
    }
  }

  // All but the longest prompt, which uses experts evenly.
  const json golden_ = [] {
    json cases = Golden("tiny-v3")["cases"];
    cases.erase(std::prev(cases.end()));
    return cases;
  }();

  json Rebalance(Arguments more = {}) {
    const Finished finished =
        Cli(With({"rebalance", "--cluster", cluster(), "-o", "json"}, more));
    EXPECT_EQ(finished.code, 0) << finished.errors;
    return finished.document();
  }
};

TEST_F(RebalanceTest, ExpertsMoveWhileJobsRun) {
  // Without copies, of which any balance two coordinates.
  ASSERT_NO_FATAL_FAILURE(StartFleet(2, With(kExact, {"--mesh", "1x2x1"})));
  ASSERT_NO_FATAL_FAILURE(ExpectGoldens({"--cluster", cluster()}));
  const json busy = Status({"--experts"})["expert_balance"];
  EXPECT_EQ(busy.size(), 5u);
  EXPECT_EQ(busy["1"]["held"], 16);
  EXPECT_GE(busy["1"]["imbalance"].get<double>(), 1.0);
  const json proposed = Rebalance({"--dry-run"});
  EXPECT_EQ(proposed["moved"], false);
  EXPECT_GT(proposed["bytes_to_load"].get<uint64_t>(), 0u);
  EXPECT_GT(proposed["imbalance_before"].get<double>(), 1.02);
  EXPECT_LT(proposed["imbalance_after"].get<double>(),
            proposed["imbalance_before"].get<double>());

  std::vector<std::unique_ptr<Process>> jobs;
  for (const json& expected : golden_) {
    jobs.push_back(StartCli({"submit", "--cluster", cluster(), "--prompt-ids",
                             JoinIds(expected["prompt_ids"]), "-n",
                             std::to_string(expected["greedy_ids"].size()),
                             "--temp", "0", "--ignore-eos", "--json"}));
  }
  const json moved = Rebalance();
  EXPECT_EQ(moved["moved"], true);
  for (size_t i = 0; i < jobs.size(); ++i) {
    const Finished job = Finish(*jobs[i]);
    ASSERT_EQ(job.code, 0) << job.errors;
    testing::ExpectGreedy(golden_[i],
                          job.document()["ids"].get<std::vector<uint32_t>>());
  }
  ASSERT_NO_FATAL_FAILURE(ExpectGoldens({"--cluster", cluster()}));
  // How well that fits what runs now depends on how many of the jobs' tokens
  // had been counted; one token a thousand times does not fit it.
  ASSERT_EQ(Cli({"score", "--cluster", cluster(), "--ids",
                 JoinIds(json(std::vector<int>(1000, 300)))})
                .code,
            0);
  const json copied = Rebalance({"--slots", "24"});
  EXPECT_EQ(copied["moved"], true) << copied;
  ASSERT_NO_FATAL_FAILURE(ExpectGoldens({"--cluster", cluster()}));
  const Finished refused =
      Cli({"rebalance", "--cluster", cluster(), "--slots", "33"});
  EXPECT_EQ(refused.code, 2);
  EXPECT_THAT(refused.error_line(), HasSubstr("expert slots 33, want 16"));

  // The next epoch begins with what was moved.
  const json before = Status();
  workers_[1]->Signal(SIGKILL);
  StartWorker(1);
  ASSERT_TRUE(WaitUntil(60, [&] {
    const json now = Status();
    return now["state"] == before["state"] && now["epoch"] > before["epoch"];
  }));
  ASSERT_NO_FATAL_FAILURE(ExpectGoldens({"--cluster", cluster()}));
}

// A fleet that looks at the imbalance every second and minds any.
TEST_F(RebalanceTest, ExpertsMoveByThemselves) {
  const std::string fleet = File("auto.yaml");
  testing::WriteFile(
      fleet, "model: " + Model() +
                 "\ndtype: f32\nwire: f32\ncoordinator: {port: " +
                 std::to_string(testing::FreePort()) +
                 "}\nmesh: {expert: 2}\n"
                 "experts: {rebalance: auto, interval_s: 1, threshold: 1.001}\n"
                 "workers:\n  - {port: 0, threads: 1}\n"
                 "  - {port: 0, threads: 1}\n");
  const Finished up = Cli({"up", "--cluster", fleet}, {.seconds = 60});
  ASSERT_EQ(up.code, 0) << up.errors;
  ExpectGoldens({"--cluster", fleet});
  // Over five layers: 6.1 where experts began, 5.1 where they balance.
  double sum = 0;
  EXPECT_TRUE(WaitUntil(30, [&] {
    const json status =
        Cli({"status", "--cluster", fleet, "--experts", "-o", "json"})
            .document();
    sum = 0;
    for (const json& layer : status["expert_balance"]) {
      sum += layer["imbalance"].get<double>();
    }
    return sum < 5.3;
  })) << sum;
  ExpectGoldens({"--cluster", fleet});
  EXPECT_EQ(Cli({"down", "--cluster", fleet}, {.seconds = 40}).code, 0);
}

TEST_F(RebalanceTest, WithOneCoordinateThereIsNothingToMove) {
  ASSERT_NO_FATAL_FAILURE(StartFleet(2));
  const Finished refused = Cli({"rebalance", "--cluster", cluster()});
  EXPECT_EQ(refused.code, 2);
  EXPECT_THAT(refused.error_line(),
              HasSubstr("the mesh's data and expert axes are 1 x 1"));
}

TEST_F(RebalanceTest, LocalFleetsHaveMeshesAndCopies) {
  ASSERT_NO_FATAL_FAILURE(
      ExpectGoldens(With(kExact, {"--model", Model(), "--local", "2", "--mesh",
                                  "1x2x1", "--expert-slots", "24"})));
}

TEST_F(RebalanceTest, BadOptionsAreUsageErrors) {
  const auto error = [&](const Arguments& more) {
    const Finished refused = Cli(With(
        {"score", "--model", Model(), "--local", "2", "--ids", "1,2"}, more));
    EXPECT_EQ(refused.code, 2);
    return refused.error_line();
  };
  EXPECT_THAT(error({"--mesh", "1x2"}), HasSubstr("want DATAxEXPERTxTENSOR"));
  EXPECT_THAT(error({"--mesh", "1x4x1"}), HasSubstr("want --local 4"));
  EXPECT_THAT(error({"--mesh", "1x2x1", "--expert-slots", "3"}),
              HasSubstr("expert slots 3, want 16"));
}

}  // namespace
}  // namespace ringfleet::integration
