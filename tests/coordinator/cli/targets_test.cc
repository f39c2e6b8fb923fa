// SPDX-License-Identifier: Apache-2.0
#include "coordinator/cli/targets.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "coordinator/cli/interrupt.h"
#include "coordinator/cli/json_output.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/checkpoint_writer.h"

namespace ringfleet::coordinator::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

std::string Targets(absl::string_view yaml, absl::string_view hosts) {
  const auto config = cluster::ParseClusterConfig(
      absl::StrCat("model: m\n", yaml), "pool.yaml", "/base");
  if (!config.ok()) return std::string(config.status().message());
  const absl::StatusOr<std::string> targets = FormatTargets(*config, hosts);
  return targets.ok() ? *targets : std::string(targets.status().message());
}

TEST(TargetsTest, LoopbackFleetIsLocal) {
  EXPECT_THAT(
      Targets("workers: [{port: 1}, {host: localhost, threads: 2}]", ""),
      StartsWith("fleet\tpool\n"
                 "path\t-\n"
                 "log_dir\t-\n"
                 "insecure\tno\n"
                 "coordinator\t127.0.0.1:50051\n"
                 "target\t0\tlocal\t127.0.0.1\t127.0.0.1:1\tcores/2\t-\t-\n"
                 "target\t1\tlocal\tlocalhost\tlocalhost:50052\t2\t-\t-\n"
                 "target\tcoordinator\tlocal\t127.0.0.1\t127.0.0.1:50051\t-\t-"
                 "\t-\nfile\t"));
}

TEST(TargetsTest, FileLinesAreTheResolvedFile) {
  const auto config = cluster::ParseClusterConfig(
      "model: m\nworkers: [{port: 1}]\n", "pool.yaml", "/base");
  ASSERT_TRUE(config.ok());
  std::string file;
  for (absl::string_view line :
       absl::StrSplit(*FormatTargets(*config, "0"), '\n', absl::SkipEmpty())) {
    if (absl::ConsumePrefix(&line, "file\t"))
      absl::StrAppend(&file, line, "\n");
  }
  EXPECT_EQ(file, cluster::FormatClusterConfig(*config));
  EXPECT_THAT(file, HasSubstr("/base/m"));
}

TEST(TargetsTest, NamesTheFileUnlessALineHasNoRoomForIt) {
  auto config = cluster::ParseClusterConfig("model: m\nworkers: [{port: 1}]\n",
                                            "pool.yaml", "/base");
  ASSERT_TRUE(config.ok());
  config->path = "/base/my pool.yaml";
  EXPECT_THAT(*FormatTargets(*config, ""),
              StartsWith("fleet\tpool\npath\t/base/my pool.yaml\n"));
  config->path = "/base/my\npool.yaml";
  EXPECT_THAT(*FormatTargets(*config, ""),
              StartsWith("fleet\tpool\npath\t-\n"));
}

TEST(TargetsTest, OneDocumentHoldsEveryLine) {
  testing::TempDir folder;
  testing::WriteFile(
      folder.File("pool.yaml"),
      "model: /m\nlog_dir: /l\nssh: {options: [-F, none]}\n"
      "workers: [{threads: 2, numa_node: 1}, {port: 2, memory_gib: 1.5}]\n");
  CLI::App app;
  Invocation invocation;
  RegisterTargets(app, invocation);
  app.parse("targets --json --cluster " + folder.File("pool.yaml"));
  EXPECT_TRUE(invocation.json);
  Interrupt interrupt;
  ::testing::internal::CaptureStdout();
  ASSERT_TRUE(invocation.run().ok());
  Json document = Json::parse(::testing::internal::GetCapturedStdout());
  EXPECT_THAT(document["file"].get<std::string>(),
              HasSubstr("model: \"/m\"\n"));
  document.erase("file");
  const Json want = {{"ssh_options", {"-F", "none"}},
                     {"targets",
                      {{{"label", "0"},
                        {"destination", "127.0.0.1"},
                        {"host", "127.0.0.1"},
                        {"listen", "127.0.0.1:50052"},
                        {"threads", 2.0},
                        {"numa_node", 1.0},
                        {"memory_gib", Json()}},
                       {{"label", "1"},
                        {"destination", "127.0.0.1"},
                        {"host", "127.0.0.1"},
                        {"listen", "127.0.0.1:2"},
                        {"threads", "cores/2"},
                        {"numa_node", Json()},
                        {"memory_gib", 1.5}},
                       {{"label", "coordinator"},
                        {"destination", "127.0.0.1"},
                        {"host", "127.0.0.1"},
                        {"listen", "127.0.0.1:50051"},
                        {"threads", Json()},
                        {"numa_node", Json()},
                        {"memory_gib", Json()}}}},
                     {"fleet", "pool"},
                     {"path", folder.File("pool.yaml")},
                     {"log_dir", "/l"},
                     {"insecure", false},
                     {"coordinator", "127.0.0.1:50051"}};
  EXPECT_EQ(document, want);
}

TEST(TargetsTest, SshSectionMeansSshAlsoOnLoopback) {
  const std::string text = Targets(
      "workers: [{host: \"::1\", numa_node: 1, memory_gib: 2.5}]\n"
      "log_dir: logs\nsecurity: {mode: insecure}\n"
      "ssh: {user: me, port: 2222, options: [-o, 'A=b c']}",
      "");
  EXPECT_THAT(text, HasSubstr("log_dir\t/base/logs\ninsecure\tyes\n"));
  EXPECT_THAT(text, HasSubstr("ssh_option\t-p\nssh_option\t2222\n"
                              "ssh_option\t-o\nssh_option\tA=b c\n"));
  EXPECT_THAT(text, HasSubstr("target\t0\tme@::1\t::1\t[::1]:50052\tcores/1\t"
                              "1\t2.5\n"));
}

TEST(TargetsTest, AnotherHostMeansSsh) {
  const std::string text =
      Targets("workers: [{}, {host: beta, address: 127.0.0.2}]", "");
  EXPECT_THAT(text, HasSubstr("target\t0\t127.0.0.1\t127.0.0.1\t"));
  EXPECT_THAT(text, HasSubstr("target\t1\tbeta\tbeta\t127.0.0.2:50052\t"));
}

TEST(TargetsTest, HostsPickRanksOrTheCoordinator) {
  constexpr char kThree[] = "workers: [{port: 1}, {port: 2}, {port: 3}]";
  const std::string range = Targets(kThree, "1-2");
  EXPECT_THAT(range, Not(HasSubstr("target\t0\t")));
  EXPECT_THAT(range, HasSubstr("target\t1\t"));
  EXPECT_THAT(range, HasSubstr("target\t2\t"));
  EXPECT_THAT(range, Not(HasSubstr("target\tcoordinator")));
  const std::string coordinator = Targets(kThree, "coordinator");
  EXPECT_THAT(coordinator, Not(HasSubstr("target\t0")));
  EXPECT_THAT(coordinator, HasSubstr("target\tcoordinator"));
  EXPECT_EQ(Targets(kThree, "3"),
            "hosts '3', want RANK or FIRST-LAST within 0-2");
}

}  // namespace
}  // namespace ringfleet::coordinator::cli
