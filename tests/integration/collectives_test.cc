// SPDX-License-Identifier: Apache-2.0
// `ringfleet collectives` with real workers on loopback.
#include <signal.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "tests/integration/fleet_fixture.h"

namespace ringfleet::integration {
namespace {

class CollectivesTest : public HandFleet {
 protected:
  // A command that ends soon; the rows it prints.
  json Rows(Arguments arguments) {
    Arguments all = {"collectives", "--json", "--seconds", "0.05"};
    all.insert(all.end(), arguments.begin(), arguments.end());
    const Finished finished = Cli(all, {.seconds = 60});
    EXPECT_EQ(finished.code, 0) << finished.errors;
    EXPECT_EQ(finished.errors, "");
    return finished.document();
  }

  void ExpectUsageError(const Arguments& arguments, const std::string& part) {
    Arguments all = {"collectives"};
    all.insert(all.end(), arguments.begin(), arguments.end());
    const Finished finished = Cli(all);
    EXPECT_EQ(finished.code, 2);
    EXPECT_THAT(finished.error_line(), HasSubstr(part));
    EXPECT_EQ(finished.output, "");
  }
};

TEST_F(CollectivesTest, EveryOperationIsRightAndHasTheContractsKeys) {
  const json rows = Rows(
      {"--world", "3", "--op", "all", "--bytes", "0,4,28672,100000", "--algo",
       "auto,one_shot,two_shot,ring", "--wire", "f32,bf16,int8"});
  std::map<json, std::map<std::string, json>> hashes;
  std::map<std::string, int> seen;
  for (const json& row : rows) {
    for (const char* key : {"op", "algo", "wire", "transport", "hash"}) {
      EXPECT_TRUE(row[key].is_string()) << key << " in " << row;
    }
    for (const char* key : {"world", "bytes", "wrong", "wire_bytes"}) {
      EXPECT_TRUE(row[key].is_number_unsigned()) << key << " in " << row;
    }
    for (const char* key :
         {"p50_us", "p99_us", "algbw_gbps", "busbw_gbps", "cpu_s_per_gb"}) {
      EXPECT_TRUE(row[key].is_number()) << key << " in " << row;
    }
    EXPECT_EQ(row["wrong"], 0) << row;
    EXPECT_EQ(row["world"], 3);
    EXPECT_EQ(row["transport"], "grpc");
    EXPECT_GT(row["p50_us"], 0);
    EXPECT_GE(row["p99_us"], row["p50_us"]);
    const std::string op = row["op"];
    const uint64_t bytes = row["bytes"];
    const double ratio = op == "all_reduce"  ? 4.0 / 3
                         : op == "broadcast" ? 1
                                             : 2.0 / 3;
    if (bytes > 0) {
      EXPECT_NEAR(row["algbw_gbps"].get<double>(),
                  bytes / row["p50_us"].get<double>() * 1e-3, 1e-9);
      EXPECT_NEAR(row["busbw_gbps"].get<double>(),
                  ratio * row["algbw_gbps"].get<double>(), 1e-9);
    }
    EXPECT_EQ(row["wire_bytes"], row["wire"] == "f32" ? bytes
                                 : row["wire"] == "bf16"
                                     ? bytes / 2
                                     : bytes / 4 + (bytes / 4 + 127) / 128 * 4)
        << row;
    ++seen[op];
    hashes[{op, row["wire"], bytes}][row["algo"]] = row["hash"];
  }
  // Three wires, four sizes; as many algorithms as there are, and auto.
  EXPECT_EQ(seen, (std::map<std::string, int>{{"all_reduce", 48},
                                              {"all_gather", 36},
                                              {"reduce_scatter", 36},
                                              {"all_to_all", 24},
                                              {"broadcast", 36},
                                              {"barrier", 2}}));
  for (auto& [key, by_algorithm] : hashes) {
    if (key[0] == "all_reduce") {
      EXPECT_EQ(by_algorithm["one_shot"], by_algorithm["two_shot"]) << key;
    }
    // Nothing is added up, so the way does not matter.
    if (key[0] == "all_gather" || key[0] == "broadcast") {
      EXPECT_EQ(by_algorithm["one_shot"], by_algorithm["ring"]) << key;
    }
  }
}

TEST_F(CollectivesTest, PrintsATable) {
  const Finished finished =
      Cli({"collectives", "--bytes", "28k", "--seconds", "0.05"});
  ASSERT_EQ(finished.code, 0) << finished.errors;
  EXPECT_THAT(finished.output, ::testing::StartsWith(
                                   "| op | algo | wire | transport | world |"));
  EXPECT_THAT(finished.output,
              HasSubstr("| all_reduce | one_shot | f32 | grpc | 2 | 28672 |"));
}

TEST_F(CollectivesTest, PollModesAndASingleRank) {
  for (const char* poll : {"spin", "block", "auto"}) {
    const json rows = Rows({"--bytes", "4,1m", "--poll", poll});
    ASSERT_EQ(rows.size(), 2u);
    for (const json& row : rows) EXPECT_EQ(row["wrong"], 0) << row;
  }
  for (const json& row : Rows({"--world", "1", "--op", "all"})) {
    EXPECT_EQ(row["wrong"], 0) << row;
  }
}

// The table of a calibration is one that other commands take, and what they
// take from it shows.
TEST_F(CollectivesTest, CalibrationFeedsOtherCommands) {
  const std::string table = File("collectives.json");
  const Finished finished =
      Cli({"collectives", "--calibrate", "--world", "2", "--op", "all_reduce",
           "--bytes", "1k,64k", "--seconds", "0.05", "--output", table});
  ASSERT_EQ(finished.code, 0) << finished.errors;
  EXPECT_THAT(finished.output, HasSubstr("| all_reduce | two_shot |"));
  const json written = json::parse(testing::ReadFile(table));
  EXPECT_EQ(written["rows"].size(), 75u);
  EXPECT_THAT(finished.errors, Not(HasSubstr("ring_slice_bytes")));

  const Finished printed =
      Cli({"collectives", "--calibrate", "--table", table, "--op", "broadcast",
           "--bytes", "4k", "--seconds", "0.05"});
  ASSERT_EQ(printed.code, 0) << printed.errors;
  const json again = printed.document();
  EXPECT_EQ(again["rows"][0], written["rows"][0]);  // all_reduce of 2.

  std::ofstream(table)
      << R"({"rows":[{"operation":"all_reduce","size":2,)"
      << R"("one_shot_max_bytes":8,"two_shot_max_bytes":64}]})";
  const json rows = Rows({"--table", table, "--bytes", "8,64,68"});
  ASSERT_EQ(rows.size(), 3u);
  EXPECT_EQ(rows[0]["algo"], "one_shot");
  EXPECT_EQ(rows[1]["algo"], "two_shot");
  EXPECT_EQ(rows[2]["algo"], "ring");
}

TEST_F(CollectivesTest, FusedProductsAreRightAndTuned) {
  const Arguments shape = {"--m",
                           "40",
                           "--n",
                           "200",
                           "--k",
                           "96",
                           "--op",
                           "all_gather_matmul,"
                           "matmul_reduce_scatter"};
  for (const char* world : {"1", "3"}) {
    Arguments arguments = shape;
    arguments.insert(arguments.end(), {"--world", world, "--wire", "f32,bf16"});
    const json rows = Rows(arguments);
    // What is gathered are codes, whatever sums travel as.
    ASSERT_EQ(rows.size(), 3u);
    EXPECT_EQ(rows[0]["wire"], "int8");
    EXPECT_EQ(rows[1]["wire"], "f32");
    EXPECT_EQ(rows[2]["wire"], "bf16");
    for (const json& row : rows) {
      EXPECT_EQ(row["wrong"], 0) << row;
      EXPECT_EQ(row["algo"],
                row["op"] == "all_gather_matmul" ? "ring" : "one_shot");
      EXPECT_EQ(row["m"], 40);
      EXPECT_EQ(row["dtype"], "int8");
      for (const char* key :
           {"p50_us", "unfused_us", "compute_us", "comm_us"}) {
        EXPECT_GT(row[key], 0) << key << " in " << row;
      }
      EXPECT_TRUE(row["overlap"].is_number());
      EXPECT_EQ(row["bytes"],
                row["op"] == "all_gather_matmul" ? 40 * 96 * 4 : 40 * 200 * 4);
    }
  }
  // One in the order of ranks, one in that of the ring.
  const json ways =
      Rows({"--world", "3", "--m", "40", "--n", "200", "--k", "96", "--op",
            "matmul_reduce_scatter", "--algo", "one_shot,ring"});
  ASSERT_EQ(ways.size(), 2u);
  EXPECT_EQ(ways[1]["algo"], "ring");
  EXPECT_EQ(ways[0]["wrong"], 0);
  EXPECT_EQ(ways[1]["wrong"], 0);

  const std::string tiles = File("tiles.json");
  Arguments tune = {"collectives", "--tune",   "--seconds",
                    "0.001",       "--output", tiles};
  tune.insert(tune.end(), shape.begin(), shape.end());
  const Finished finished = Cli(tune, {.seconds = 120});
  ASSERT_EQ(finished.code, 0) << finished.errors;
  const json written = json::parse(testing::ReadFile(tiles));
  ASSERT_EQ(written["rows"].size(), 2u);
  Arguments use = shape;
  use.insert(use.end(), {"--tiles", tiles});
  const json rows = Rows(use);
  for (size_t i = 0; i < 2; ++i) {
    for (const char* key : {"tile_columns", "segment_bytes", "piece_rows"}) {
      EXPECT_EQ(rows[i][key], written["rows"][i][key]) << key;
    }
  }
}

// Slices are measured with vectors that have some, and the best are written.
TEST_F(CollectivesTest, CalibrationFindsSlices) {
  if (kSanitized) GTEST_SKIP() << "64 MiB, four times: release builds time it";
  const std::string table = File("collectives.json");
  const Finished finished =
      Cli({"collectives", "--calibrate", "--op", "all_reduce", "--bytes", "4m",
           "--seconds", "0.02", "--output", table});
  ASSERT_EQ(finished.code, 0) << finished.errors;
  std::vector<std::pair<double, uint64_t>> timed;
  for (const uint64_t bytes : {1 << 20, 4 << 20, 16 << 20, 0}) {
    const std::string name = absl::StrCat("ring_slice_bytes ", bytes, ": ");
    const size_t at = finished.errors.find(name);
    ASSERT_NE(at, std::string::npos) << finished.errors;
    timed.emplace_back(std::stod(finished.errors.substr(at + name.size())),
                       bytes);
  }
  const uint64_t written =
      json::parse(testing::ReadFile(table))["ring_slice_bytes"];
  for (const auto& [ms, bytes] : timed) {
    if (bytes == written) {
      EXPECT_LE(ms, std::min_element(timed.begin(), timed.end())->first);
    }
  }
}

// A model's exchanges follow the table too: sums in another order, the same
// tokens.
TEST_F(CollectivesTest, AModelRunsOverTheTable) {
  const std::string table = File("rings.json");
  std::ofstream(table) << R"({"rows":[{"operation":"all_reduce","size":2,)"
                       << R"("one_shot_max_bytes":0,"two_shot_max_bytes":0},)"
                       << R"({"operation":"all_gather","size":2,)"
                       << R"("one_shot_max_bytes":0}]})";
  const Arguments command = {"generate", "--model", Model(), "--local",
                             "2",        "--dtype", "f32",   "--wire",
                             "f32",      "-p",      "def ",  "-n",
                             "8",        "--temp",  "0",     "--json"};
  Arguments with_table = command;
  with_table.insert(with_table.end(), {"--collectives", table});
  const Finished finished = Cli(with_table);
  ASSERT_EQ(finished.code, 0) << finished.errors;
  EXPECT_EQ(finished.document()["ids"], Cli(command).document()["ids"]);

  // The query products of prompts of 3 to 12 tokens, cut as finely as can be.
  const std::string cuts = File("cuts.json");
  std::ofstream(cuts) << R"({"rows":[{"cpu":"any","operation":)"
                      << R"("all_gather_matmul","m":6,"n":384,"k":96,)"
                      << R"("dtype":"f32","world":2,"tile_columns":1,)"
                      << R"("segment_bytes":1,"piece_rows":1}]})";
  Arguments with_cuts = command;
  with_cuts.insert(with_cuts.end(), {"--tiles", cuts, "--prefill-strategy",
                                     "sequence_parallel"});
  const Finished finely = Cli(with_cuts);
  ASSERT_EQ(finely.code, 0) << finely.errors;
  EXPECT_EQ(finely.document()["ids"], finished.document()["ids"]);

  std::ofstream(table) << "{}";
  const Finished bad = Cli(with_table);
  EXPECT_EQ(bad.code, 2);
  EXPECT_THAT(bad.errors, HasSubstr("usage: --collectives " + table));

  Arguments with_tiles = command;
  with_tiles.insert(with_tiles.end(), {"--tiles", table});
  const Finished no_tiles = Cli(with_tiles);
  EXPECT_EQ(no_tiles.code, 2);
  EXPECT_THAT(no_tiles.errors, HasSubstr("usage: --tiles " + table));
}

TEST_F(CollectivesTest, UsageErrorsNameWhatThereIs) {
  ExpectUsageError({"--op", "all_gather", "--algo", "two_shot"},
                   "want auto or one_shot or ring");
  ExpectUsageError({"--op", "all_gather_matmul", "--algo", "one_shot"},
                   "want auto or ring");
  ExpectUsageError({"--op", "matmul_reduce_scatter", "--algo", "two_shot"},
                   "want auto or one_shot or ring");
  ExpectUsageError({"--tune", "--op", "barrier"}, "want all_gather_matmul");
  ExpectUsageError({"--output", File("t.json")}, "--calibrate or --tune");
  ExpectUsageError({"--bytes", "6"}, "'6', want a multiple of 4");
  ExpectUsageError({"--bytes", ""}, "--bytes: '', want one or more");
  ExpectUsageError({"--world", "17"}, "--world");
  ExpectUsageError({"--output", "x"}, "--calibrate");
  ExpectUsageError({"--op", "all_reduce", "--m", "4", "--n", "9", "--k", "7",
                    "--dtype", "nonsense"},
                   "--m 4 with --op all_reduce: nothing is multiplied");
  ExpectUsageError({"--calibrate", "--output", File("absent/table.json")},
                   "table.json: cannot be written: No such file or directory");
  ExpectUsageError({"--tune", "--output", File("")}, "a folder, want a file");
  ExpectUsageError({"--cluster", File("absent.yaml")},
                   "cluster file: " + File("absent.yaml") + ": no such file");
}

TEST_F(CollectivesTest, AWorkerThatDiesIsNamedAndNothingStays) {
  const auto process = StartCli({"collectives", "--world", "2", "--bytes", "4",
                                 "--iterations", "1000000"});
  std::vector<pid_t> workers;
  ASSERT_TRUE(WaitUntil(20, [&] {
    workers.clear();
    for (const pid_t child : testing::ChildrenOf(process->pid())) {
      if (!testing::CommandLine(child).empty()) workers.push_back(child);
    }
    return workers.size() == 2;
  }));
  std::sort(workers.begin(), workers.end());
  kill(workers[1], SIGKILL);
  const Finished finished = Finish(*process);
  EXPECT_EQ(finished.code, 3);
  EXPECT_THAT(finished.errors, HasSubstr("worker 1 was killed by signal 9"));
  RemoveKeptLogs();
}

TEST_F(CollectivesTest, AnInterruptEndsEverything) {
  const auto process = StartCli({"collectives", "--world", "3", "--bytes", "4",
                                 "--iterations", "1000000"});
  ASSERT_TRUE(WaitUntil(
      20, [&] { return testing::ChildrenOf(process->pid()).size() == 3; }));
  process->Signal(SIGINT);
  EXPECT_EQ(Finish(*process).code, 130);
}

// Its table is whole or as it was.
TEST_F(CollectivesTest, AnInterruptedCalibrationLeavesNoFile) {
  const std::string table = File("table.json");
  const auto process =
      StartCli({"collectives", "--calibrate", "--output", table});
  ASSERT_TRUE(WaitUntil(
      20, [&] { return testing::ChildrenOf(process->pid()).size() == 2; }));
  process->Signal(SIGINT);
  EXPECT_EQ(Finish(*process).code, 130);
  EXPECT_FALSE(std::filesystem::exists(table));
}

TEST_F(CollectivesTest, ATableThatCannotBeWrittenIsNoUsageError) {
  const Arguments command = {
      "collectives", "--calibrate", "--op", "broadcast", "--bytes",
      "4k",          "--seconds",   "0.01", "--json",    "--output"};
  Arguments to_full = command;
  to_full.push_back("/dev/full");
  const Finished full = Cli(to_full);
  EXPECT_EQ(full.code, 1);
  EXPECT_EQ(full.document().size(), 2u) << "the rows, and no error beside";
  EXPECT_EQ(full.error_line(),
            "collectives: --output /dev/full: cannot be written: No space left "
            "on device");

  std::filesystem::create_symlink("/dev/null", File("null"));
  Arguments to_null = command;
  to_null.push_back(File("null"));
  EXPECT_EQ(Cli(to_null).code, 0);
  EXPECT_TRUE(std::filesystem::is_character_file(File("null")));
}

TEST_F(CollectivesTest, WorkersOfAClusterFile) {
  std::string yaml = "model: none\ncoordinator: {port: " +
                     std::to_string(testing::FreePort()) + "}\nworkers:\n";
  std::vector<std::unique_ptr<Process>> workers;
  for (int rank = 0; rank < 2; ++rank) {
    const std::string port_file = File("port" + std::to_string(rank));
    workers.push_back(
        Start(RINGFLEET_WORKER_BINARY,
              {"--rank", std::to_string(rank), "--listen", "127.0.0.1:0",
               "--coordinator", "none", "--port-file", port_file}));
    int port = 0;
    ASSERT_TRUE(WaitUntil(20, [&] {
      return static_cast<bool>(std::ifstream(port_file) >> port);
    }));
    yaml += "  - {port: " + std::to_string(port) + "}\n";
  }
  std::ofstream(File("pool.yaml")) << yaml;
  for (int repeat = 0; repeat < 2; ++repeat) {  // They serve more than one.
    const json rows = Rows({"--cluster", File("pool.yaml"), "--bytes", "28k"});
    ASSERT_EQ(rows.size(), 1u);
    EXPECT_EQ(rows[0]["wrong"], 0);
  }
  ExpectUsageError({"--cluster", File("pool.yaml"), "--world", "3"},
                   "has 2 workers");
  workers[1]->Signal(SIGTERM);
  EXPECT_EQ(workers[1]->Wait(10), 0);
  const Finished lost = Cli({"collectives", "--cluster", File("pool.yaml")});
  EXPECT_EQ(lost.code, 3);
  EXPECT_THAT(lost.error_line(), HasSubstr("worker 1 (127.0.0.1:"));
}

// A fleet in use is left alone: by the command, which asks its coordinator,
// and by its workers, whoever asks.
TEST_F(CollectivesTest, ARunningFleetIsLeftAlone) {
  ASSERT_NO_FATAL_FAILURE(StartFleet(2));
  const json before = Status();
  std::string yaml =
      "model: none\ncoordinator: {port: " + std::to_string(port()) +
      "}\nworkers:\n";
  for (const json& worker : before["workers"]) {
    const std::string address = worker["address"];
    yaml += "  - {port: " + address.substr(address.rfind(':') + 1) + "}\n";
    const Finished called =
        Cli({"call", address, "ringfleet.v1.Worker/MeasureCollectives",
             R"({"epoch":"9000000000000000000","addresses":[")" + address +
                 R"("],"cases":[{"operation":1,"wire":1,"bytes":"4"}]})"});
    EXPECT_EQ(called.code, 3) << called.output;
    EXPECT_THAT(called.errors, HasSubstr("want it idle"));
  }
  std::ofstream(File("pool.yaml")) << yaml;
  const Finished refused = Cli({"collectives", "--cluster", File("pool.yaml")});
  EXPECT_EQ(refused.code, 3);
  EXPECT_THAT(refused.error_line(), HasSubstr("the coordinator of fleet "));
  const Finished submitted = Cli({"submit", "--cluster", cluster(), "-p",
                                  "def ", "-n", "4", "--temp", "0", "--json"});
  EXPECT_EQ(submitted.code, 0) << submitted.errors;
  EXPECT_EQ(Status()["epoch"], before["epoch"]);
}

}  // namespace
}  // namespace ringfleet::integration
