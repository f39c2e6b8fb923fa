// SPDX-License-Identifier: Apache-2.0
#include "cluster/model/model_spec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "cluster/checkpoint/open_model.h"
#include "nlohmann/json.hpp"
#include "tests/testing/checkpoint_writer.h"

namespace ringfleet::cluster {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Json = nlohmann::json;

Json TinyV3() {
  return Json::parse(testing::ConfigJson(testing::TinyV3Spec()));
}
Json TinyV2() {
  return Json::parse(testing::ConfigJson(testing::TinyV2Spec()));
}
Json TinyV2Lite() {
  return Json::parse(testing::ConfigJson(testing::TinyV2LiteSpec()));
}

ModelSpec Parse(const Json& config) {
  const auto spec = ParseModelSpec(config.dump());
  EXPECT_TRUE(spec.ok()) << spec.status();
  return spec.value_or(ModelSpec());
}

// The message of the INVALID_ARGUMENT that `config` gives.
std::string Problem(const Json& config) {
  const auto spec = ParseModelSpec(config.dump());
  EXPECT_EQ(spec.status().code(), absl::StatusCode::kInvalidArgument)
      << config.dump();
  return std::string(spec.status().message());
}

// TinyV3 with one member replaced.
std::string ProblemWith(const std::string& pointer, const Json& value) {
  Json config = TinyV3();
  config[Json::json_pointer(pointer)] = value;
  return Problem(config);
}

// The published configurations, cut down to what is read.
Json R1() {
  return Json::parse(R"({
    "architectures": ["DeepseekV3ForCausalLM"], "attention_bias": false,
    "bos_token_id": 0, "eos_token_id": 1, "ep_size": 1,
    "first_k_dense_replace": 3, "hidden_act": "silu", "hidden_size": 7168,
    "intermediate_size": 18432, "kv_lora_rank": 512,
    "max_position_embeddings": 163840, "model_type": "deepseek_v3",
    "moe_intermediate_size": 2048, "moe_layer_freq": 1, "n_group": 8,
    "n_routed_experts": 256, "n_shared_experts": 1, "norm_topk_prob": true,
    "num_attention_heads": 128, "num_experts_per_tok": 8,
    "num_hidden_layers": 61, "num_key_value_heads": 128,
    "num_nextn_predict_layers": 1, "q_lora_rank": 1536,
    "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
    "quantization_config": {"activation_scheme": "dynamic", "fmt": "e4m3",
      "quant_method": "fp8", "weight_block_size": [128, 128]},
    "rms_norm_eps": 1e-06,
    "rope_scaling": {"beta_fast": 32, "beta_slow": 1, "factor": 40,
      "mscale": 1.0, "mscale_all_dim": 1.0,
      "original_max_position_embeddings": 4096, "type": "yarn"},
    "rope_theta": 10000, "routed_scaling_factor": 2.5,
    "scoring_func": "sigmoid", "tie_word_embeddings": false, "topk_group": 4,
    "topk_method": "noaux_tc", "v_head_dim": 128, "vocab_size": 129280})");
}

Json V2Lite() {
  return Json::parse(R"({
    "architectures": ["DeepseekV2ForCausalLM"], "model_type": "deepseek_v2",
    "bos_token_id": 100000, "eos_token_id": 100001,
    "first_k_dense_replace": 1, "hidden_size": 2048,
    "intermediate_size": 10944, "kv_lora_rank": 512,
    "max_position_embeddings": 163840, "moe_intermediate_size": 1408,
    "n_group": 1, "n_routed_experts": 64, "n_shared_experts": 2,
    "norm_topk_prob": false, "num_attention_heads": 16,
    "num_experts_per_tok": 6, "num_hidden_layers": 27, "q_lora_rank": null,
    "rope_scaling": {"beta_fast": 32, "beta_slow": 1, "factor": 40,
      "mscale": 0.707, "mscale_all_dim": 0.707,
      "original_max_position_embeddings": 4096, "type": "yarn"},
    "rope_theta": 10000,
    "routed_scaling_factor": 1.0, "topk_group": 1, "topk_method": "greedy",
    "vocab_size": 102400})");
}

