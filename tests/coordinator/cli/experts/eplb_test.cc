// SPDX-License-Identifier: Apache-2.0
// `ringfleet eplb`: from a file of loads to a document and a table.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "coordinator/cli/experts/eplb_report.h"
#include "coordinator/cli/experts/expert_loads.h"
#include "tests/testing/checkpoint_writer.h"

namespace ringfleet::coordinator::cli {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

std::string LoadsError(absl::string_view json) {
  const auto loads = ParseExpertLoads(json);
  if (loads.ok()) return "accepted";
  EXPECT_EQ(loads.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(loads.status().message());
}

TEST(ExpertLoadsTest, ReadsArraysAndWhatStatusPrints) {
  const ExpertLoads rows = ParseExpertLoads("[[1, 2.5], [3, 0]]").value();
  EXPECT_EQ(rows.num_experts, 2);
  EXPECT_THAT(rows.layers, ElementsAre("0", "1"));
  EXPECT_THAT(rows.loads, ElementsAre(1, 2.5, 3, 0));
  EXPECT_THAT(rows.layer(1), ElementsAre(3, 0));
  // Layers keep their order and number: the first one may be dense.
  const ExpertLoads status =
      ParseExpertLoads(
          R"({"epoch": 1, "experts": {"3": [1, 2], "11": [3, 4]}})")
          .value();
  EXPECT_THAT(status.layers, ElementsAre("3", "11"));
  EXPECT_THAT(status.loads, ElementsAre(1, 2, 3, 4));
}

// 2^24 + 1 and 2^53 + 2^29 + 1 lie between two of float32's numbers: integers
// are rounded once.
TEST(ExpertLoadsTest, RoundsToTheNearestFloat) {
  const ExpertLoads loads =
      ParseExpertLoads("[[16777217, 16777219, 9007199791611905]]").value();
  EXPECT_THAT(loads.loads,
              ElementsAre(16777216.0f, 16777220.0f, 9007200328482816.0f));
}

TEST(ExpertLoadsTest, ErrorsSayWhatAndWhere) {
  EXPECT_THAT(LoadsError(""), HasSubstr("want [[loads of layer 0]"));
  EXPECT_THAT(LoadsError("[[1, 2]"), AllOf(HasSubstr("parse error at line 1"),
                                           HasSubstr("want [[loads")));
  EXPECT_THAT(LoadsError("[[NaN]]"), HasSubstr("parse error"));
  EXPECT_THAT(LoadsError("[[1e999]]"), HasSubstr("1e999"));
  EXPECT_THAT(LoadsError("[]"), HasSubstr("[], want [[loads"));
  EXPECT_THAT(LoadsError("7"), HasSubstr("7, want [[loads"));
  EXPECT_THAT(LoadsError("{}"), HasSubstr("{}, want"));
  EXPECT_THAT(LoadsError(R"({"experts": 3})"), HasSubstr("want [[loads"));
  EXPECT_THAT(LoadsError(R"({"experts": {}})"), HasSubstr("want [[loads"));
  EXPECT_THAT(LoadsError("[1, 2]"), HasSubstr("layer 0: 1, want an array"));
  EXPECT_THAT(LoadsError("[[]]"), HasSubstr("layer 0: [], want an array"));
  EXPECT_THAT(LoadsError("[[1, 2], [3]]"),
              HasSubstr("layer 1: 1 loads, want 2 as in layer 0"));
  EXPECT_THAT(LoadsError("[[1, null]]"),
              HasSubstr("layer 0, expert 1: load null, want a number from 0"));
  EXPECT_THAT(LoadsError("[[1, \"2\"]]"), HasSubstr("load \"2\""));
  EXPECT_THAT(LoadsError("[[1, -2]]"), HasSubstr("expert 1: load -2"));
  EXPECT_THAT(LoadsError("[[1e39, 1]]"), HasSubstr("expert 0: load 1e+39"));
  const std::string deep(100000, '[');
  EXPECT_THAT(LoadsError(deep), HasSubstr("nested too deeply"));
  EXPECT_LT(LoadsError("[[" + std::string(5000, 'x')).size(), 6000u);
  EXPECT_THAT(LoadsError("[\"" + std::string(5000, 'x') + "\"]"),
              AllOf(HasSubstr("...,"), Not(HasSubstr(std::string(50, 'x')))));
}

TEST(ExpertLoadsTest, FilesAreNamed) {
  const testing::TempDir dir;
  testing::WriteFile(dir.File("loads.json"), "[[1],");
  EXPECT_THAT(
      std::string(ReadExpertLoads(dir.File("loads.json")).status().message()),
      HasSubstr("loads.json: "));
  EXPECT_TRUE(
      absl::IsNotFound(ReadExpertLoads(dir.File("absent.json")).status()));
  const absl::Status folder = ReadExpertLoads(dir.File("")).status();
  EXPECT_TRUE(absl::IsInvalidArgument(folder)) << folder;
}

EplbResult Example() {
  EplbResult result;
  result.loads = ParseExpertLoads(R"({"experts": {
      "3": [90,132,40,61,104,165,39,4,73,56,183,86],
      "4": [20,107,104,64,19,197,187,157,172,86,16,27]}})")
                     .value();
  result.request = {
      .num_replicas = 16, .num_groups = 4, .num_nodes = 2, .num_gpus = 8};
  result.plain =
      cluster::PlaceExperts(result.loads.loads, 12, result.request).value();
  return result;
}

