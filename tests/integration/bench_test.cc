// SPDX-License-Identifier: Apache-2.0
// `ringfleet bench` with real workers and a real model.
#include <signal.h>

#include <set>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "cluster/checkpoint/open_model.h"
#include "cluster/checkpoint/safetensors.h"
#include "tests/integration/fleet_fixture.h"

namespace ringfleet::integration {
namespace {

using ::testing::StartsWith;

// Elements of a tensor as the checkpoint's header tells them.
uint64_t Elements(const cluster::Checkpoint& checkpoint,
                  const std::string& name) {
  const auto tensor = checkpoint.Find(name);
  EXPECT_TRUE(tensor.ok()) << tensor.status();
  if (!tensor.ok()) return 0;
  uint64_t elements = 1;
  for (const int64_t size : (*tensor)->shape) elements *= size;
  return elements;
}

// What two workers need from memory for one token of tiny-v3 with bf16 weights,
// counted by hand: latents and routers on both, the rest once, 4 experts of 16.
double BytesOfOneToken(double positions) {
  constexpr int kWorld = 2;
  const auto checkpoint = cluster::OpenCheckpoint(Model());
  EXPECT_TRUE(checkpoint.ok()) << checkpoint.status();
  if (!checkpoint.ok()) return 0;
  const auto elements = [&](const std::string& name) {
    return static_cast<double>(Elements(**checkpoint, name + ".weight"));
  };
  double numbers = elements("lm_head");
  double routers = 0;
  for (int layer = 0; layer < 6; ++layer) {
    const std::string prefix = absl::StrCat("model.layers.", layer, ".");
    const std::string attention = prefix + "self_attn.";
    // 96 and 80 rows of latents' products are two panels of 64 each.
    numbers += kWorld * (elements(attention + "q_a_proj") * 128 / 96 +
                         elements(attention + "kv_a_proj_with_mqa") * 128 / 80 +
                         positions * (64 + 16));
    // The absorbed form reads W_UK, transposed, and W_UV: as much as kv_b.
    for (const char* split : {"q_b_proj", "kv_b_proj", "o_proj"}) {
      numbers += elements(attention + split);
    }
    for (const char* part : {"gate_proj", "up_proj", "down_proj"}) {
      if (layer == 0) {
        numbers += elements(absl::StrCat(prefix, "mlp.", part));
        continue;
      }
      numbers += elements(absl::StrCat(prefix, "mlp.shared_experts.", part)) +
                 4 * elements(absl::StrCat(prefix, "mlp.experts.0.", part));
    }
    if (layer > 0) routers += kWorld * elements(prefix + "mlp.gate");
  }
  return 2 * numbers + 4 * routers;
}

class BenchTest : public HandFleet {};

// Made up or evaluated, the cache has as many bytes to read.
TEST_F(BenchTest, AFilledCacheCostsAsMuchAsAnEvaluatedOne) {
  const Arguments bench = {
      "bench", "--model", Model(), "--local", "2",    "-p",
      "16",    "-n",      "4",     "-d",      "300",  "-r",
      "1",     "-t",      "1",     "-o",      "json", "--no-memory-test"};
  Arguments fill = bench;
  fill.push_back("--fill");
  const Finished evaluated = Cli(bench), filled = Cli(fill);
  ASSERT_EQ(evaluated.code, 0) << evaluated.errors;
  ASSERT_EQ(filled.code, 0) << filled.errors;
  // Generation: prompts' routes depend on what is cached.
  const json before = evaluated.document()[1], now = filled.document()[1];
  EXPECT_EQ(before["n_depth"], 300);
  EXPECT_EQ(now["n_depth"], 300);
  EXPECT_NEAR(now["bytes_per_token"].get<double>(),
              before["bytes_per_token"].get<double>(),
              1e-3 * before["bytes_per_token"].get<double>());
}

TEST_F(BenchTest, PrintsLlamaBenchsKeysAndCountsBytes) {
  const Finished finished = Cli({"bench", "--model",
                                 Model(), "--local",
                                 "2",     "-p",
                                 "16",    "-n",
                                 "4",     "-d",
                                 "0,8",   "-np",
                                 "1,2",   "-r",
                                 "2",     "-t",
                                 "1",     "--dtype",
                                 "bf16",  "-o",
                                 "json",  "--no-memory-test"},
                                {.seconds = 90});
  ASSERT_EQ(finished.code, 0) << finished.errors;
  EXPECT_EQ(finished.errors, "");
  const json rows = finished.document();
  ASSERT_EQ(rows.size(), 8u);
  std::set<std::string> tests;
  for (const json& row : rows) {
    for (const char* key : {"build_commit", "cpu_info", "backends",
                            "model_filename", "model_type", "test_time"}) {
      EXPECT_TRUE(row[key].is_string()) << key << " in " << row;
    }
    for (const char* key :
         {"model_size", "model_n_params", "n_threads", "n_prompt", "n_gen",
          "n_depth", "n_parallel", "world", "avg_ns", "stddev_ns"}) {
      EXPECT_TRUE(row[key].is_number_unsigned()) << key << " in " << row;
    }
    for (const char* key :
         {"avg_ts", "stddev_ts", "bytes_per_token", "read_gbps"}) {
      EXPECT_TRUE(row[key].is_number()) << key << " in " << row;
    }
    EXPECT_EQ(row["samples_ns"].size(), 2u);
    EXPECT_EQ(row["samples_ts"].size(), 2u);
    EXPECT_EQ(row["world"], 2);
    EXPECT_EQ(row["n_threads"], 1);
    EXPECT_EQ(row["model_n_params"], 11'100'432);
    EXPECT_GT(row["read_gbps"], 0);
    const int np = row["n_parallel"];
    const int tokens =
        np * (row["n_prompt"].get<int>() + row["n_gen"].get<int>());
    EXPECT_NEAR(row["samples_ts"][0].get<double>(),
                tokens * 1e9 / row["samples_ns"][0].get<double>(), 1e-6);
    tests.insert(absl::StrCat(row["n_prompt"].get<int>(), " ",
                              row["n_gen"].get<int>(), " ",
                              row["n_depth"].get<int>(), " ", np));
    if (row["n_gen"] != 4 || np != 1) continue;
    // Behind one or eight positions; the n-th token reads n more.
    const double depth = std::max(row["n_depth"].get<int>(), 1);
    EXPECT_DOUBLE_EQ(row["bytes_per_token"].get<double>(),
                     BytesOfOneToken(depth + 2.5));
  }
  EXPECT_EQ(tests, (std::set<std::string>{"16 0 0 1", "0 4 0 1", "16 0 8 1",
                                          "0 4 8 1", "16 0 0 2", "0 4 0 2",
                                          "16 0 8 2", "0 4 8 2"}));
}

TEST_F(BenchTest, SaysWhatShareOfTheMemorysRateAStepReads) {
  const Finished finished =
      Cli({"bench", "--model", Model(), "--local", "2", "-p", "0", "-n", "4",
           "-r", "2", "-t", "1", "-o", "json"},
          {.seconds = 90});
  ASSERT_EQ(finished.code, 0) << finished.errors;
  const json row = finished.document()[0];
  EXPECT_GT(row["host_read_gbps"], 0);
  EXPECT_GT(row["bandwidth_share"], 0);
  EXPECT_EQ(row["samples_bandwidth_share"].size(), 2u);
}

TEST_F(BenchTest, TablesAndLinesComeForEveryNumberOfThreads) {
  const Arguments command = {
      "bench", "--model", Model(), "-p", "0",  "-pg", "8,2",
      "-n",    "2",       "-r",    "1",  "-t", "1,2", "--no-memory-test",
      "-o"};
  const auto lines = [&](const char* format) {
    Arguments all = command;
    all.push_back(format);
    const Finished finished = Cli(all, {.seconds = 60});
    EXPECT_EQ(finished.code, 0) << finished.errors;
    return std::vector<std::string>(absl::StrSplit(finished.output, '\n'));
  };
  const std::vector<std::string> table = lines("md");
  ASSERT_GT(table.size(), 6u);
  EXPECT_THAT(table[0], StartsWith("| model "));
  EXPECT_THAT(table[2], HasSubstr("|       1 |     1 |          1 |"));
  EXPECT_THAT(table[2], HasSubstr(" tg2 |"));
  EXPECT_THAT(table[3], HasSubstr(" pp8+tg2 |"));
  EXPECT_THAT(table[5], HasSubstr("|       2 |     1 |          1 |"));
  EXPECT_THAT(table[7], StartsWith("build: "));
  const std::vector<std::string> csv = lines("csv");
  ASSERT_EQ(csv.size(), 6u);
  EXPECT_THAT(csv[0], StartsWith("build_commit,"));
  const std::vector<std::string> jsonl = lines("jsonl");
  ASSERT_EQ(jsonl.size(), 5u);
  EXPECT_EQ(json::parse(jsonl[1])["n_prompt"], 8);
  EXPECT_TRUE(json::parse(jsonl[3])["host_read_gbps"].is_null());
}

TEST_F(BenchTest, ARunningFleetCanBeUsedAfterwardsAndAfterAnInterrupt) {
  ASSERT_NO_FATAL_FAILURE(StartFleet(2, {"--parallel", "3"}));
  const json before = Status();
  const Arguments command = {
      "bench", "--cluster", cluster(), "-p", "0",  "-n",   "8",
      "-np",   "3",         "-r",      "2",  "-o", "json", "--no-memory-test"};
  const Finished finished = Cli(command, {.seconds = 60});
  ASSERT_EQ(finished.code, 0) << finished.errors;
  EXPECT_EQ(finished.document()[0]["n_parallel"], 3);

  Arguments endless = command;
  endless[6] = "500";
  endless[10] = "1000";
  const auto process = StartCli(endless);
  const auto steps = [&] {
    const json counts = Status({"--experts", "--counts"});
    return counts.dump();
  };
  const std::string idle = steps();
  ASSERT_TRUE(WaitUntil(30, [&] { return steps() != idle; }));
  process->Signal(SIGINT);
  EXPECT_EQ(Finish(*process).code, 130);

  const Finished again = Cli(command, {.seconds = 60});
  EXPECT_EQ(again.code, 0) << again.errors;
  const Finished submitted = Cli({"submit", "--cluster", cluster(), "-p",
                                  "def ", "-n", "4", "--temp", "0", "--json"});
  EXPECT_EQ(submitted.code, 0) << submitted.errors;
  EXPECT_EQ(Status()["epoch"], before["epoch"]);

  Arguments wide = command;
  wide[8] = "4";
  const Finished refused = Cli(wide);
  EXPECT_EQ(refused.code, 2);
  EXPECT_THAT(refused.errors, HasSubstr("want at most 3 (slots)"));
}

TEST_F(BenchTest, AnInterruptEndsALocalFleet) {
  const auto process =
      StartCli({"bench", "--model", Model(), "--local", "2", "-p", "0", "-n",
                "500", "-r", "1000", "--no-memory-test", "--progress"});
  ASSERT_TRUE(WaitUntil(30, [&] {
    return absl::StrContains(process->errors(), "test 1 of 1: tg500");
  }));
  process->Signal(SIGINT);
  const Finished finished = Finish(*process);
  EXPECT_EQ(finished.code, 130);
  EXPECT_THAT(finished.output, ::testing::IsEmpty());
}

TEST_F(BenchTest, UsageErrorsNameWhatThereIs) {
  const auto refused = [this](const Arguments& more) {
    Arguments all = {"bench", "--model", Model()};
    all.insert(all.end(), more.begin(), more.end());
    const Finished finished = Cli(all);
    EXPECT_EQ(finished.code, 2);
    EXPECT_EQ(finished.output, "");
    return finished.error_line();
  };
  EXPECT_THAT(refused({"-np", "0"}), HasSubstr("-np 0, want 1 or more"));
  EXPECT_THAT(refused({"-p", "1-"}), HasSubstr("-p 1-, want numbers"));
  EXPECT_THAT(refused({"-o", "sql"}), HasSubstr("sql"));
  EXPECT_THAT(refused({"-t", "x"}), HasSubstr("-t x"));
  EXPECT_THAT(refused({"-c", "100"}), HasSubstr("takes 512 positions"));
  EXPECT_THAT(refused({"-d", "4096"}), HasSubstr("want at most 1024"));
}

}  // namespace
}  // namespace ringfleet::integration