TEST(ModelSpecTest, ReadsR1) {
  const ModelSpec spec = Parse(R1());
  EXPECT_EQ(spec.architecture, "DeepseekV3ForCausalLM");
  EXPECT_EQ(spec.model_type, "deepseek_v3");
  EXPECT_EQ(spec.vocab_size, 129280);
  EXPECT_EQ(spec.hidden_size, 7168);
  EXPECT_EQ(spec.num_hidden_layers, 61);
  EXPECT_EQ(spec.num_attention_heads, 128);
  EXPECT_EQ(spec.q_lora_rank, 1536);
  EXPECT_EQ(spec.qk_head_dim(), 192);
  EXPECT_EQ(spec.cache_row(), 576);
  EXPECT_EQ(spec.intermediate_size, 18432);
  EXPECT_EQ(spec.moe_intermediate_size, 2048);
  EXPECT_EQ(spec.n_routed_experts, 256);
  EXPECT_EQ(spec.n_shared_experts, 1);
  EXPECT_EQ(spec.num_experts_per_tok, 8);
  EXPECT_EQ(spec.scoring_func, ScoringFunc::kSigmoid);
  EXPECT_EQ(spec.topk_method, TopkMethod::kNoauxTc);
  EXPECT_EQ(spec.n_group, 8);
  EXPECT_EQ(spec.topk_group, 4);
  EXPECT_TRUE(spec.norm_topk_prob);
  EXPECT_EQ(spec.routed_scaling_factor, 2.5);
  EXPECT_EQ(spec.rms_norm_eps, 1e-6);
  EXPECT_EQ(spec.max_position_embeddings, 163840);
  EXPECT_EQ(spec.num_nextn_predict_layers, 1);
  EXPECT_EQ(spec.weight_block_rows, 128);
  EXPECT_EQ(spec.weight_block_columns, 128);
  EXPECT_EQ(spec.bos_token_id, 0u);
  EXPECT_THAT(spec.eos_token_ids, ElementsAre(1));
  EXPECT_FALSE(spec.IsMoeLayer(2));
  EXPECT_TRUE(spec.IsMoeLayer(3));
}

// dq^-0.5 alone would be 0.0721687836; the squares of 1.3688879454 and of
// 1.2608037774 belong to it (arXiv:2309.00071, section 3.4, as DeepSeek
// applies it).
TEST(ModelSpecTest, SoftmaxScaleHasYarnsFactor) {
  EXPECT_NEAR(Parse(R1()).SoftmaxScale(), 0.1352337789, 1e-10);
  EXPECT_NEAR(Parse(V2Lite()).SoftmaxScale(), 0.1147213868, 1e-10);
}

TEST(ModelSpecTest, SoftmaxScaleIsPlainWithoutMscaleAllDim) {
  Json config = R1();
  config["rope_scaling"].erase("mscale_all_dim");
  EXPECT_NEAR(Parse(config).SoftmaxScale(), 0.0721687836, 1e-10);
  config["rope_scaling"] = nullptr;
  EXPECT_FALSE(Parse(config).rope_scaling.has_value());
  EXPECT_NEAR(Parse(config).SoftmaxScale(), 0.0721687836, 1e-10);
  config = R1();
  config["rope_scaling"]["factor"] = 1;
  EXPECT_NEAR(Parse(config).SoftmaxScale(), 0.0721687836, 1e-10);
}

TEST(ModelSpecTest, ReadsV2Lite) {
  const ModelSpec spec = Parse(V2Lite());
  EXPECT_EQ(spec.q_lora_rank, 0);
  EXPECT_EQ(spec.scoring_func, ScoringFunc::kSoftmax);
  EXPECT_EQ(spec.topk_method, TopkMethod::kGreedy);
  EXPECT_EQ(spec.weight_block_rows, 0);
  EXPECT_EQ(spec.num_nextn_predict_layers, 0);
  EXPECT_EQ(spec.qk_nope_head_dim, 128);  // The class's default.
  EXPECT_EQ(spec.rope_scaling->mscale, 0.707);
}

