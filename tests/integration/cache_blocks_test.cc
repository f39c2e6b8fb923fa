// SPDX-License-Identifier: Apache-2.0
// More sequences than the cache holds: some give their blocks up and go on
// later, and every text is that of a run alone.
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "tests/integration/fleet_fixture.h"
#include "tests/testing/sanitized.h"

namespace ringfleet::integration {
namespace {

struct Crowd {
  int jobs = 0;
  int prompt_n = 0;
  int tokens = 0;
  int cache_positions = 0;
};

class CacheBlocksTest : public HandFleet {
 protected:
  void StartCrowdedFleet(const Crowd& crowd) {
    crowd_ = crowd;
    ASSERT_NO_FATAL_FAILURE(
        StartFleet(2, {"--dtype", "f32", "--parallel",
                       std::to_string(crowd.jobs + 1), "--cache-positions",
                       std::to_string(crowd.cache_positions), "--reference"}));
  }

  // Random ids. Every other job is greedy.
  std::unique_ptr<Process> StartJob(int job) {
    return StartCli({"submit", "--cluster", cluster(), "--prompt-ids",
                     Ids(job, crowd_.prompt_n), "-n",
                     std::to_string(crowd_.tokens), "--temp",
                     job % 2 == 0 ? "0" : "0.9", "--seed", std::to_string(job),
                     "--ignore-eos", "--json"});
  }

  std::unique_ptr<Process> StartScore() {
    std::string text;
    for (int i = 0; i < 60; ++i) text += "x" + std::to_string(i * i) + ", ";
    return StartCli({"score", "--cluster", cluster(), "-p", text, "--reference",
                     "f32", "--json"});
  }

  static std::string Ids(uint32_t seed, int count) {
    std::mt19937 random(seed);
    std::string ids;
    for (int i = 0; i < count; ++i) {
      if (i > 0) ids += ",";
      ids += std::to_string(random() % 100);
    }
    return ids;
  }

  // Runs all jobs together, then each alone.
  void ExpectTheTextsOfLoneRuns(double seconds) {
    std::vector<std::unique_ptr<Process>> processes;
    for (int job = 0; job < crowd_.jobs; ++job) {
      processes.push_back(StartJob(job));
    }
    const std::unique_ptr<Process> scoring = StartScore();
    std::vector<json> crowded;
    for (const auto& process : processes) {
      const Finished job = Finish(*process, seconds);
      ASSERT_EQ(job.code, 0) << job.errors;
      crowded.push_back(job.document());
    }
    const Finished crowded_score = Finish(*scoring, seconds);
    ASSERT_EQ(crowded_score.code, 0) << crowded_score.errors;
    const json cache = Status()["cache"];
    EXPECT_EQ(cache["blocks_total"], crowd_.cache_positions / 128);
    EXPECT_EQ(cache["blocks_used"], 0);
    EXPECT_GT(cache["preemptions"], 0);
    EXPECT_GT(cache["recomputed_positions"], 0);
    EXPECT_LE(cache["recomputed_positions"], 2 * crowd_.jobs * crowd_.tokens);
    RecordProperty("preemptions", cache["preemptions"].dump());
    RecordProperty("recomputed", cache["recomputed_positions"].dump());
    for (int job = 0; job < crowd_.jobs; ++job) {
      const Finished alone = Finish(*StartJob(job), seconds);
      ASSERT_EQ(alone.code, 0) << alone.errors;
      const json document = alone.document();
      EXPECT_EQ(document["ids"].size(), crowd_.tokens);
      EXPECT_EQ(crowded[job]["ids"], document["ids"]) << "job " << job;
      EXPECT_EQ(crowded[job]["logprobs"], document["logprobs"])
          << "job " << job;
    }
    const Finished score = Finish(*StartScore(), seconds);
    EXPECT_EQ(crowded_score.document(), score.document());
    // None of the lone runs had to give anything up.
    EXPECT_EQ(Status()["cache"]["preemptions"], cache["preemptions"]);
  }

 private:
  Crowd crowd_;
};

TEST_F(CacheBlocksTest, ACrowdOnASmallCacheGetsTheTextsOfLoneRuns) {
  // Six enter with a block each, and need four.
  const int jobs = kSanitized ? 6 : 8;
  ASSERT_NO_FATAL_FAILURE(StartCrowdedFleet({.jobs = jobs,
                                             .prompt_n = 100,
                                             .tokens = 300,
                                             .cache_positions = 3 * 512}));
  ASSERT_NO_FATAL_FAILURE(ExpectTheTextsOfLoneRuns(60));
}

TEST_F(CacheBlocksTest, TwentySequencesOfSixtyFourSoak) {
  ASSERT_NO_FATAL_FAILURE(StartCrowdedFleet({.jobs = 64,
                                             .prompt_n = 300,
                                             .tokens = 600,
                                             .cache_positions = 20 * 1024}));
  ASSERT_NO_FATAL_FAILURE(ExpectTheTextsOfLoneRuns(600));
}

TEST_F(CacheBlocksTest, ALoneSequenceThatFillsTheCacheEndsWithLength) {
  ASSERT_NO_FATAL_FAILURE(
      StartFleet(1, {"--dtype", "f32", "--cache-positions", "300"}));
  const json status = Status();
  EXPECT_EQ(status["cache"]["blocks_total"], 2);
  const Finished job =
      Cli({"submit", "--cluster", cluster(), "--prompt-ids", Ids(1, 250), "-n",
           "-1", "--temp", "0", "--ignore-eos", "--json"});
  ASSERT_EQ(job.code, 0) << job.errors;
  EXPECT_EQ(job.document()["ids"].size(), 7u);  // The last is not cached.
  EXPECT_EQ(job.document()["finish_reason"], "length");
  const Finished longer = Cli({"submit", "--cluster", cluster(), "--prompt-ids",
                               Ids(1, 257), "-n", "1"});
  EXPECT_EQ(longer.code, 2) << longer.errors;
  EXPECT_THAT(longer.error_line(), HasSubstr("257 tokens, want at most 256"));
}

}  // namespace
}  // namespace ringfleet::integration
