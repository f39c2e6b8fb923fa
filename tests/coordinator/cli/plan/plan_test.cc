// SPDX-License-Identifier: Apache-2.0
// `ringfleet plan`: from flags and files to a document.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "coordinator/cli/plan/plan_report.h"
#include "coordinator/cli/plan/plan_request.h"
#include "tests/testing/checkpoint_writer.h"
#include "tests/testing/r1_spec.h"

namespace ringfleet::coordinator::cli {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::TempDir;
using testing::WriteFile;

class PlanTest : public ::testing::Test {
 protected:
  PlanTest() {
    WriteFile(dir_.File("config.json"), testing::R1Config());
    options_.model = dir_.File("config.json");
    options_.hosts = 8;
    options_.memory_gib = 128;
    options_.bandwidth_gbps = 200;
    options_.network_gbit = 25;
    options_.latency_us = 20;
  }

  Json Plan() {
    const absl::StatusOr<PlanInput> input = ReadPlanInput(options_);
    EXPECT_TRUE(input.ok()) << input.status();
    return input.ok() ? PlanJson(*input, ComputePlan(*input)) : Json();
  }
  absl::Status Error() { return ReadPlanInput(options_).status(); }
  void UseFleet(const std::string& name, const std::string& text) {
    WriteFile(dir_.File(name), text);
    options_.fleet = dir_.File(name);
    options_.hosts.reset();
    options_.memory_gib.reset();
    options_.bandwidth_gbps.reset();
    options_.network_gbit.reset();
    options_.latency_us.reset();
  }

