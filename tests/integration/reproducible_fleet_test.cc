// SPDX-License-Identifier: Apache-2.0
// A reproducible fleet gives a job the same bits cold, cached, in a crowd that
// takes its blocks, and after the loss of a host.
#include <signal.h>

#include <random>
#include <string>
#include <vector>

#include "tests/integration/fleet_fixture.h"
#include "tests/integration/streamed_jobs.h"

namespace ringfleet::integration {
namespace {

struct ReproducibleWorld {
  int size = 1;
  uint32_t groups = 1;  // Data groups.
  std::string mesh;
  std::string wire;
  std::string expert_slots;  // Empty: no copies.
};

class ReproducibleFleetTest
    : public HandFleet,
      public ::testing::WithParamInterface<ReproducibleWorld> {
 protected:
  static constexpr uint32_t kCrowd = kSanitized ? 6 : 8;  // Of each group.
  static constexpr uint32_t kTokens = 120;

  void SetUp() override {
    const ReproducibleWorld& world = GetParam();
    // Without rank order, rows of prompts would be summed along a ring.
    const std::string size = std::to_string(world.size);
    testing::WriteFile(
        File("tiny-borders.json"),
        world.size == 1
            ? std::string(R"({"rows": []})")
            : R"({"rows": [{"operation": "all_reduce", "size": )" + size +
                  R"(, "one_shot_max_bytes": 64, "two_shot_max_bytes": 9000}]})");
    Arguments more = {"--reproducible",
                      "--dtype",
                      "int8",
                      "--mesh",
                      world.mesh,
                      "--wire",
                      world.wire,
                      "--parallel",
                      "16",
                      "--cache-positions",
                      "2048",
                      "--collectives",
                      File("tiny-borders.json")};
    if (!world.expert_slots.empty()) {
      more.insert(more.end(), {"--expert-slots", world.expert_slots});
    }
    ASSERT_NO_FATAL_FAILURE(StartFleet(world.size, more));
  }

  static v1::GenerateRequest Request(uint32_t text, int prompt, uint32_t tokens,
                                     double temperature) {
    v1::GenerateRequest request;
    std::mt19937 random(text);
    for (int i = 0; i < prompt; ++i) {
      request.mutable_prompt()->mutable_ids()->add_ids(
          static_cast<uint32_t>(random() % 100));
    }
    request.set_max_tokens(tokens);
    request.set_ignore_eos(true);
    request.set_temperature(static_cast<float>(temperature));
    request.set_seed(text);
    return request;
  }

  // Begins the jobs under test: a greedy one and one with a seed.
  static void BeginBoth(StreamedJobs& jobs) {
    jobs.Generate(Request(1, 300, kTokens, 0));
    jobs.Generate(Request(2, 200, kTokens, 0.9));
  }

  uint64_t Preemptions() { return Status()["cache"]["preemptions"]; }
};

TEST_P(ReproducibleFleetTest, ATextIsOneHoweverItIsEvaluated) {
  std::vector<StreamedResult> cold;
  for (const bool drawn : {false, true}) {
    StreamedJobs jobs(port());
    jobs.Generate(drawn ? Request(2, 200, kTokens, 0.9)
                        : Request(1, 300, kTokens, 0));
    cold.push_back(jobs.Wait()[0]);
    ASSERT_EQ(cold.back().code, grpc::StatusCode::OK);
    ASSERT_EQ(cold.back().ids.size(), kTokens);
  }
  {
    StreamedJobs jobs(port());
    BeginBoth(jobs);
    EXPECT_EQ(jobs.Wait(), cold) << "cached";
  }
  {
    // All enter with two blocks, and need five or six.
    StreamedJobs crowd(port());
    const uint32_t size = kCrowd * GetParam().groups;
    for (uint32_t text = 10; text < 10 + size; ++text) {
      crowd.Generate(
          Request(text, 200 + 7 * static_cast<int>(text % 10), 450, 1));
    }
    StreamedJobs jobs(port());
    BeginBoth(jobs);
    EXPECT_EQ(jobs.Wait(), cold) << "in a crowd";
    crowd.Wait();
    EXPECT_GT(Preemptions(), 0u);
  }
  StreamedJobs jobs(port());
  BeginBoth(jobs);
  ASSERT_TRUE(WaitUntil(30, [&] { return jobs.least_tokens() > 0; }));
  workers_[0]->Signal(SIGKILL);
  workers_[0]->Wait(10);
  StartWorker(0);
  EXPECT_EQ(jobs.Wait(), cold) << "after a lost host";
}

INSTANTIATE_TEST_SUITE_P(
    Worlds, ReproducibleFleetTest,
    ::testing::Values(ReproducibleWorld{1, 1, "1x1x1", "bf16", ""},
                      ReproducibleWorld{2, 2, "2x1x1", "bf16", "32"},
                      ReproducibleWorld{3, 1, "1x3x1", "int8", "24"}),
    [](const auto& info) { return "Of" + std::to_string(info.param.size); });

}  // namespace
}  // namespace ringfleet::integration
