// SPDX-License-Identifier: Apache-2.0
#include "cluster/config/config.h"

#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/checkpoint_writer.h"

namespace ringfleet::cluster {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr char kTwoWorkers[] =
    "model: tiny\n"
    "workers:\n"
    "  - {port: 7001}\n"
    "  - {port: 7002}\n";

absl::StatusOr<ClusterConfig> ParseText(absl::string_view yaml) {
  return ParseClusterConfig(yaml, "dir/cluster.yaml", "/base");
}

std::string ErrorOf(absl::string_view yaml) {
  const auto config = ParseText(yaml);
  if (config.ok()) return "accepted";
  EXPECT_EQ(config.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(config.status().message());
}

TEST(ConfigTest, DefaultsFillWhatTheFileLeavesOut) {
  const auto config = ParseText("model: tiny\nworkers: [{}]\n");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->name, "cluster");
  EXPECT_EQ(config->settings.model(), "/base/tiny");
  EXPECT_EQ(config->settings.dtype(), v1::DTYPE_NATIVE);
  EXPECT_EQ(config->settings.cache_type(), v1::CACHE_DTYPE_UNSPECIFIED);
  EXPECT_EQ(config->settings.wire(), v1::WIRE_DTYPE_BF16);
  EXPECT_EQ(config->settings.collectives(), "");
  EXPECT_EQ(config->settings.context(), 0u);
  EXPECT_EQ(config->coordinator.host, "127.0.0.1");
  EXPECT_EQ(config->coordinator.port, 50051);
  ASSERT_EQ(config->workers.size(), 1u);
  EXPECT_EQ(config->workers[0].host, "127.0.0.1");
  EXPECT_EQ(config->workers[0].address, "127.0.0.1");
  EXPECT_EQ(config->workers[0].port, 50052);
  EXPECT_EQ(config->workers[0].threads, 0);
  EXPECT_EQ(config->workers[0].numa_node, -1);
  EXPECT_EQ(config->settings.mesh().tensor(), 1u);
  EXPECT_FALSE(config->ssh.has_value());
  EXPECT_EQ(config->settings.log_dir(), "");
  EXPECT_EQ(config->security, SecurityMode::kLoopback);
}

TEST(ConfigTest, SampleDescribesFourRanksOverSsh) {
  const auto config = LoadClusterConfig(
      absl::StrCat(RINGFLEET_SOURCE_DIR, "/cluster/launch/sample.yaml"));
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->name, "library");
  EXPECT_EQ(config->settings.model(), "/srv/models/DeepSeek-V2-Lite-Chat");
  EXPECT_EQ(config->settings.context(), 8192u);
  EXPECT_EQ(config->settings.mesh().expert(), 1u);
  EXPECT_EQ(config->settings.mesh().tensor(), 4u);
  ASSERT_EQ(config->workers.size(), 4u);
  EXPECT_EQ(config->workers[1].host, "beta");
  EXPECT_EQ(config->workers[1].address, "10.0.0.12");
  EXPECT_EQ(config->workers[1].memory_gib, 96);
  EXPECT_EQ(config->workers[3].numa_node, 1);
  ASSERT_TRUE(config->ssh.has_value());
  EXPECT_EQ(config->ssh->user, "fleet");
  EXPECT_THAT(config->ssh->options, ElementsAre("-J", "jump.example.org"));
  EXPECT_EQ(config->security, SecurityMode::kInsecure);
}