  const TempDir dir_;
  PlanOptions options_;
};

TEST_F(PlanTest, HasTheKeysThatProgramsRead) {
  const Json plan = Plan();
  EXPECT_EQ(plan["fits"], true);
  EXPECT_EQ(plan["parameters"], 671026419200u);
  EXPECT_EQ(plan["cache_bytes_per_token"], 70272);
  EXPECT_NEAR(plan["checkpoint_bytes"].get<double>() * 1e-9, 688.58, 0.02);
  ASSERT_EQ(plan["hosts"].size(), 8u);
  for (const Json& host : plan["hosts"]) {
    uint64_t weights = 0;
    for (const auto& [name, bytes] : host["weights"].items()) {
      weights += bytes.get<uint64_t>();
    }
    EXPECT_EQ(weights, host["weight_bytes"]);
    EXPECT_EQ(host["free_bytes"].get<int64_t>(),
              (int64_t{128} << 30) - static_cast<int64_t>(weights) -
                  host["cache_bytes"].get<int64_t>() -
                  host["buffer_bytes"].get<int64_t>());
  }
  EXPECT_EQ(plan["mesh"]["data"], 1);
  EXPECT_EQ(
      plan["mesh"]["expert"].get<int>() * plan["mesh"]["tensor"].get<int>(), 8);
  EXPECT_GT(plan["decode_tps"], 0);
  EXPECT_GT(plan["prefill_tps"], 0);
  // The first of a prompt's steps, which have more before them each time.
  const double prompt_ms =
      plan["context"].get<double>() * 1e3 / plan["prefill_tps"].get<double>();
  const double steps = plan["context"].get<double>() / 512;
  EXPECT_LT(plan["prompt_step"]["total_ms"], prompt_ms / steps);
  EXPECT_GT(plan["prompt_step"]["total_ms"], prompt_ms / steps / 2);
  EXPECT_GT(plan["bytes_per_token"], 36e9);
  EXPECT_EQ(plan["collectives_per_token"], 122);
  EXPECT_GT(plan["max_context_x_batch"], 4096);
  EXPECT_GE(plan["alternatives"].size(), 6u);
  for (const Json& other : plan["alternatives"]) {
    EXPECT_TRUE(other["name"].is_string());
    EXPECT_TRUE(other["decode_tps"].is_number());
    EXPECT_TRUE(other["prefill_tps"].is_number());
    EXPECT_FALSE(other["why_not"].get<std::string>().empty());
  }
  EXPECT_EQ(plan["table"].size(), 7u * 4 * 3);
  EXPECT_EQ(plan["assumptions"].size(), 2u);  // Threads and GOPS.
}

TEST_F(PlanTest, MarkdownSaysTheSame) {
  const PlanInput input = ReadPlanInput(options_).value();
  const std::string text = PlanMarkdown(input, ComputePlan(input), true);
  EXPECT_THAT(text, AllOf(HasSubstr("671.03 billion"), HasSubstr("70272 bytes"),
                          HasSubstr("122 all-reduces"),
                          HasSubstr("The first 512 tokens of a prompt: "),
                          HasSubstr("layer pipeline 8"),
                          HasSubstr("How times are predicted")));
}

TEST_F(PlanTest, WhatDoesNotFitIsNoError) {
  options_.hosts = 2;
  const Json plan = Plan();
  EXPECT_EQ(plan["fits"], false);
  EXPECT_EQ(plan["decode_tps"], 0);
  EXPECT_GT(plan["hosts_needed"]["hosts"], 5);
  EXPECT_LT(plan["hosts"][0]["free_bytes"], 0);
  const PlanInput input = ReadPlanInput(options_).value();
  EXPECT_THAT(PlanMarkdown(input, ComputePlan(input), false),
              HasSubstr("does not fit; "));
}

TEST_F(PlanTest, AFolderOrASyntheticModelWillDoToo) {
  options_.model = dir_.path();
  EXPECT_EQ(Plan()["parameters"], 671026419200u);
  options_.model = "synth:tiny";
  options_.context = 64;
  EXPECT_EQ(Plan()["fits"], true);
}

TEST_F(PlanTest, TypesChangeTheBytes) {
  const auto cache = [this](const char* type) {
    options_.settings.Give("cache_type", type);
    return Plan()["cache_bytes_per_token"].get<int>();
  };
  EXPECT_EQ(cache("f32"), 2 * 70272);
  EXPECT_EQ(cache("int8"), 61 * (576 + 8));
  options_.settings.Give("dtype", "int4-experts");
  const Json small = Plan();
  options_.settings.Give("dtype", "int8");
  const Json large = Plan();
  EXPECT_LT(small["hosts"][0]["weights"]["routed_experts"],
            large["hosts"][0]["weights"]["routed_experts"]);
  EXPECT_EQ(small["hosts"][0]["weights"]["attention"],
            large["hosts"][0]["weights"]["attention"]);
}

TEST_F(PlanTest, RatesCanBeGiven) {
  options_.gops = 20000;
  options_.threads = 64;
  const Json plan = Plan();
  EXPECT_EQ(plan["assumptions"].size(), 0u);
  EXPECT_EQ(plan["hosts"][0]["int8_gops"], 20000);
  EXPECT_EQ(plan["hosts"][0]["threads"], 64);
}

struct Mistake {
  const char* name;
  std::function<void(PlanOptions&)> make;
  std::vector<std::string> mentions;
};

TEST_F(PlanTest, MistakesAreNamed) {
  const Mistake mistakes[] = {
      {"NoModel", [](auto& o) { o.model.clear(); }, {"--model"}},
      {"NoHosts", [](auto& o) { o.hosts.reset(); }, {"--hosts", "--fleet"}},
      {"ZeroHosts", [](auto& o) { o.hosts = 0; }, {"--hosts 0", "1 to 64"}},
      {"ManyHosts", [](auto& o) { o.hosts = 65; }, {"--hosts 65", "1 to 64"}},
      {"Both",
       [](auto& o) { o.fleet = "f.yaml"; },
       {"--hosts 8", "--fleet f.yaml"}},
      {"ZeroMemory", [](auto& o) { o.memory_gib = 0; }, {"--memory 0"}},
      {"NoMemory", [](auto& o) { o.memory_gib.reset(); }, {"--memory"}},
      {"NoBandwidth",
       [](auto& o) { o.bandwidth_gbps.reset(); },
       {"--bandwidth"}},
      {"NegativeBandwidth",
       [](auto& o) { o.bandwidth_gbps = -1; },
       {"--bandwidth -1"}},
      {"NoNetwork", [](auto& o) { o.network_gbit.reset(); }, {"--network"}},
      {"NoLatency", [](auto& o) { o.latency_us.reset(); }, {"--latency"}},
      {"NegativeLatency", [](auto& o) { o.latency_us = -5; }, {"--latency -5"}},
      {"ZeroGops", [](auto& o) { o.gops = 0; }, {"--gops 0"}},
      {"ZeroThreads", [](auto& o) { o.threads = 0; }, {"--threads 0"}},
      {"ZeroContext", [](auto& o) { o.context = 0; }, {"--context 0"}},
      {"LongContext",
       [](auto& o) { o.context = 163841; },
       {"--context 163841", "163840"}},
      {"ZeroBatch", [](auto& o) { o.batch = 0; }, {"--batch 0", "1024"}},
      {"Dtype",
       [](auto& o) { o.settings.Give("dtype", "fp8"); },
       {"--dtype 'fp8'", "int8"}},
      {"Cache",
       [](auto& o) { o.settings.Give("cache_type", "q4"); },
       {"q4", "bf16"}},
      {"Wire",
       [](auto& o) { o.settings.Give("wire", "f16"); },
       {"f16", "bf16"}},
  };
  const PlanOptions good = options_;
  for (const Mistake& mistake : mistakes) {
    SCOPED_TRACE(mistake.name);
    options_ = good;
    mistake.make(options_);
    const absl::Status error = Error();
    EXPECT_EQ(error.code(), absl::StatusCode::kInvalidArgument);
    for (const std::string& part : mistake.mentions) {
      EXPECT_THAT(std::string(error.message()), HasSubstr(part));
    }
  }
}

TEST_F(PlanTest, OneHostNeedsNoNetwork) {
  options_.model = "synth:tiny";
  options_.hosts = 1;
  options_.network_gbit.reset();
  options_.latency_us.reset();
  options_.context = 64;
  EXPECT_EQ(Plan()["collectives_per_token"], 0);
}

TEST_F(PlanTest, AnotherArchitectureIsNamed) {
  WriteFile(dir_.File("config.json"),
            R"({"architectures":["LlamaForCausalLM"]})");
  EXPECT_THAT(std::string(Error().message()), HasSubstr("LlamaForCausalLM"));
  options_.model = dir_.File("nothing");
  EXPECT_EQ(Error().code(), absl::StatusCode::kNotFound);
}

constexpr char kUnevenFleet[] = R"(
model: /srv/models/R1
dtype: int4-experts
security: {mode: insecure}
coordinator: {host: 10.0.0.1}
workers:
  - {host: 10.0.0.1, port: 50052, memory_gib: 200, threads: 8}
  - {host: 10.0.0.1, port: 50053}
  - {host: 10.0.0.2, threads: 16}
ssh: {user: fleet}
)";

