// SPDX-License-Identifier: Apache-2.0
// `ringfleet eplb` as programs call it.
#include <set>

#include "tests/integration/fleet_fixture.h"

namespace ringfleet::integration {
namespace {

using ::testing::AllOf;

class EplbCliTest : public FleetTest {
 protected:
  Arguments Command(const std::string& weights, int replicas, int groups,
                    int nodes, int gpus, Arguments more = {"--json"}) {
    testing::WriteFile(File("loads.json"), weights);
    Arguments command = {"eplb",
                         "--weights",
                         File("loads.json"),
                         "--replicas",
                         std::to_string(replicas),
                         "--groups",
                         std::to_string(groups),
                         "--nodes",
                         std::to_string(nodes),
                         "--gpus",
                         std::to_string(gpus)};
    command.insert(command.end(), more.begin(), more.end());
    return command;
  }
  void ExpectError(const Arguments& command, const std::string& text) {
    const Finished finished = Cli(command);
    EXPECT_EQ(finished.code, 2) << finished.errors;
    EXPECT_THAT(finished.error_line(), HasSubstr(text));
    EXPECT_EQ(finished.document()["error"]["code"], "INVALID_ARGUMENT");
  }
};

TEST_F(EplbCliTest, GivesTheGoldenVectors) {
  const json vectors = json::parse(testing::ReadFile(
      std::string(RINGFLEET_SOURCE_DIR) + "/tests/cluster/eplb_vectors.json"));
  size_t run = 0;
  for (const json& golden : vectors["cases"]) {
    // All of them are the library's test.
    static const std::set<std::string> names = {
        "worked_example", "worked_example_global", "all_zero",
        "float32_rounding", "r1_18nodes_144gpus"};
    const std::string name = golden["name"];
    if (names.count(name) == 0) continue;
    SCOPED_TRACE(name);
    ++run;
    const Finished finished = Cli(
        Command(golden["weight"].dump(), golden["num_replicas"],
                golden["num_groups"], golden["num_nodes"], golden["num_gpus"]));
    ASSERT_EQ(finished.code, 0) << finished.errors;
    EXPECT_EQ(finished.document(), json({{"phy2log", golden["phy2log"]},
                                         {"log2phy", golden["log2phy"]},
                                         {"logcnt", golden["logcnt"]}}));
  }
  EXPECT_EQ(run, 5u);
}

TEST_F(EplbCliTest, WithoutJsonItIsATable) {
  const Finished finished =
      Cli(Command("[[50,20,20,10],[20,50,10,20]]", 6, 1, 1, 2, {}));
  ASSERT_EQ(finished.code, 0) << finished.errors;
  EXPECT_THAT(finished.output,
              AllOf(HasSubstr("| layer | max/mean before | EPLB |"),
                    HasSubstr("mean over layers 1.400 before")));
}

TEST_F(EplbCliTest, UnevenGpusHaveAKeyOfTheirOwn) {
  const std::string loads = "[[50,20,20,10],[20,50,10,20]]";
  const Finished finished =
      Cli(Command(loads, 6, 1, 1, 2,
                  {"--gpu-slots", "4,2", "--gpu-speeds", "2,1", "--json"}));
  ASSERT_EQ(finished.code, 0) << finished.errors;
  const json document = finished.document();
  EXPECT_EQ(document["phy2log"],
            Cli(Command(loads, 6, 1, 1, 2)).document()["phy2log"]);
  EXPECT_EQ(document["uneven"]["gpu_slots"], json({4, 2}));
  // By memory, where slots cannot be equal.
  const json odd =
      Cli(Command(loads, 5, 1, 1, 2, {"--gpu-memory", "128,64", "--json"}))
          .document();
  EXPECT_EQ(odd["uneven"]["gpu_slots"], json({3, 2}));
  EXPECT_EQ(odd["phy2log"], nullptr);
}

TEST_F(EplbCliTest, BadInputIsOneLineAndExits2) {
  const std::string four = "[[1,2,3,4]]";
  ExpectError(Command("[[1,2],[3]]", 2, 1, 1, 1),
              "eplb: " + File("loads.json") + ": layer 1: 1 loads, want 2");
  ExpectError(Command("[[1,-2]]", 2, 1, 1, 1), "layer 0, expert 1: load -2");
  ExpectError(Command("[[1,NaN]]", 2, 1, 1, 1), "parse error at line 1");
  ExpectError(Command(four, 3, 1, 1, 1), "eplb: replicas 3, want 4");
  ExpectError(Command(four, 5, 1, 1, 2), "replicas 5, want a multiple of");
  ExpectError(Command(four, 4, 1, 1, 0), "eplb: GPUs 0, want 1 to");
  ExpectError(Command(four, 6, 1, 2, 2, {"--policy", "hierarchical", "--json"}),
              "groups 1, want a multiple of the 2 nodes");
  ExpectError(Command(four, 6, 1, 2, 2, {"--policy", "best", "--json"}),
              "usage: ");
  ExpectError(Command(four, 6, 1, 1, 2, {"--gpu-slots", "4,1", "--json"}),
              "slots of all GPUs together 5, want 6");
  ExpectError(Command(four, 6, 1, 1, 2, {"--gpu-slots", "4,x", "--json"}),
              "--gpu-slots 'x', want numbers");
  ExpectError(Command(four, 6, 1, 1, 2, {"--gpu-slots", "4,1.5", "--json"}),
              "--gpu-slots 1.5, want whole numbers");
  ExpectError(Command(four, 6, 1, 1, 2, {"--gpu-speeds", "1", "--json"}),
              "number of GPUs with speeds 1, want 2");
  ExpectError(Command(four, 6, 1, 1, 2, {"--gpu-memory", "1,2,3", "--json"}),
              "--gpu-memory of 3 GPUs, want 2");
  ExpectError({"eplb", "--replicas", "4", "--gpus", "1", "--json"},
              "--weights");
  const Finished absent = Cli(
      {"eplb", "--weights", File("absent"), "--replicas", "4", "--gpus", "1"});
  EXPECT_EQ(absent.code, 2);
  EXPECT_THAT(absent.error_line(), HasSubstr(File("absent")));
}

}  // namespace
}  // namespace ringfleet::integration