TEST(ConfigTest, FormattedConfigMeansTheSameElsewhere) {
  const auto config = ParseText(
      "name: x.y\nmodel: 'a \"b\" \\c'\ndtype: f32\nwire: f32\n"
      "prefill_strategy: weight_gather\ncontext: 77\nparallel: 9\n"
      "reference: true\n"
      "cache_type: int8\n"
      "collectives: t.json\n"
      "tiles: u.json\n"
      "mesh: {expert: 2}\n"
      "experts: {slots: 40, rebalance: auto, interval_s: 30, threshold: 1.5}\n"
      "coordinator: {host: localhost, port: 1}\n"
      "workers:\n  - {address: 127.0.0.2, threads: 3, numa_node: 0}\n"
      "  - {host: \"::1\", port: 0, memory_gib: 1.5, read_gbps: 9}\n"
      "ssh: {user: me, port: 22, options: '-o A=b'}\n"
      "cache_dir: ../c\nlog_dir: /l\nsecurity: {mode: insecure}\n");
  ASSERT_TRUE(config.ok()) << config.status();
  const std::string text = FormatClusterConfig(*config);
  const auto again = ParseClusterConfig(text, "other.yaml", "/elsewhere");
  ASSERT_TRUE(again.ok()) << again.status() << "\n" << text;
  EXPECT_EQ(FormatClusterConfig(*again), text);
  EXPECT_EQ(again->name, "x.y");
  EXPECT_EQ(again->settings.model(), "/base/a \"b\" \\c");
  EXPECT_EQ(again->settings.dtype(), v1::DTYPE_F32);
  EXPECT_EQ(again->settings.cache_type(), v1::CACHE_DTYPE_INT8);
  EXPECT_EQ(again->settings.prefill_strategy(),
            v1::PREFILL_STRATEGY_WEIGHT_GATHER);
  EXPECT_EQ(again->settings.collectives(), "/base/t.json");
  EXPECT_EQ(again->settings.tiles(), "/base/u.json");
  EXPECT_EQ(again->settings.context(), 77u);
  EXPECT_EQ(again->settings.parallel(), 9u);
  EXPECT_TRUE(again->settings.reference());
  EXPECT_EQ(again->settings.mesh().expert(), 2u);
  EXPECT_EQ(again->settings.experts().slots(), 40u);
  EXPECT_EQ(again->settings.experts().interval_s(), 30u);
  EXPECT_EQ(again->settings.experts().threshold(), 1.5);
  EXPECT_EQ(again->settings.mesh().tensor(), 1u);
  EXPECT_EQ(again->workers[0].address, "127.0.0.2");
  EXPECT_EQ(again->workers[0].threads, 3);
  EXPECT_EQ(again->workers[0].numa_node, 0);
  EXPECT_EQ(again->workers[1].host, "::1");
  EXPECT_EQ(again->workers[1].port, 0);
  EXPECT_EQ(again->workers[1].memory_gib, 1.5);
  EXPECT_EQ(again->workers[1].read_gbps, 9);
  EXPECT_THAT(again->ssh->options, ElementsAre("-o", "A=b"));
  EXPECT_EQ(again->settings.cache_dir(), "/c");
  EXPECT_EQ(again->settings.log_dir(), "/l");
  EXPECT_EQ(again->security, SecurityMode::kInsecure);
}

TEST(ConfigTest, UnknownKeyNamesItsLineAndTheNearestKey) {
  EXPECT_EQ(ErrorOf("model: m\n\nworker: []\n"),
            "dir/cluster.yaml:3: unknown key 'worker', did you mean "
            "'workers'?");
  EXPECT_EQ(ErrorOf("model: m\nworkers:\n  - {}\n  - prot: 7\n"),
            "dir/cluster.yaml:4: unknown key 'prot' in workers[1], did you "
            "mean 'port'?");
  EXPECT_EQ(ErrorOf("model: m\nworkers: [{}]\nssh:\n  identity_file: x\n"),
            "dir/cluster.yaml:4: unknown key 'identity_file' in ssh, want one "
            "of user, port, options");
}

TEST(ConfigTest, DuplicateKeyNamesBothLines) {
  EXPECT_EQ(ErrorOf("model: a\nworkers: [{}]\nmodel: b\n"),
            "dir/cluster.yaml:3: duplicate key 'model', first on line 1");
}

