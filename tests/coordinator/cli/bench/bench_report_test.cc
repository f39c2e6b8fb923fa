// SPDX-License-Identifier: Apache-2.0
#include "coordinator/cli/bench/bench_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "absl/strings/str_split.h"
#include "coordinator/cli/bench/bench_request.h"

namespace ringfleet::coordinator::cli {
namespace {

using ::testing::DoubleNear;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

std::vector<std::string> Names(const BenchOptions& options) {
  const auto request = MakeBenchRequest(options);
  if (!request.ok()) return {std::string(request.status().message())};
  std::vector<std::string> names;
  for (const v1::BenchTest& test : request->tests()) {
    names.push_back(absl::StrCat(test.n_parallel(), "x ", BenchTestName(test)));
  }
  return names;
}

TEST(BenchRequestTest, DefaultsAreLlamaBenchs) {
  EXPECT_THAT(Names({}), ElementsAre("1x pp512", "1x tg128"));
  EXPECT_EQ(MakeBenchRequest({})->repetitions(), 5u);
}

TEST(BenchRequestTest, EveryCombinationIsATest) {
  EXPECT_THAT(Names({.prompts = {"16"},
                     .generated = {"4"},
                     .pairs = {"8,2"},
                     .depths = {"0,8"},
                     .parallels = {"1", "2"}}),
              ElementsAre("1x pp16", "1x tg4", "1x pp8+tg2", "1x pp16 @ d8",
                          "1x tg4 @ d8", "1x pp8+tg2 @ d8", "2x pp16", "2x tg4",
                          "2x pp8+tg2", "2x pp16 @ d8", "2x tg4 @ d8",
                          "2x pp8+tg2 @ d8"));
}

TEST(BenchRequestTest, NoTokensAreNoTest) {
  EXPECT_THAT(Names({.prompts = {"0"}, .generated = {"4"}}),
              ElementsAre("1x tg4"));
  EXPECT_THAT(Names({.prompts = {"0"}, .generated = {"0"}}),
              ElementsAre(HasSubstr("nothing to test")));
}

TEST(BenchRequestTest, ListsHaveRanges) {
  const auto numbers = [](const char* text) {
    return ParseNumbers("-p", {text}).value_or(std::vector<uint32_t>{});
  };
  EXPECT_THAT(numbers("1,8,32"), ElementsAre(1, 8, 32));
  EXPECT_THAT(numbers("2-4,9"), ElementsAre(2, 3, 4, 9));
  EXPECT_THAT(numbers("0-1100+512"), ElementsAre(0, 512, 1024));
  EXPECT_THAT(numbers("1-8*2"), ElementsAre(1, 2, 4, 8));
  for (const char* bad :
       {"", "x", "1,", "-1", "3-1", "1-", "1-4*1", "0-4*2", "1-4+0", "1-4x2",
        "1-4*", "1-9999999", "1.5", " 1", "+1", "99999999999"}) {
    const auto parsed = ParseNumbers("-p", {bad});
    EXPECT_EQ(parsed.status().code(), absl::StatusCode::kInvalidArgument)
        << bad;
    EXPECT_THAT(std::string(parsed.status().message()),
                StartsWith(absl::StrCat("usage: -p ", bad)));
  }
}

TEST(BenchRequestTest, UsageErrorsNameTheOption) {
  EXPECT_THAT(Names({.parallels = {"0"}}), ElementsAre(HasSubstr("-np 0")));
  for (const char* bad : {"5", "5,", "5,x", "1,2,3"}) {
    EXPECT_THAT(Names({.pairs = {bad}}),
                ElementsAre(HasSubstr(absl::StrCat("-pg ", bad, ", want"))));
  }
}

TEST(BenchRequestTest, NeedsAreThoseOfTheLargestTest) {
  const BenchNeeds needs = NeedsOf(*MakeBenchRequest(
      {.pairs = {"300,400"}, .depths = {"0,50"}, .parallels = {"8,2"}}));
  EXPECT_EQ(needs.slots, 8u);
  EXPECT_EQ(needs.context, 750u);
  EXPECT_EQ(NeedsOf(*MakeBenchRequest({.prompts = {"0"}})).context, 129u);
}

TEST(BenchRequestTest, LlamaCppsOneDashIsUnderstood) {
  EXPECT_THAT(WithLongOptions({"bench", "-np", "8", "-pg", "1,2", "-n", "3"}),
              ElementsAre("bench", "--n-parallel", "8", "--prompt-then-gen",
                          "1,2", "-n", "3"));
}

BenchResult Result() {
  BenchResult result;
  v1::BenchProgress::Setup& setup = result.setup;
  setup.set_model("/models/\"one\"");
  setup.set_model_type("deepseek_v3");
  setup.set_parameters(4'330'000'000);
  setup.set_weight_bytes(uint64_t{5} << 29);
  setup.set_dtype(v1::DTYPE_BF16);
  setup.set_cache_dtype(v1::CACHE_DTYPE_BF16);
  setup.set_wire(v1::WIRE_DTYPE_INT8);
  setup.set_world(4);
  setup.set_hosts(2);
  setup.set_threads(3);
  setup.set_cpu("a CPU");
  setup.set_prefill_chunk(512);
  setup.mutable_build()->set_version("1.2.3");
  setup.mutable_build()->set_build_id("abc");
  result.test.set_n_gen(10);
  result.test.set_n_depth(7);
  result.test.set_n_parallel(8);
  result.unix_ms = 1'700'000'000'000;
  // 80 tokens in 1 s and in 0.5 s.
  for (const uint64_t ns : {1'000'000'000, 500'000'000}) {
    v1::BenchProgress::Sample sample;
    sample.set_time_ns(ns);
    sample.set_bytes_read(30'000'000'000);
    sample.set_host_read_gbps(ns == 1'000'000'000 ? 20 : 50);
    result.samples.push_back(sample);
  }
  return result;
}

TEST(BenchFiguresTest, AreMeansAndSampleDeviations) {
  const BenchFigures figures = FiguresOf(Result());
  EXPECT_THAT(figures.tokens_per_second, ElementsAre(80, 160));
  EXPECT_DOUBLE_EQ(figures.avg_ns, 0.75e9);
  EXPECT_THAT(figures.stddev_ns, DoubleNear(0.5e9 / std::sqrt(2), 1));
  EXPECT_DOUBLE_EQ(figures.avg_ts, 120);
  EXPECT_THAT(figures.stddev_ts, DoubleNear(80 / std::sqrt(2), 1e-9));
  EXPECT_DOUBLE_EQ(figures.bytes_per_token, 30e9 / 80);
  // 60 GB in 1.5 s on two hosts.
  EXPECT_DOUBLE_EQ(figures.read_gbps, 20);
  EXPECT_DOUBLE_EQ(figures.host_read_gbps, 35);
  // 15 of 20 and 30 of 50.
  EXPECT_DOUBLE_EQ(figures.bandwidth_share, (0.75 + 0.6) / 2);
}

TEST(BenchFiguresTest, OneSampleHasNoDeviation) {
  BenchResult result = Result();
  result.samples.pop_back();
  EXPECT_EQ(FiguresOf(result).stddev_ts, 0);
  EXPECT_EQ(FiguresOf({}).avg_ts, 0);
}

TEST(BenchReportTest, JsonHasLlamaBenchsKeysAndOurs) {
  const Json json = BenchJson(Result());
  EXPECT_EQ(json["build_commit"], "abc");
  EXPECT_EQ(json["cpu_info"], "a CPU");
  EXPECT_EQ(json["model_type"], "deepseek_v3 4.33B bf16");
  EXPECT_EQ(json["model_size"], uint64_t{5} << 29);
  EXPECT_EQ(json["n_threads"], 3);
  EXPECT_EQ(json["n_gen"], 10);
  EXPECT_EQ(json["n_depth"], 7);
  EXPECT_EQ(json["n_parallel"], 8);
  EXPECT_EQ(json["test_time"], "2023-11-14T22:13:20Z");
  EXPECT_EQ(json["avg_ns"], 750'000'000);
  EXPECT_EQ(json["samples_ns"].dump(), "[1000000000,500000000]");
  EXPECT_EQ(json["samples_ts"].dump(), "[80.0,160.0]");
  EXPECT_EQ(json["samples_bandwidth_share"].dump(), "[0.75,0.6]");
  EXPECT_EQ(json["wire"], "int8");
  EXPECT_EQ(json["type_k"], "bf16");
  EXPECT_EQ(json["host_read_gbps"], 35);
  BenchResult unmeasured = Result();
  for (auto& sample : unmeasured.samples) sample.set_host_read_gbps(0);
  EXPECT_TRUE(BenchJson(unmeasured)["host_read_gbps"].is_null());
  EXPECT_TRUE(BenchJson(unmeasured)["bandwidth_share"].is_null());
  EXPECT_THAT(BenchTableLine(unmeasured), EndsWith(" - |               - |\n"));
}

TEST(BenchReportTest, CsvHasAValueForEveryName) {
  const std::string header = BenchCsvHeader();
  EXPECT_THAT(header, StartsWith("build_commit,cpu_info,"));
  const std::string line = BenchCsvLine(Result());
  EXPECT_THAT(line, StartsWith("\"abc\",\"a CPU\","));
  EXPECT_THAT(line, HasSubstr("\"/models/\"\"one\"\"\""));
  const std::vector<std::string> names = absl::StrSplit(header, ',');
  const std::vector<std::string> values = absl::StrSplit(line, "\",\"");
  EXPECT_EQ(names.size(), values.size());
  EXPECT_EQ(names.back(), "bandwidth_share\n");
  EXPECT_EQ(values.back(), "0.675\"\n");
}

TEST(BenchReportTest, TheTableIsAligned) {
  const std::vector<std::string> header =
      absl::StrSplit(BenchTableHeader(), '\n');
  ASSERT_EQ(header.size(), 3u);
  EXPECT_THAT(header[0], StartsWith("| model                          |"));
  EXPECT_EQ(header[0].size(), header[1].size());
  const std::string line = BenchTableLine(Result());
  // The newline, and the second byte of the sign.
  EXPECT_EQ(line.size(), header[0].size() + 2);
  EXPECT_THAT(line,
              StartsWith("| deepseek_v3 4.33B bf16         |   2.50 GiB |     "
                         "4.33 B | CPU        |       3 |     4 |          8 | "
                         "      tg10 @ d7 |       120.00 ± 56.57 |"));
  EXPECT_THAT(line,
              HasSubstr("|       375000000 |     20.00 |          35.00 | "
                        "          0.675 |\n"));
  EXPECT_THAT(BenchTableFooter(Result().setup),
              HasSubstr("build: abc (1.2.3)\ncpu: a CPU\n"));
}

}  // namespace
}  // namespace ringfleet::coordinator::cli