TEST(ModelSpecTest, QLoraRankZeroAndNullMeanNone) {
  Json config = R1();
  config["q_lora_rank"] = 0;
  EXPECT_EQ(Parse(config).q_lora_rank, 0);
  config["q_lora_rank"] = nullptr;
  EXPECT_EQ(Parse(config).q_lora_rank, 0);
  config.erase("q_lora_rank");
  EXPECT_EQ(Parse(config).q_lora_rank, 1536);
}

TEST(ModelSpecTest, AcceptsTheEarlySpellingOfGreedyAndNullGroups) {
  Json config = V2Lite();
  config["topk_method"] = "gready";
  config["n_group"] = nullptr;
  config["topk_group"] = nullptr;
  const ModelSpec spec = Parse(config);
  EXPECT_EQ(spec.topk_method, TopkMethod::kGreedy);
  EXPECT_EQ(spec.n_group, 1);
  EXPECT_EQ(spec.topk_group, 1);
}

TEST(ModelSpecTest, WithoutExpertsEveryLayerIsDense) {
  for (const bool null : {true, false}) {
    Json config = R1();
    if (null) {
      config["n_routed_experts"] = nullptr;
    } else {
      config.erase("n_routed_experts");
    }
    const ModelSpec spec = Parse(config);
    EXPECT_EQ(spec.n_routed_experts, 0);
    for (int i = 0; i < 61; ++i) EXPECT_FALSE(spec.IsMoeLayer(i));
  }
}

TEST(ModelSpecTest, MoeLayersFollowFrequencyAndFirstLayers) {
  Json config = R1();
  config["moe_layer_freq"] = 2;
  config["first_k_dense_replace"] = 1;
  const ModelSpec spec = Parse(config);
  std::vector<int> moe;
  for (int i = 0; i < 6; ++i) {
    if (spec.IsMoeLayer(i)) moe.push_back(i);
  }
  EXPECT_THAT(moe, ElementsAre(2, 4));
}

TEST(ModelSpecTest, AbsentMembersTakeTheDefaultsOfTheirFamily) {
  Json config = R1();
  for (const char* name :
       {"scoring_func", "topk_method", "n_group", "topk_group",
        "norm_topk_prob", "routed_scaling_factor", "num_experts_per_tok",
        "first_k_dense_replace", "bos_token_id", "eos_token_id", "rms_norm_eps",
        "model_type"}) {
    config.erase(name);
  }
  const ModelSpec v3 = Parse(config);
  EXPECT_EQ(v3.topk_method, TopkMethod::kNoauxTc);
  EXPECT_EQ(v3.n_group, 8);
  EXPECT_EQ(v3.routed_scaling_factor, 2.5);
  EXPECT_EQ(v3.num_experts_per_tok, 8);
  EXPECT_EQ(v3.first_k_dense_replace, 3);
  EXPECT_EQ(v3.model_type, "deepseek_v3");
  EXPECT_THAT(v3.eos_token_ids, ElementsAre(1));
  config["architectures"] = {"DeepseekV2ForCausalLM"};
  config["num_experts_per_tok"] = 6;
  const ModelSpec v2 = Parse(config);
  EXPECT_EQ(v2.topk_method, TopkMethod::kGreedy);
  EXPECT_EQ(v2.scoring_func, ScoringFunc::kSoftmax);
  EXPECT_EQ(v2.n_group, 1);
  EXPECT_FALSE(v2.norm_topk_prob);
  EXPECT_EQ(v2.bos_token_id, 100000u);
}

TEST(ModelSpecTest, EosMayBeAListOrNull) {
  Json config = R1();
  config["eos_token_id"] = {1, 128805};
  EXPECT_THAT(Parse(config).eos_token_ids, ElementsAre(1, 128805));
  config["eos_token_id"] = nullptr;
  config["bos_token_id"] = nullptr;
  EXPECT_THAT(Parse(config).eos_token_ids, IsEmpty());
  EXPECT_FALSE(Parse(config).bos_token_id.has_value());
}