// Each line is wrong in one way; the error names it, its value and what
// would be right.
TEST(ConfigTest, WrongValueNamesLineValueAndExpectation) {
  const struct {
    const char* line;
    const char* error;
  } kCases[] = {
      {"dtype: fp8",
       "dtype: 'fp8', want native, f32, bf16, int8, int4-experts or int4"},
      {"cache_type: int4", "cache_type: 'int4', want f32, bf16 or int8"},
      {"cache_type:", "cache_type has no value, want f32, bf16 or int8"},
      {"wire: int4", "wire: 'int4', want f32, bf16 or int8"},
      {"wire: [f32]", "wire is a list, want f32, bf16 or int8"},
      {"transport: tcp", "transport: 'tcp', want grpc or auto"},
      {"prefill_strategy: tp",
       "prefill_strategy: 'tp', want auto, replicated, sequence_parallel or "
       "weight_gather"},
      {"context: 0", "context: '0', want a whole number from 1 to 16777216"},
      {"context: many", "context: 'many', want a whole number"},
      {"context: 99999999999", "context: '99999999999', want a whole number"},
      {"context:", "context has no value, want a number"},
      {"name: ../up", "name: '../up', want letters, digits"},
      {"name: ..", "name: '..', want letters"},
      {"name: -x", "name: '-x', want letters"},
      {"log_dir: ~/logs", "log_dir: '~/logs', want a path"},
      {"cache_dir: {a: b}", "cache_dir is a map, want a path"},
      {"mesh: 4", "mesh is not a map, want keys among data, expert, tensor"},
      {"mesh: {data: 3}",
       "mesh: data 3 x expert 1 x tensor 1 is 3 ranks, want the 2 workers"},
      {"mesh: {data: 0}", "mesh.data: '0', want a whole number from 1"},
      {"experts: {slots: 0}", "experts.slots: '0', want a whole number from 1"},
      {"experts: {rebalance: on}", "experts.rebalance: 'on', want auto or off"},
      {"mesh: {tensor: 0}", "mesh.tensor: '0', want a whole number from 1"},
      {"mesh: {tensor: 3}",
       "mesh: data 1 x expert 1 x tensor 3 is 3 ranks, want the 2 workers"},
      {"mesh: {expert: 2, tensor: 2}", "is 4 ranks, want the 2 workers"},
      {"mesh: {expert: 3}", "is 3 ranks, want the 2 workers"},
      {"coordinator: {port: 0}", "coordinator.port: '0', want a whole number"},
      {"coordinator: {port: 65536}", "coordinator.port: '65536', want"},
      {"coordinator: {host: 'a b'}",
       "coordinator.host: 'a b', want a host name"},
      {"coordinator: {host: '1:2'}", "coordinator.host: '1:2', want a host"},
      {"coordinator: {host: \"\"}", "coordinator.host: '', want a host name"},
      {"coordinator: {host: 0.0.0.0}",
       "coordinator.host: 0.0.0.0 is no address"},
      {"coordinator: {host: '0:0::0'}",
       "coordinator.host: 0:0::0 is no address"},
      {"coordinator: {host: 10.1.1.1}",
       "coordinator.host: 10.1.1.1 is not a loopback address, want one, or "
       "'security: {mode: insecure}'"},
      {"security: {mode: mtls}",
       "security.mode: 'mtls', want loopback or insecure"},
      {"ssh: {user: -oProxyCommand=x}", "ssh.user: '-oProxyCommand=x', want"},
      {"ssh: {port: 0}", "ssh.port: '0', want a whole number from 1"},
      {"ssh: {options: {a: b}}", "ssh.options: want one line of arguments"},
      {"context: &a 5", "anchor '&a' is not supported here"},
      {"context: !!int 5", "is not supported here"},
      {"[a]: 5", "a key must be a plain word"},
      {"name: \"a\\tb\"", "value holds a control character"},
  };
  for (const auto& test : kCases) {
    SCOPED_TRACE(test.line);
    const std::string error =
        ErrorOf(absl::StrCat(kTwoWorkers, test.line, "\n"));
    EXPECT_THAT(error, StartsWith("dir/cluster.yaml:5: "));
    EXPECT_THAT(error, HasSubstr(test.error));
  }
}

