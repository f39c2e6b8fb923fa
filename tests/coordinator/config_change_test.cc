// SPDX-License-Identifier: Apache-2.0
#include "coordinator/cli/config_change.h"

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

std::string Change(absl::string_view now) {
  return ConfigChange(cluster::FormatClusterConfig(Parse(kFile)), Parse(now));
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
  EXPECT_EQ(Change(absl::StrCat("transport: grpc\n", kFile)),
            "no 'transport: grpc'");
}

TEST(ConfigChangeTest, HowHostsAreReachedIsNoChange) {
  EXPECT_EQ(Change(absl::StrCat(
                "ssh: {user: me}\nlog_dir: /l\ncoordinator: {http_port: 9}\n",
                kFile)),
            "");
}

TEST(ConfigChangeTest, WhatIsUnknownIsNoChange) {
  EXPECT_EQ(ConfigChange("", Parse(kFile)), "");
  EXPECT_EQ(ConfigChange("later: [than, this]\n", Parse(kFile)), "");
}

}  // namespace
}  // namespace ringfleet::coordinator::cli