TEST_F(PlanTest, ReadsAnUnevenFleetFromItsFile) {
  UseFleet("pool.yaml", kUnevenFleet);
  EXPECT_THAT(std::string(Error().message()), HasSubstr("--bandwidth"));
  options_.bandwidth_gbps = 200;
  EXPECT_THAT(std::string(Error().message()),
              AllOf(HasSubstr("--memory"), HasSubstr("worker 1")));
  options_.memory_gib = 256;
  options_.network_gbit = 10;
  options_.latency_us = 30;
  const Json plan = Plan();
  EXPECT_EQ(plan["dtype"], "int4-experts");
  ASSERT_EQ(plan["hosts"].size(), 3u);
  // Two workers share a host.
  EXPECT_EQ(plan["hosts"][0]["memory_bytes"], uint64_t{200} << 30);
  EXPECT_EQ(plan["hosts"][1]["memory_bytes"], uint64_t{128} << 30);
  EXPECT_EQ(plan["hosts"][2]["memory_bytes"], uint64_t{256} << 30);
  EXPECT_EQ(plan["hosts"][1]["read_gbps"], 100);
  EXPECT_EQ(plan["hosts"][2]["read_gbps"], 200);
  EXPECT_EQ(plan["hosts"][0]["threads"], 8);
  options_.model.clear();  // The file names one, which is not here.
  EXPECT_THAT(std::string(Error().message()), HasSubstr("/srv/models/R1"));
}

constexpr char kMeasured[] = R"({"model":"synth:tiny","workers":[
  {"host":"a","threads":2,"memory_gib":8,"read_gbps":30,"int8_gops":700},
  {"host":"b","threads":4,"memory_gib":16,"read_gbps":60,"int8_gops":1400}],
  "network":{"gbit":10,"latency_us":25}})";

// One worker, with rates of its kernels.
std::string WithRates(const std::string& rates) {
  return R"({"model":"synth:tiny","workers":[{"threads":2,"memory_gib":8,)"
         R"("read_gbps":30,"int8_gops":700,)" +
         rates + "}]}";
}