TEST(ConfigTest, WrongWorkerNamesItsRank) {
  EXPECT_EQ(ErrorOf("model: m\nworkers:\n  - {}\n  - port: -1\n"),
            "dir/cluster.yaml:4: workers[1].port: '-1', want a whole number "
            "from 0 to 65535");
  EXPECT_THAT(ErrorOf("model: m\nworkers: [{threads: 0}]\n"),
              HasSubstr(":2: workers[0].threads: '0', want a whole number"));
  EXPECT_THAT(ErrorOf("model: m\nworkers: [{memory_gib: nan}]\n"),
              HasSubstr(":2: workers[0].memory_gib: 'nan', want a number"));
  EXPECT_THAT(ErrorOf("model: m\nworkers:\n  - {}\n  -\n"),
              HasSubstr("workers[1] is not a map"));
  EXPECT_THAT(
      ErrorOf("model: m\nworkers:\n  - host: alpha\n    address: 10.0.0.1\n"),
      HasSubstr(":4: workers[0].address: 10.0.0.1 is not a loopback address"));
  EXPECT_THAT(ErrorOf("model: m\nworkers: [{host: '-oProxyCommand=id'}]\n"),
              HasSubstr("workers[0].host: '-oProxyCommand=id', want"));
}

TEST(ConfigTest, WorkersOfOneAddressAreNamedWithBothLines) {
  EXPECT_EQ(ErrorOf("model: m\nworkers:\n  - {port: 7001}\n"
                    "  - {port: 7002}\n  - {port: 7001}\n"),
            "dir/cluster.yaml:5: workers[2] listens on 127.0.0.1:7001 as does "
            "workers[0] on line 3, want another port or address");
  EXPECT_THAT(ErrorOf("model: m\nworkers: [{port: 50051}]\n"),
              HasSubstr("as does the coordinator"));
  EXPECT_EQ(ErrorOf("model: m\nworkers: [{port: 0}, {port: 0}]\n"), "accepted");
}

TEST(ConfigTest, AQuoteMustBeClosed) {
  EXPECT_EQ(ErrorOf("name: x\nmodel: \"m\nworkers: [{port: 1}]\n"),
            "dir/cluster.yaml:2: the quote is not closed");
  EXPECT_EQ(ErrorOf("model: 'it''s\nworkers: [{port: 1}]\n"),
            "dir/cluster.yaml:1: the quote is not closed");
  EXPECT_EQ(ErrorOf("model: 'it''s'\nlog_dir: \"a\\\"b\"\nworkers: 1\n"),
            "dir/cluster.yaml:3: workers: not a list, want a list of 1 to 16");
}

TEST(ConfigTest, HttpPortHasMoved) {
  EXPECT_EQ(ErrorOf("model: m\ncoordinator: {http_port: 8080}\n"
                    "workers: [{}]\n"),
            "dir/cluster.yaml:2: coordinator.http_port: no longer a key, want "
            "http: {port: 8080}");
}

TEST(ConfigTest, HttpIsReadAndWritten) {
  const auto config = ParseText(
      "model: m\nworkers: [{}]\nhttp:\n  host: 0.0.0.0\n  port: 9090\n"
      "  alias: 'a \"b\"'\n  api_key_file: keys\n  tls: {cert: c.pem, key: "
      "/k.pem, client_ca: ca.pem}\n  cors_origins: [https://a.b, "
      "'http://c']\n  request_timeout_s: 90.5\n");
  ASSERT_TRUE(config.ok()) << config.status();
  ASSERT_TRUE(config->http.has_value());
  EXPECT_EQ(config->http->host, "0.0.0.0");
  EXPECT_EQ(config->http->port, 9090);
  EXPECT_EQ(config->http->tls_key, "/k.pem");
  EXPECT_THAT(config->http->cors_origins,
              ElementsAre("https://a.b", "http://c"));
  EXPECT_EQ(config->http->request_timeout_s, 90.5);
  const auto again = ParseText(FormatClusterConfig(*config));
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(FormatClusterConfig(*again), FormatClusterConfig(*config));
  EXPECT_EQ(again->http->alias, "a \"b\"");
  EXPECT_EQ(again->http->api_key_file, config->http->api_key_file);
  EXPECT_EQ(again->http->tls_client_ca, config->http->tls_client_ca);
  EXPECT_FALSE(ParseText("model: m\nworkers: [{}]\n")->http.has_value());
  const auto error = [](absl::string_view http) {
    return ErrorOf(absl::StrCat("model: m\nworkers: [{}]\nhttp: ", http, "\n"));
  };
  EXPECT_THAT(error("{prot: 1}"), HasSubstr("unknown key"));
  EXPECT_THAT(error("{host: 10.0.0.1}"),
              HasSubstr("http.host: 10.0.0.1 is not a loopback address"));
  EXPECT_THAT(error("{tls: {cert: c}}"), HasSubstr("want both cert and key"));
  EXPECT_THAT(error("{port: 50051}"), HasSubstr("is the coordinator's"));
  EXPECT_THAT(error("{cors_origins: ['']}"), HasSubstr("want texts"));
  EXPECT_THAT(error("{request_timeout_s: 0}"), HasSubstr("request_timeout_s"));
}