TEST(ModelSpecTest, ModelTypeStandsInForArchitectures) {
  Json config = V2Lite();
  config.erase("architectures");
  EXPECT_EQ(Parse(config).architecture, "DeepseekV2ForCausalLM");
  config["model_type"] = "qwen2";
  EXPECT_THAT(Problem(config), HasSubstr("model_type qwen2"));
  config.erase("model_type");
  EXPECT_THAT(Problem(config), HasSubstr("neither architectures nor"));
}

TEST(ModelSpecTest, NamesTheArchitectureItCannotRun) {
  Json config = R1();
  config["architectures"] = {"LlamaForCausalLM"};
  EXPECT_EQ(Problem(config),
            "architecture LlamaForCausalLM: this program runs "
            "DeepseekV3ForCausalLM, DeepseekV2ForCausalLM, "
            "DeepseekV32ForCausalLM, KimiK25ForConditionalGeneration, "
            "Kimi_K25ForConditionalGeneration, Glm4MoeLiteForCausalLM, "
            "GlmMoeDsaForCausalLM and "
            "Mistral3ForConditionalGeneration");
  // A distillate of R1, whose config.json lacks DeepSeek's members.
  EXPECT_THAT(Problem(Json{{"architectures", {"Qwen2ForCausalLM"}},
                           {"hidden_size", 3584}}),
              HasSubstr("architecture Qwen2ForCausalLM"));
  EXPECT_THAT(Problem(Json{{"architectures", "DeepseekV3ForCausalLM"}}),
              HasSubstr("want a list"));
}

TEST(ModelSpecTest, NamesFieldValueAndExpectation) {
  EXPECT_EQ(ProblemWith("/hidden_size", 0),
            "config.json: hidden_size: 0, want an integer in 1 to 1048576");
  EXPECT_EQ(ProblemWith("/rms_norm_eps", -1),
            "config.json: rms_norm_eps: -1, want a number in 0.0 to 1.0");
}

TEST(ModelSpecTest, RejectsImpossibleNumbers) {
  const std::vector<std::pair<std::string, Json>> cases = {
      {"/hidden_size", -1},
      {"/hidden_size", 1 << 21},
      {"/hidden_size", 40.5},
      {"/hidden_size", "40"},
      {"/hidden_size", nullptr},
      {"/hidden_size", 18446744073709551615u},
      {"/vocab_size", 0},
      {"/vocab_size", 1e300},
      {"/num_hidden_layers", 0},
      {"/num_hidden_layers", 1000000},
      {"/num_attention_heads", 0},
      {"/num_attention_heads", 65537},
      {"/q_lora_rank", -1},
      {"/kv_lora_rank", 0},
      {"/qk_nope_head_dim", 0},
      {"/qk_rope_head_dim", 7},
      {"/qk_rope_head_dim", 0},
      {"/v_head_dim", 0},
      {"/intermediate_size", 0},
      {"/moe_intermediate_size", 0},
      {"/moe_intermediate_size", nullptr},
      {"/n_routed_experts", -8},
      {"/n_routed_experts", 9},  // Not a multiple of n_group.
      {"/n_shared_experts", -1},
      {"/num_experts_per_tok", 0},
      {"/num_experts_per_tok", 5},  // 2 groups of 2 are kept.
      {"/num_experts_per_tok", 9},
      {"/moe_layer_freq", 0},
      {"/n_group", 3},
      {"/n_group", 8},  // One expert in a group.
      {"/topk_group", 5},
      {"/topk_group", 0},
      {"/rope_theta", 0},
      {"/max_position_embeddings", 0},
      {"/num_nextn_predict_layers", -1},
      {"/eos_token_id", 101},
      {"/eos_token_id", Json::array({1, -1})},
      {"/bos_token_id", "0"},
      {"/rope_scaling/factor", 0.5},
      {"/rope_scaling/factor", nullptr},
      {"/rope_scaling/original_max_position_embeddings", 0},
      {"/rope_scaling/beta_fast", 0},
      {"/rope_scaling/beta_slow", 33},
      {"/rope_scaling/mscale", -1},
      {"/rope_scaling", 4},
      {"/norm_topk_prob", 1},
      {"/tie_word_embeddings", "no"},
      {"/quantization_config", true},
      {"/quantization_config/weight_block_size", Json::array({128})},
      {"/quantization_config/weight_block_size", Json::array({0, 128})},
      {"/quantization_config/weight_block_size", Json::array({128, -128})}};
  for (const auto& [pointer, value] : cases) {
    const std::string problem = ProblemWith(pointer, value);
    std::string field = pointer.substr(1);
    if (const size_t slash = field.find('/'); slash != std::string::npos) {
      field[slash] = '.';
    }
    // Relations are reported at the member that is checked against another.
    if (pointer == "/n_routed_experts" && value == 9) field = "n_group";
    if (field == "rope_scaling.beta_slow") field = "rope_scaling.beta_fast";
    EXPECT_THAT(problem, HasSubstr("config.json: " + field + ": "))
        << pointer << " " << value;
    EXPECT_THAT(problem, HasSubstr("want")) << pointer << " " << value;
  }
}