TEST(EplbReportTest, TheDocumentHasRowsOfLayersAndExperts) {
  const Json document = EplbJson(Example());
  ASSERT_EQ(document.size(), 3u);
  EXPECT_EQ(document["phy2log"][1].dump(),
            "[7,10,6,8,6,11,8,9,2,4,5,1,5,0,3,1]");
  EXPECT_EQ(document["logcnt"][0].dump(), "[1,2,1,1,2,2,1,1,1,1,2,1]");
  EXPECT_EQ(document["log2phy"][0].dump(),
            "[[12,-1],[15,13],[11,-1],[6,-1],[7,5],[0,2],[1,-1],[3,-1],[4,-1],"
            "[9,-1],[8,10],[14,-1]]");
}

TEST(EplbReportTest, TheTableShowsLoadsBeforeAndAfter) {
  const std::string table = EplbMarkdown(Example());
  EXPECT_THAT(table, HasSubstr("2 layers of 12 experts on 8 GPUs, 16 slots in "
                               "all; hierarchical: 4 groups stay on 2 nodes"));
  EXPECT_THAT(table, HasSubstr("before: experts in order, one copy each"));
  EXPECT_THAT(table, HasSubstr("| 3 | 2.083 | 1.208 | 2 | 121.5 86.5 125 113 "
                               "147.5 131.5 156 152 |"));
  EXPECT_THAT(table, HasSubstr("| 4 | 2.277 | 1.242 |"));
  EXPECT_THAT(table, HasSubstr("2.277 (layer 4) before, 1.242 (layer 4)"));
  // 156 + 179.5 of 269 + 329.
  EXPECT_THAT(table, HasSubstr("take 56 % of the time"));
}

TEST(EplbReportTest, ManyGpusAreSummedUp) {
  EplbResult result;
  result.loads.layers = {"0"};
  result.loads.num_experts = 32;
  for (int e = 0; e < 32; ++e) {
    result.loads.loads.push_back(e == 5 ? 9e6f : 1.5f);
  }
  result.request = {.num_replicas = 32, .num_gpus = 32};
  result.plain =
      cluster::PlaceExperts(result.loads.loads, 32, result.request).value();
  EXPECT_THAT(EplbMarkdown(result),
              HasSubstr("| 1.5 (GPU 0) to 9000000 (GPU 5) |"));
}

TEST(EplbReportTest, UnevenGpusStandBesideThePlainPlacement) {
  EplbResult result = Example();
  result.request.gpu_slots = {4, 2, 2, 2, 2, 2, 1, 1};
  result.request.gpu_speeds = {2, 1, 1, 1, 1, 1, 0.5, 0.5};
  result.uneven =
      cluster::PlaceExperts(result.loads.loads, 12, result.request).value();
  const Json document = EplbJson(result);
  EXPECT_EQ(document["phy2log"], EplbJson(Example())["phy2log"]);
  const Json& uneven = document["uneven"];
  EXPECT_EQ(uneven["gpu_slots"].dump(), "[4,2,2,2,2,2,1,1]");
  EXPECT_EQ(uneven["gpu_speeds"][6], 0.5);
  EXPECT_EQ(uneven["phy2log"][0].size(), 16u);
  ASSERT_EQ(uneven["imbalance"]["uneven"].size(), 2u);
  for (int layer = 0; layer < 2; ++layer) {
    EXPECT_LT(uneven["imbalance"]["uneven"][layer],
              uneven["imbalance"]["plain"][layer]);
  }
  EXPECT_THAT(EplbMarkdown(result),
              AllOf(HasSubstr("| max/mean before | plain EPLB | these GPUs |"),
                    HasSubstr("the largest load / speed of a GPU"),
                    HasSubstr("slots of GPUs 4 2 2 2 2 2 1 1"),
                    HasSubstr("speeds of GPUs 2 1 1 1 1 1 0.5 0.5")));
  result.plain.reset();
  EXPECT_TRUE(EplbJson(result)["phy2log"].is_null());
  EXPECT_TRUE(EplbJson(result)["uneven"]["imbalance"]["plain"].is_null());
  EXPECT_THAT(EplbMarkdown(result), HasSubstr("plain EPLB: not possible"));
}

}  // namespace
}  // namespace ringfleet::coordinator::cli
