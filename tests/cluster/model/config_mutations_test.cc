// SPDX-License-Identifier: Apache-2.0
// Configurations that differ from published ones in one member. Each is either
// refused by the member and its value, or means the model that it says.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "cluster/model/families.h"
#include "cluster/model/model_spec.h"
#include "tests/testing/published_configs.h"

namespace ringfleet::cluster {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::json;

// A member with another value.
struct Refused {
  Json (*config)();
  const char* pointer;
  const char* value;  // JSON.
  const char* message;
};

constexpr Refused kRefusedMutations[] = {
    {testing::MoonlightConfig, "/attention_bias", "true",
     "attention_bias: true, want false"},
    {testing::MoonlightConfig, "/hidden_act", "\"gelu\"",
     "hidden_act: \"gelu\", want \"silu\""},
    {testing::MoonlightConfig, "/sliding_window", "4096",
     "sliding_window: 4096, want none"},
    {testing::MoonlightConfig, "/index_topk", "2048", "index_topk: 2048"},
    {testing::MoonlightConfig, "/final_logit_softcapping", "30.0",
     "final_logit_softcapping: 30.0, want none"},
    {testing::MoonlightConfig, "/embedding_multiplier", "12",
     "embedding_multiplier: 12, want 1"},
    {testing::MoonlightConfig, "/scale_emb", "12", "scale_emb: 12, want 1"},
    {testing::MoonlightConfig, "/zero_expert_num", "256",
     "zero_expert_num: 256, want 0"},
    {testing::MoonlightConfig, "/mla_scale_q_lora", "true",
     "mla_scale_q_lora: true, want false"},
    {testing::MoonlightConfig, "/use_qk_norm", "true",
     "use_qk_norm: true, want false"},
    {testing::MoonlightConfig, "/layer_types",
     R"(["linear_attention", "full_attention"])", "layer_types: [\"linear"},
    {testing::MoonlightConfig, "/scoring_func", "\"softmax\"",
     "scoring_func: \"softmax\" with topk_method \"noaux_tc\""},
    {testing::MoonlightConfig, "/scoring_func", "\"sqrtsoftplus\"",
     "scoring_func: \"sqrtsoftplus\""},
    {testing::MoonlightConfig, "/topk_method", "\"random\"",
     "topk_method: \"random\""},
    {testing::MoonlightConfig, "/rope_theta", "null", "rope_theta: missing"},
    {testing::MoonlightConfig, "/rope_scaling",
     R"({"type": "longrope", "factor": 4})", "rope_scaling.type: \"longrope\""},
    {testing::MoonlightConfig, "/rope_interleave", "false",
     "rope_interleave: false, want true"},
    {testing::MoonlightConfig, "/model_type", "\"glm4_moe_lite\"",
     "model_type: \"glm4_moe_lite\", want \"deepseek_v3\""},
    {testing::MoonlightConfig, "/text_config", R"({"hidden_size": 64})",
     "text_config: {\"hidden_size\":64}, want none"},
    {testing::Glm47FlashConfig, "/rope_parameters/partial_rotary_factor",
     "0.25", "rope_parameters.partial_rotary_factor: 0.25, want 1"},
    {testing::Glm47FlashConfig, "/rope_theta", "10000",
     "rope_parameters.rope_theta: 1e+06, but rope_theta is 10000"},
    {testing::Glm47FlashConfig, "/rope_parameters", "null",
     "rope_theta: missing"},
    {testing::Glm47FlashConfig, "/rope_parameters/rope_type", "\"llama3\"",
     "rope_parameters.rope_type: \"llama3\""},
    {testing::Glm47FlashConfig, "/mlp_layer_types",
     R"(["dense", "sparse", "dense"])", "mlp_layer_types: [\"dense\","},
    {testing::Glm47FlashConfig, "/index_topk", "8", "index_topk: 8"},
    {testing::Glm53Config, "/index_topk", "0", "index_topk: 0, want"},
    {testing::Glm53Config, "/layer_types", R"(["sliding_attention"])",
     "want \"full_attention\" or \"indexed_attention\" for each layer"},
    {testing::Glm53Config, "/num_local_experts", "64",
     "num_local_experts: 64, but n_routed_experts is 256"},
    {testing::Glm53Config, "/quantization_config/quant_method", "\"awq\"",
     "quantization_config.quant_method: \"awq\""},
    {testing::Glm53Config, "/quantization_config/fmt", "\"e5m2\"",
     "quantization_config.fmt: \"e5m2\""},
    {testing::DeepSeekV32Config, "/topk_group", "9", "topk_group: 9, want"},
    {testing::DeepSeekV32Config, "/rope_scaling/beta_slow", "64",
     "rope_scaling.beta_fast: 32, want at least beta_slow, 64"},
    {testing::DeepSeekV32Config, "/rope_scaling/mscale", "null",
     "rope_scaling.mscale: absent beside mscale_all_dim 1, want both"},
    {testing::DeepSeekV32Config, "/rope_scaling/llama_4_scaling_beta", "0.1",
     "rope_scaling.llama_4_scaling_beta: 0.1, want none"},
    {testing::KimiK25Config, "/text_config", "null", "vocab_size: missing"},
    {testing::KimiK25Config, "/text_config/attention_bias", "true",
     "text_config.attention_bias: true"},
    {testing::KimiK25Config, "/text_config/model_type", "\"kimi_linear\"",
     "text_config.model_type: \"kimi_linear\", want \"kimi_k2\""},
    {testing::KimiK25Config, "/text_config/linear_attn_config",
     R"({"kda_layers": [1]})", "text_config.linear_attn_config: "},
    {testing::KimiK25Config, "/tie_word_embeddings", "true",
     "tie_word_embeddings: true, but text_config.tie_word_embeddings is false"},
    {testing::MistralSmall4Config, "/text_config/model_type", "\"mistral\"",
     "text_config.model_type: \"mistral\", want \"mistral4\""},
    {testing::MistralSmall4Config, "/text_config/scoring_func", "\"sigmoid\"",
     "text_config.scoring_func: \"sigmoid\" with topk_method \"noaux_tc\""},
    {testing::MistralSmall4Config, "/text_config/topk_method", "\"greedy\"",
     "want softmax with noaux_tc"},
    {testing::MistralSmall4Config,
     "/text_config/rope_parameters/llama_4_scaling_beta", "-1",
     "rope_parameters.llama_4_scaling_beta: -1, want"},
    {testing::MistralSmall4Config,
     "/text_config/rope_parameters/partial_rotary_factor", "0.25",
     "rope_parameters.partial_rotary_factor: 0.25, want 1 or 0.5, the share"},
    {testing::MistralSmall4Config, "/architectures",
     "[\"PixtralForConditionalGeneration\"]",
     "architecture PixtralForConditionalGeneration: this program runs"},
};

TEST(ConfigMutationsTest, EachIsRefusedByMemberAndValue) {
  for (const Refused& mutation : kRefusedMutations) {
    Json config = mutation.config();
    config[Json::json_pointer(mutation.pointer)] = Json::parse(mutation.value);
    const auto spec = ParseModelSpec(config.dump());
    EXPECT_EQ(spec.status().code(), absl::StatusCode::kInvalidArgument)
        << mutation.pointer << " " << mutation.value;
    EXPECT_THAT(std::string(spec.status().message()),
                HasSubstr(mutation.message));
  }
}

// A mutation that does not change the model.
struct Equal {
  Json (*config)();
  const char* name;
  std::function<void(Json&)> mutate;
};

TEST(ConfigMutationsTest, OtherSpellingsMeanTheSameModel) {
  const auto set = [](const char* pointer, Json value) {
    return [pointer, value](Json& config) {
      config[Json::json_pointer(pointer)] = value;
    };
  };
  const std::vector<Equal> equal = {
      {testing::MoonlightConfig, "architectures absent",
       [](Json& config) { config.erase("architectures"); }},
      {testing::MoonlightConfig, "theta in rope_parameters",
       [](Json& config) {
         config["rope_parameters"] = {{"rope_type", "default"},
                                      {"rope_theta", config["rope_theta"]}};
         config.erase("rope_theta");
         config.erase("rope_scaling");
       }},
      {testing::MoonlightConfig, "q_lora_rank 0", set("/q_lora_rank", 0)},
      {testing::MoonlightConfig, "swish", set("/hidden_act", "swish")},
      {testing::MoonlightConfig, "no window", set("/sliding_window", nullptr)},
      {testing::MoonlightConfig, "window off",
       set("/use_sliding_window", false)},
      {testing::MoonlightConfig, "neutral scale", set("/scale_emb", 1.0)},
      {testing::MoonlightConfig, "all layers full",
       set("/layer_types", Json::array({"full_attention"}))},
      {testing::MoonlightConfig, "heads of keys",
       set("/num_key_value_heads", 16)},
      {testing::Glm53Config, "layer types instead of a number",
       [](Json& config) {
         Json types(std::vector<std::string>(78, "sparse"));
         for (int i = 0; i < 3; ++i) types[i] = "dense";
         config["mlp_layer_types"] = types;
         config.erase("first_k_dense_replace");
       }},
      {testing::Glm53Config, "IndexShare",
       [](Json& config) {
         config["index_topk_freq"] = 4;
         config["index_skip_topk_offset"] = 2;
         config["indexer_types"] = Json::array({"full", "shared"});
       }},
      {testing::Glm53Config, "a misleading head_dim", set("/head_dim", 192)},
      {testing::Glm53Config, "layers with an indexer",
       set("/layer_types", Json::array({"indexed_attention"}))},
      {testing::DeepSeekV32Config, "layers of sparse attention",
       set("/layer_types", Json::array({"deepseek_sparse_attention"}))},
      {testing::DeepSeekV32Config, "rope_parameters",
       [](Json& config) {
         Json rope = config["rope_scaling"];
         rope["rope_type"] = "yarn";
         rope["rope_theta"] = config["rope_theta"];
         config["rope_parameters"] = rope;
         config.erase("rope_scaling");
         config.erase("rope_theta");
       }},
      {testing::DeepSeekV32Config, "default betas",
       [](Json& config) {
         config["rope_scaling"].erase("beta_fast");
         config["rope_scaling"]["beta_slow"] = nullptr;
       }},
      {testing::KimiK25Config, "quantised nothing",
       set("/quantization_config", nullptr)},
      {testing::KimiK25Config, "no architectures",
       [](Json& config) { config.erase("architectures"); }},
      {testing::KimiK25Config, "tied only outside",
       [](Json& config) {
         config["text_config"].erase("tie_word_embeddings");
       }},
      {testing::MistralSmall4Config, "the rotated share of a head",
       set("/text_config/rope_parameters/partial_rotary_factor", 0.5)},
      {testing::MistralSmall4Config, "softmax written",
       set("/text_config/scoring_func", "softmax")},
  };
  for (const Equal& mutation : equal) {
    SCOPED_TRACE(mutation.name);
    Json config = mutation.config();
    const auto before = ParseModelSpec(config.dump());
    ASSERT_TRUE(before.ok()) << before.status();
    mutation.mutate(config);
    const auto after = ParseModelSpec(config.dump());
    ASSERT_TRUE(after.ok()) << after.status();
    EXPECT_EQ(*after, *before);
  }
}

}  // namespace
}  // namespace ringfleet::cluster