TEST(ModelSpecTest, RejectsProductsThatNoMatrixHas) {
  Json config = TinyV3();
  config["num_attention_heads"] = 65536;
  config["qk_nope_head_dim"] = 16384;
  EXPECT_THAT(Problem(config), HasSubstr("num_attention_heads: 65536 heads"));
  config = TinyV3();
  config["n_shared_experts"] = 1024;
  config["moe_intermediate_size"] = 1 << 20;
  EXPECT_THAT(Problem(config), HasSubstr("n_shared_experts: 1024 times"));
}

TEST(ModelSpecTest, RejectsWhatIsNotImplemented) {
  EXPECT_THAT(ProblemWith("/attention_bias", true),
              HasSubstr("attention_bias: true"));
  EXPECT_THAT(ProblemWith("/mlp_bias", true), HasSubstr("mlp_bias: true"));
  EXPECT_THAT(ProblemWith("/index_topk", 2048),
              HasSubstr("index_topk: 2048: the sparse attention of "
                        "DeepSeek-V3.2"));
  EXPECT_THAT(ProblemWith("/hidden_act", "gelu"), HasSubstr("gelu"));
  EXPECT_THAT(ProblemWith("/rope_interleave", false),
              HasSubstr("rope_interleave"));
  EXPECT_THAT(ProblemWith("/quantization_config/quant_method", "awq"),
              HasSubstr("quant_method: \"awq\", want \"fp8\""));
  EXPECT_THAT(ProblemWith("/quantization_config/fmt", "e5m2"),
              HasSubstr("e5m2"));
  EXPECT_THAT(ProblemWith("/topk_method", "random"), HasSubstr("random"));
  EXPECT_THAT(ProblemWith("/scoring_func", "tanh"), HasSubstr("tanh"));
  EXPECT_THAT(ProblemWith("/scoring_func", "softmax"),
              HasSubstr("want sigmoid with noaux_tc"));
}