TEST(ConfigTest, OneToSixteenWorkers) {
  const auto fleet = [](int size) {
    std::string yaml = "model: m\nworkers:\n";
    for (int i = 0; i < size; ++i) {
      absl::StrAppend(&yaml, "  - {port: ", 7000 + i, "}\n");
    }
    return yaml;
  };
  for (int size = 1; size <= 16; ++size) {
    const auto config = ParseText(fleet(size));
    ASSERT_TRUE(config.ok()) << config.status();
    EXPECT_EQ(config->settings.mesh().tensor(), static_cast<uint32_t>(size));
  }
  EXPECT_EQ(ErrorOf(fleet(17)),
            "dir/cluster.yaml:3: workers: 17 given, want a list of 1 to 16");
  EXPECT_EQ(ErrorOf("model: m\nworkers: []\n"),
            "dir/cluster.yaml:2: workers: 0 given, want a list of 1 to 16");
  EXPECT_EQ(ErrorOf("model: m\n"),
            "dir/cluster.yaml:1: workers: missing, want a list of 1 to 16");
  EXPECT_EQ(ErrorOf("workers: [{}]\n"),
            "dir/cluster.yaml:1: model: missing, want the checkpoint's folder");
}

TEST(ConfigTest, AutoMeshGivesTheRestToTensor) {
  const auto mesh = [](absl::string_view text) {
    const auto config =
        ParseText(absl::StrCat("model: m\nworkers: [{port: 1}, {port: 2}, "
                               "{port: 3}, {port: 4}]\nmesh: ",
                               text, "\n"));
    EXPECT_TRUE(config.ok()) << config.status();
    return config.ok() ? absl::StrCat(config->settings.mesh().data(), "x",
                                      config->settings.mesh().expert(), "x",
                                      config->settings.mesh().tensor())
                       : "";
  };
  EXPECT_EQ(mesh("{data: auto, expert: auto, tensor: auto}"), "1x1x4");
  EXPECT_EQ(mesh("{expert: 2}"), "1x2x2");
  EXPECT_EQ(mesh("{data: 2}"), "2x1x2");
  EXPECT_EQ(mesh("{data: 2, expert: 2}"), "2x2x1");
  EXPECT_EQ(mesh("{tensor: 2}"), "1x2x2");
  EXPECT_EQ(mesh("{data: 1, expert: 4, tensor: 1}"), "1x4x1");
}

TEST(ConfigTest, NotYamlIsAnErrorWithItsLine) {
  EXPECT_THAT(ErrorOf("model: m\nworkers: [\n"),
              StartsWith("dir/cluster.yaml:"));
  EXPECT_THAT(ErrorOf("model: \"m\n"), StartsWith("dir/cluster.yaml:"));
  EXPECT_THAT(ErrorOf(""), HasSubstr("empty"));
  EXPECT_THAT(ErrorOf("# only this\n"), HasSubstr("empty"));
  EXPECT_THAT(ErrorOf("just words\n"), HasSubstr(":1: the file is not a map"));
  EXPECT_THAT(ErrorOf("model: m\nworkers: [{}]\n---\nmodel: n\n"),
              HasSubstr("a second document"));
  EXPECT_NE(ErrorOf(std::string("\0\xff\xfe binary", 10)), "accepted");
}

