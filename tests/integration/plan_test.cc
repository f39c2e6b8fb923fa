// SPDX-License-Identifier: Apache-2.0
// `ringfleet plan` and `inspect` as programs call them.
#include <filesystem>

#include "tests/integration/fleet_fixture.h"
#include "tests/testing/r1_spec.h"

namespace ringfleet::integration {
namespace {

class PlanCliTest : public FleetTest {};

TEST_F(PlanCliTest, PlansFromAConfigurationAlone) {
  testing::WriteFile(File("config.json"), testing::R1Config());
  const Arguments command = {"plan",        "--model",   File("config.json"),
                             "--hosts",     "8",         "--memory",
                             "128",         "--network", "25",
                             "--bandwidth", "200",       "--latency",
                             "20",          "-o",        "json"};
  const Finished finished = Cli(command);
  EXPECT_EQ(finished.code, 0) << finished.errors;
  EXPECT_EQ(finished.errors, "");
  EXPECT_EQ(finished.document()["parameters"], 671026419200u);
  Arguments small = command;
  small[6] = "1";
  const Finished none = Cli(small);
  EXPECT_EQ(none.code, 0) << none.errors;
  EXPECT_EQ(none.document()["fits"], false);
  small[6] = "0";
  const Finished wrong = Cli(small);
  EXPECT_EQ(wrong.code, 2);
  EXPECT_THAT(wrong.error_line(), HasSubstr("--memory 0"));
  // All that is missing is named at once.
  const Finished short_of =
      Cli({"plan", "--model", "synth:r1-slice", "--hosts", "2"});
  EXPECT_EQ(short_of.code, 2);
  EXPECT_THAT(
      short_of.error_line(),
      HasSubstr("usage: give also --memory (GiB of a host), --bandwidth "
                "(GB/s of a host's memory), --network (Gbit/s of a "
                "host), --latency (us one way)"));
  EXPECT_TRUE(wrong.document().contains("error"));
}

// What one prints the other reads.
TEST_F(PlanCliTest, DoctorFeedsPlan) {
  const Finished examined =
      Cli({"doctor", "--local", "2", "--threads", "1", "--time-ms", "20",
           "--transport", "grpc", "--model", Model(), "-o", "json"},
          {.seconds = 90});
  ASSERT_EQ(examined.code, 0) << examined.errors;
  const json document = examined.document();
  ASSERT_EQ(document["workers"].size(), 2u);
  for (const json& worker : document["workers"]) {
    EXPECT_GT(worker["read_gbps"], 0);
    EXPECT_GT(worker["int8_gops"], 0);
    EXPECT_GT(worker["memory_gib"], 0);
    EXPECT_EQ(worker["threads"], 1);
    EXPECT_TRUE(worker["isa"].is_string());
  }
  ASSERT_EQ(document["pairs"].size(), 1u);
  EXPECT_GT(document["pairs"][0]["all_reduce_4b_us"], 0);
  EXPECT_EQ(document["pairs"][0]["transport"], "grpc");
  EXPECT_GT(document["network"]["gbit"], 0);
  EXPECT_TRUE(document["advice"].is_array());
  const Finished wrong = Cli({"doctor", "--transport", "tcp"});
  EXPECT_EQ(wrong.code, 2);
  EXPECT_THAT(wrong.error_line(),
              HasSubstr("--transport 'tcp', want grpc or auto"));
  testing::WriteFile(File("measured.json"), examined.output);
  const Finished planned = Cli({"plan", "--fleet", File("measured.json"),
                                "--context", "64", "-o", "json"});
  ASSERT_EQ(planned.code, 0) << planned.errors;
  EXPECT_EQ(planned.document()["hosts"].size(), 2u);
  EXPECT_EQ(planned.document()["fits"], true);
  EXPECT_TRUE(planned.document()["assumptions"].empty());
}

TEST_F(PlanCliTest, InspectsACheckpoint) {
  const Finished finished = Cli({"inspect", Model(), "-o", "json"});
  ASSERT_EQ(finished.code, 0) << finished.errors;
  const json document = finished.document();
  EXPECT_EQ(document["ok"], true);
  EXPECT_EQ(document["architecture"], "DeepseekV3ForCausalLM");
  EXPECT_EQ(document["mtp"], true);
  EXPECT_EQ(document["quantization"]["method"], "fp8");
  EXPECT_EQ(document["shards"].size(), 2u);
  EXPECT_EQ(document["tokenizer"]["tokens"], 2044);
  EXPECT_TRUE(document["missing"].empty());
  const Finished text = Cli({"inspect", Model()});
  EXPECT_EQ(text.code, 0);
  EXPECT_THAT(text.output, HasSubstr("| routed_experts |"));
  // The prediction layer is counted apart, so that `synth` says the same.
  EXPECT_GT(document["parameters_with_mtp"], document["parameters"]);
  EXPECT_THAT(text.output, HasSubstr("with the prediction layer)"));
  EXPECT_TRUE(document["unread_config"].empty());
  EXPECT_EQ(document["generation"]["temperature"], 0.6);
}

TEST_F(PlanCliTest, InspectNamesWhatNothingReads) {
  const std::string copy = CopyModel();
  json config = json::parse(testing::ReadFile(copy + "/config.json"));
  config["attention_temperature"] = 2;
  config["rope_scaling"]["low_freq_factor"] = 1;
  testing::WriteFile(copy + "/config.json", config.dump());
  testing::WriteFile(copy + "/generation_config.json",
                     R"({"num_beams": 4, "top_k": -1})");
  const json document = Cli({"inspect", copy, "-o", "json"}).document();
  EXPECT_EQ(document["ok"], true);
  EXPECT_EQ(document["unread_config"],
            json({"attention_temperature", "rope_scaling.low_freq_factor"}));
  EXPECT_EQ(document["generation"]["ignored"], json::array({"num_beams 4"}));
  const std::string text = Cli({"inspect", copy}).output;
  EXPECT_THAT(text, HasSubstr("- attention_temperature\n"));
  EXPECT_THAT(text, HasSubstr("sampling: greedy; num_beams 4 is not "
                              "supported, ignored\n"));
}

// A folder that passes must be one that a fleet serves.
TEST_F(PlanCliTest, InspectFailsWithAFileThatCannotBeUsed) {
  const std::string copy = CopyModel();
  const auto problem = [&] {
    const Finished finished = Cli({"inspect", copy, "-o", "json"});
    EXPECT_EQ(finished.code, 4);
    EXPECT_EQ(finished.document()["ok"], false);
    EXPECT_EQ(Cli({"inspect", copy}).code, 4);
    return finished.error_line();
  };
  for (const char* name :
       {"generation_config.json", "tokenizer_config.json", "tokenizer.json"}) {
    const std::string good = testing::ReadFile(copy + "/" + name);
    testing::WriteFile(copy + "/" + name, "garbage");
    EXPECT_THAT(problem(), HasSubstr(name));
    testing::WriteFile(copy + "/" + name, good);
  }
  const std::string generation = copy + "/generation_config.json";
  testing::WriteFile(generation, R"({"eos_token_id": 5000})");
  EXPECT_THAT(problem(), HasSubstr("eos_token_id 5000, want less than 2048"));
  std::filesystem::remove(generation);
  EXPECT_EQ(Cli({"inspect", copy, "-o", "json"}).document()["doubts"],
            json({"generation_config.json: absent, so answers are greedy"}));
  std::filesystem::remove(copy + "/tokenizer.json");
  EXPECT_THAT(problem(), HasSubstr("tokenizer.json"));
}

TEST_F(PlanCliTest, AnIncompleteCheckpointIsNamedAndExits4) {
  const std::string copy = File("copy");
  std::filesystem::copy(Model("tiny-v2"), copy);
  json config = json::parse(testing::ReadFile(copy + "/config.json"));
  config["num_hidden_layers"] = config["num_hidden_layers"].get<int>() + 1;
  testing::WriteFile(copy + "/config.json", config.dump());
  const Finished finished = Cli({"inspect", "--model", copy, "-o", "json"});
  EXPECT_EQ(finished.code, 4);
  EXPECT_THAT(finished.error_line(), HasSubstr("missing tensor model.layers."));
  const json document = finished.document();  // One, with both.
  EXPECT_EQ(document["ok"], false);
  EXPECT_FALSE(document["missing"].empty());
  EXPECT_EQ(document["error"]["code"], "DATA_LOSS");
  EXPECT_EQ(Cli({"inspect", File("nothing")}).code, 2);
}

// A model without low-rank queries does not read those of this checkpoint.
TEST_F(PlanCliTest, ATensorThatNothingReadsIsNamedAndExits4) {
  const std::string copy = File("copy");
  std::filesystem::copy(Model("tiny-v2"), copy);
  json config = json::parse(testing::ReadFile(copy + "/config.json"));
  config["q_lora_rank"] = nullptr;
  testing::WriteFile(copy + "/config.json", config.dump());
  const Finished finished = Cli({"inspect", copy, "-o", "json"});
  EXPECT_EQ(finished.code, 4);
  const json document = finished.document();
  EXPECT_EQ(document["ok"], false);
  bool found = false;
  for (const json& wrong : document["wrong"]) {
    found |= wrong ==
             "model.layers.1.self_attn.q_a_proj.weight: nothing reads "
             "this tensor";
  }
  EXPECT_TRUE(found) << document["wrong"];
  EXPECT_FALSE(document["unexpected"].empty());
  const Finished text = Cli({"inspect", copy});
  EXPECT_EQ(text.code, 4);
  EXPECT_THAT(text.output, HasSubstr(": nothing reads this tensor"));
}

}  // namespace
}  // namespace ringfleet::integration