TEST(ModelSpecTest, RejectsTextThatIsNoJsonObject) {
  for (const char* text : {"", "{", "[]", "null", "{\"hidden_size\": 1e999}",
                           "\xff\xfe", "{\"architectures\": [\"\xff\"]}"}) {
    EXPECT_EQ(ParseModelSpec(text).status().code(),
              absl::StatusCode::kInvalidArgument)
        << text;
  }
  EXPECT_EQ(ParseModelSpec(std::string(2 << 20, '[')).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ParseModelSpec(std::string(1 << 20, '[')).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(ModelSpecTest, ConfigOfTheWriterComesBack) {
  for (const Json& config : {TinyV3(), TinyV2(), TinyV2Lite()}) {
    EXPECT_EQ(Json::parse(testing::ConfigJson(Parse(config))), config);
  }
}

TEST(ModelSpecTest, LoadsTheBundledModels) {
  for (const std::string name : {"tiny-v3", "tiny-v2", "tiny-v2-lite"}) {
    const std::string dir = std::string(RINGFLEET_TEST_MODELS) + "/" + name;
    const auto spec = LoadModelSpec(dir);
    ASSERT_TRUE(spec.ok()) << spec.status();
    EXPECT_EQ(spec->vocab_size, 2048);
    const auto defaults = LoadGenerationDefaults(dir);
    EXPECT_TRUE(defaults.ok()) << defaults.status();
  }
}

TEST(ModelSpecTest, LoadNamesTheMissingFileAndTheFolderOfABrokenOne) {
  const testing::TempDir dir;
  EXPECT_EQ(LoadModelSpec(dir.path()).status().code(),
            absl::StatusCode::kNotFound);
  testing::WriteFile(dir.File("config.json"), "{}");
  const auto spec = LoadModelSpec(dir.path());
  EXPECT_EQ(spec.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(spec.status().message()), HasSubstr(dir.path()));
}

// As transformers 5 saves tiny-v3, with every member that it adds.
TEST(ModelSpecTest, ReadsTheMembersOfTransformers5) {
  Json config = TinyV3();
  const ModelSpec before = Parse(config);
  config["rope_parameters"] = config["rope_scaling"];
  config["rope_parameters"]["rope_theta"] = config["rope_theta"];
  config["rope_parameters"]["rope_type"] = "yarn";
  config["dtype"] = config["torch_dtype"];
  config["num_local_experts"] = config["n_routed_experts"];
  config["num_mtp_layers"] = config["num_nextn_predict_layers"];
  for (const char* name : {"rope_scaling", "rope_theta", "torch_dtype",
                           "n_routed_experts", "num_nextn_predict_layers"}) {
    config.erase(name);
  }
  config["head_dim"] = 16;
  config["mlp_bias"] = false;
  config["output_router_logits"] = false;
  config["pad_token_id"] = nullptr;
  config["rope_interleave"] = true;
  config["transformers_version"] = "5.24.0";
  EXPECT_EQ(testing::ConfigJson(Parse(config)), testing::ConfigJson(before));
  EXPECT_THAT(*FindUnreadConfigMembers(config.dump()), IsEmpty());
}

TEST(ModelSpecTest, OtherNamesMustNotContradict) {
  Json config = TinyV3();
  config["num_mtp_layers"] = config["num_nextn_predict_layers"];
  config["num_experts"] = nullptr;
  Parse(config);
  config["num_mtp_layers"] = 7;
  EXPECT_THAT(Problem(config), HasSubstr("num_mtp_layers: 7, but "
                                         "num_nextn_predict_layers is "));
  config.erase("num_mtp_layers");
  config["num_experts"] = 1;
  EXPECT_THAT(Problem(config), HasSubstr("num_experts: 1, but "));
}

TEST(ModelSpecTest, NamesTheMembersThatNothingReads) {
  Json config = TinyV3();
  EXPECT_THAT(*FindUnreadConfigMembers(config.dump()), IsEmpty());
  config["use_cache"] = true;
  config["sliding_window"] = nullptr;  // Says nothing.
  config["attention_temperature"] = 2;
  config["rope_scaling"]["low_freq_factor"] = 1;
  config["quantization_config"]["kv_cache_quant_algo"] = "FP8";
  EXPECT_THAT(*FindUnreadConfigMembers(config.dump()),
              ElementsAre("attention_temperature",
                          "quantization_config.kv_cache_quant_algo",
                          "rope_scaling.low_freq_factor"));
  EXPECT_FALSE(FindUnreadConfigMembers("{}").ok());
}

TEST(ModelSpecTest, NullSharedExpertsAreNone) {
  Json config = R1();
  config["n_shared_experts"] = nullptr;
  EXPECT_EQ(Parse(config).n_shared_experts, 0);
  config.erase("n_shared_experts");
  EXPECT_EQ(Parse(config).n_shared_experts, 1);
}

TEST(ModelSpecTest, SwishIsAnotherNameOfSilu) {
  Json config = R1();
  config["hidden_act"] = "swish";
  Parse(config);
}

}  // namespace
}  // namespace ringfleet::cluster