// Ten levels of nine aliases each would be 3.5 billion nodes.
TEST(ConfigTest, YamlBombsAreRefusedQuickly) {
  const absl::Time start = absl::Now();
  std::string bomb = "a: &a [x,x,x,x,x,x,x,x,x]\n";
  for (char c = 'b'; c < 'k'; ++c) {
    const std::string previous = absl::StrCat("*", std::string(1, c - 1));
    absl::StrAppend(&bomb, std::string(1, c), ": &", std::string(1, c), " [",
                    previous, ",", previous, ",", previous, "]\n");
  }
  EXPECT_THAT(ErrorOf(bomb), HasSubstr("is not supported here"));
  EXPECT_THAT(ErrorOf(std::string(100000, '[')),
              HasSubstr("nested deeper than 8 levels"));
  EXPECT_NE(ErrorOf(std::string(100000, '{')), "accepted");
  EXPECT_NE(ErrorOf(std::string(100000, '-')), "accepted");
  std::string keys;
  for (int i = 0; i < 50000; ++i) absl::StrAppend(&keys, "key", i, ": 1\n");
  EXPECT_THAT(ErrorOf(keys), HasSubstr("unknown key 'key0'"));
  EXPECT_THAT(ErrorOf(std::string((1 << 20) + 1, ' ')),
              HasSubstr("larger than 1048576 bytes"));
  EXPECT_LT(absl::Now() - start, absl::Seconds(30));
}

// Whatever is cut off or overwritten, parsing ends with a value or an error.
TEST(ConfigTest, DamagedFilesNeverCrash) {
  std::ifstream in(
      absl::StrCat(RINGFLEET_SOURCE_DIR, "/cluster/launch/sample.yaml"));
  const std::string yaml{std::istreambuf_iterator<char>(in), {}};
  ASSERT_GT(yaml.size(), 500u);
  for (size_t i = 0; i < yaml.size(); i += 7) {
    (void)ParseText(yaml.substr(0, i));
    std::string damaged = yaml;
    for (const char c : {'{', ']', ':', '\n', '\xff', '&', '-'}) {
      damaged[i] = c;
      (void)ParseText(damaged);
    }
  }
}

TEST(ConfigTest, LoadResolvesPathsAgainstTheFilesFolder) {
  const testing::TempDir folder;
  const std::string& dir = folder.path();
  const std::string path = absl::StrCat(dir, "/My fleet.yaml");
  std::ofstream(path) << kTwoWorkers;
  const auto config = LoadClusterConfig(path);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->name, "My-fleet");
  EXPECT_TRUE(std::filesystem::equivalent(
      std::filesystem::path(config->settings.model()).parent_path(), dir));
  std::filesystem::remove_all(dir);
  EXPECT_EQ(LoadClusterConfig(path).status().code(),
            absl::StatusCode::kNotFound);
  EXPECT_EQ(LoadClusterConfig("/").status().code(),
            absl::StatusCode::kNotFound);
}

TEST(HostAddressTest, RangesAreInclusive) {
  EXPECT_EQ(ParseHostRange("", 4).value(), std::make_pair(0, 3));
  EXPECT_EQ(ParseHostRange("2", 4).value(), std::make_pair(2, 2));
  EXPECT_EQ(ParseHostRange("0-3", 4).value(), std::make_pair(0, 3));
  EXPECT_EQ(ParseHostRange("1-1", 4).value(), std::make_pair(1, 1));
  for (const char* bad : {"4", "0-4", "3-2", "-1", "1-", "-", "a", "0-x", " 1",
                          "1,2", "0-1-2", "99999999999999999999"}) {
    const auto range = ParseHostRange(bad, 4);
    ASSERT_FALSE(range.ok()) << bad;
    EXPECT_EQ(
        range.status().message(),
        absl::StrCat("hosts '", bad, "', want RANK or FIRST-LAST within 0-3"));
  }
}

}  // namespace
}  // namespace ringfleet::cluster