// Rates of the kernels replace what follows from int8's; flags replace them.
TEST_F(PlanTest, RatesOfKernelsCount) {
  const auto decode = [&](const std::string& gops) {
    UseFleet("measured.json",
             WithRates(R"("products":[{"rows":1,"gops":)" + gops +
                       R"(},{"rows":128,"gops":700}],)"
                       R"("form_gops":{"int4":500,"bf16":100,"f32":100},)"
                       R"("attention_gflops":{"absorbed":300,)"
                       R"("absorbed_16_heads":200,"materialized":200})"));
    return Plan()["decode_tps"].get<double>();
  };
  options_.model.clear();
  options_.context = 64;
  const double slow = decode("0.1");
  EXPECT_GT(decode("40"), 1.5 * slow);
  options_.gops = 700;
  EXPECT_DOUBLE_EQ(decode("40"), decode("0.1"));
  options_.gops.reset();
  options_.threads = 4;
  EXPECT_DOUBLE_EQ(decode("40"), decode("0.1"));
}

TEST_F(PlanTest, ReadsWhatWasMeasured) {
  UseFleet("measured.json", kMeasured);
  options_.model.clear();
  options_.context = 64;
  const Json plan = Plan();
  EXPECT_EQ(plan["model"], "synth:tiny");
  ASSERT_EQ(plan["hosts"].size(), 2u);
  EXPECT_EQ(plan["hosts"][1]["memory_bytes"], uint64_t{16} << 30);
  EXPECT_DOUBLE_EQ(plan["hosts"][0]["read_gbps"].get<double>(), 30);
  EXPECT_EQ(plan["hosts"][1]["int8_gops"], 1400);
  EXPECT_DOUBLE_EQ(plan["latency_us"].get<double>(), 25);
  EXPECT_TRUE(plan["assumptions"].empty());
}

TEST_F(PlanTest, MeasuredFilesAreChecked) {
  for (const auto& [text, mention] : std::map<std::string, std::string>{
           {"{", "workers"},
           {R"({"workers":[]})", "workers"},
           {R"({"workers":[3]})", "workers[0]: 3"},
           {R"({"workers":[{"memory_gib":1,"read_gbps":"x"}]})",
            "workers[0].read_gbps: \"x\""},
           {R"({"workers":[{"memory_gib":-1}]})", "memory_gib: -1"},
           {WithRates(R"("products":3)"), "workers[0].products: 3"},
           {WithRates(R"("products":[])"), "workers[0].products: []"},
           {WithRates(R"("products":[7])"), "products[0]: 7"},
           {WithRates(R"("products":[{"rows":2,"gops":9}])"),
            "products[0].rows: 2, want 1 at first"},
           {WithRates(
                R"("products":[{"rows":1,"gops":9},{"rows":1,"gops":9}])"),
            "products[1].rows: 1, want more than before"},
           {WithRates(R"("products":[{"rows":1,"gops":0}])"),
            "products[0].gops: 0"},
           {WithRates(R"("products":[{"rows":1,"gops":1e300}])"),
            "products[0].gops: 1e+300"},
           {WithRates(R"("products":[{"rows":1,"gops":9}])"),
            "workers[0].products: none with 128 rows"},
           {WithRates(R"("products":[{"rows":1,"gops":9},)"
                      R"({"rows":128,"gops":9}])"),
            "workers[0].form_gops.int4: missing"},
           {WithRates(R"("products":[{"rows":1,"gops":9},)"
                      R"({"rows":128,"gops":9}],)"
                      R"("form_gops":{"int4":1,"bf16":1,"f32":1})"),
            "workers[0].attention_gflops.absorbed: missing"},
           {WithRates(R"("products":[{"rows":1,"gops":9},)"
                      R"({"rows":128,"gops":9}],)"
                      R"("form_gops":{"int4":1,"bf16":1,"f32":1},)"
                      R"("attention_gflops":{"absorbed":1})"),
            "workers[0].attention_gflops.absorbed_16_heads: missing"}}) {
    UseFleet("measured.json", text);
    EXPECT_EQ(Error().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(Error().message()), HasSubstr(mention));
  }
  UseFleet("nowhere.json", "");
  options_.fleet += "x.json";
  EXPECT_EQ(Error().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace ringfleet::coordinator::cli
