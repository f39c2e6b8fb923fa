// SPDX-License-Identifier: Apache-2.0
#include "coordinator/cli/launch/config_change.h"

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

namespace ringfleet::coordinator::cli {
namespace {

constexpr char kFile[] =
    "name: pool\nmodel: /m\ncontext: 4096\ncache_dir: /c\nworkers:\n"
    "  - {threads: 2}\n  - {port: 50053}\n";

cluster::ClusterConfig Parse(absl::string_view yaml) {
  const auto config = cluster::ParseClusterConfig(yaml, "pool.yaml", "/");
  EXPECT_TRUE(config.ok()) << config.status();
  return config.value_or(cluster::ClusterConfig());
}

// Of kFile's, with both workers where it says.
v1::ClusterState Running() {
  v1::ClusterState state;
  state.set_cluster_file(cluster::FormatClusterConfig(Parse(kFile)));
  for (const int rank : {0, 1}) {
    v1::WorkerState* const worker = state.add_workers();
    worker->set_rank(rank);
    worker->set_state(v1::MEMBER_STATE_READY);
    worker->set_address(absl::StrCat("127.0.0.1:", 50052 + rank));
  }
  return state;
}

std::string Change(absl::string_view now) {
  return ConfigChange(Running(), Parse(now));
}

std::string Replaced(const std::string& from, const std::string& to) {
  std::string text = kFile;
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos);
  return text.replace(at, from.size(), to);
}

TEST(ConfigChangeTest, NamesTheFirstSettingThatDiffers) {
  EXPECT_EQ(Change(kFile), "");
  EXPECT_EQ(Change(Replaced("/m", "/n")),
            "'model: \"/m\"', not 'model: \"/n\"'");
  EXPECT_EQ(Change(Replaced("context: 4096", "context: 8192")),
            "'context: 4096', not 'context: 8192'");
  EXPECT_EQ(Change(Replaced("threads: 2", "threads: 3")),
            "'  - {host: \"127.0.0.1\", address: \"127.0.0.1\", port: 50052, "
            "threads: 2}', not '  - {host: \"127.0.0.1\", address: "
            "\"127.0.0.1\", port: 50052, threads: 3}'");
  EXPECT_EQ(Change(absl::StrCat(kFile, "  - {port: 50054}\n")),
            "'mesh: {data: 1, expert: 1, tensor: 2}', not 'mesh: {data: 1, "
            "expert: 1, tensor: 3}'");
}

TEST(ConfigChangeTest, NamesSettingsThatCameOrWent) {
  EXPECT_EQ(Change(Replaced("context: 4096\n", "")), "'context: 4096'");
  EXPECT_EQ(Change(Replaced("cache_dir: /c\n", "")), "'cache_dir: \"/c\"'");
  EXPECT_EQ(Change(absl::StrCat("tiles: /t\n", kFile)), "no 'tiles: \"/t\"'");
  EXPECT_EQ(Change(absl::StrCat("transport: grpc\n", kFile)),
            "'transport: auto', not 'transport: grpc'");
}

TEST(ConfigChangeTest, HowHostsAreReachedIsNoChange) {
  EXPECT_EQ(Change(absl::StrCat("ssh: {user: me}\nlog_dir: /l\n", kFile)), "");
}

TEST(ConfigChangeTest, ALostWorkerMayHaveASuccessor) {
  const cluster::ClusterConfig moved = Parse(Replaced("50053", "50063"));
  v1::ClusterState state = Running();
  const std::string change = ConfigChange(state, moved);
  EXPECT_NE(change.find("port: 50053}', not '  - {"), std::string::npos)
      << change;
  state.mutable_workers(1)->set_state(v1::MEMBER_STATE_LOST);
  EXPECT_EQ(ConfigChange(state, moved), "");
  state.mutable_workers(1)->set_state(v1::MEMBER_STATE_READY);
  state.mutable_workers(1)->set_address("127.0.0.1:50063");
  EXPECT_EQ(ConfigChange(state, moved), "");
  state.mutable_workers()->RemoveLast();
  EXPECT_EQ(ConfigChange(state, moved), "");
}

TEST(ConfigChangeTest, AFleetWithoutAFileHasNotChanged) {
  EXPECT_EQ(ConfigChange(v1::ClusterState(), Parse(kFile)), "");
}

TEST(ConfigChangeTest, SettingsOfAnotherVersionAreAChange) {
  v1::ClusterState other = Running();
  other.set_cluster_file("later: [than, this]\n");
  EXPECT_EQ(ConfigChange(other, Parse(kFile)),
            "settings of another version of ringfleet");
}

TEST(ConfigChangeTest, SettingsWithoutEffectAreNoChange) {
  EXPECT_EQ(
      Change(absl::StrCat(
          "experts: {rebalance: off, interval_s: 5, threshold: 2}\n", kFile)),
      "");
  EXPECT_NE(Change(absl::StrCat("experts: {rebalance: auto}\n", kFile)), "");
}

}  // namespace
}  // namespace ringfleet::coordinator::cli
