// SPDX-License-Identifier: Apache-2.0
#include "cluster/model/families.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "tests/testing/published_configs.h"

namespace ringfleet::cluster {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Json = nlohmann::json;

ModelSpec SpecOf(const Json& config) {
  const auto spec = ParseModelSpec(config.dump());
  EXPECT_TRUE(spec.ok()) << spec.status() << config;
  return spec.value_or(ModelSpec());
}

TEST(FamiliesTest, EveryFamilyIsFoundByItsNames) {
  for (const Family& family : Families()) {
    SCOPED_TRACE(family.name);
    EXPECT_EQ(FindFamily(family.architecture, family.model_type), &family);
    EXPECT_THAT(FamilyArchitectures(),
                HasSubstr(std::string(family.architecture)));
  }
  EXPECT_EQ(FindFamily("LlamaForCausalLM", "llama"), nullptr);
  EXPECT_EQ(FindFamily("DeepseekV3ForCausalLM", "glm4_moe_lite"), nullptr);
  EXPECT_EQ(FindFamily("DeepseekV3ForCausalLM", "unknown")->model_type,
            "deepseek_v3");
  EXPECT_EQ(FindFamilyOfType("mistral3")->model_type, "mistral4");
  EXPECT_EQ(FindFamilyOfType(""), nullptr);
}

TEST(FamiliesTest, ReadsKimiInsideAndOutsideATextConfig) {
  const ModelSpec nested = SpecOf(testing::KimiK25Config());
  EXPECT_EQ(nested.architecture, "KimiK25ForConditionalGeneration");
  EXPECT_EQ(nested.model_type, "kimi_k2");
  EXPECT_EQ(nested.n_routed_experts, 384);
  EXPECT_EQ(nested.n_group, 1);
  EXPECT_EQ(nested.rope_scaling->beta_fast, 1);
  EXPECT_EQ(nested.rope_scaling->beta_slow, 1);
  EXPECT_THAT(nested.eos_token_ids, ElementsAre(163586));
  EXPECT_NEAR(nested.SoftmaxScale() * std::sqrt(192.0), 2.0047, 1e-4);
  ModelSpec flat = SpecOf(testing::KimiTextConfig());
  EXPECT_EQ(flat.architecture, "DeepseekV3ForCausalLM");
  flat.architecture = nested.architecture;
  EXPECT_EQ(flat, nested);
  EXPECT_EQ(FamilyOf(nested).name, "Kimi K2.5");
}

TEST(FamiliesTest, ReadsKimiUnderTheNamesOfTransformers) {
  Json config = testing::KimiK25Config();
  const ModelSpec published = SpecOf(config);
  config["architectures"] = {"Kimi_K25ForConditionalGeneration"};
  config["text_config"]["model_type"] = "deepseek_v3";
  ModelSpec saved = SpecOf(config);
  EXPECT_EQ(FamilyOf(saved).name, "Kimi K2.5");
  saved.architecture = published.architecture;
  saved.model_type = published.model_type;
  EXPECT_EQ(saved, published);
}

TEST(FamiliesTest, ReadsGlm) {
  const ModelSpec flash = SpecOf(testing::Glm47FlashConfig());
  EXPECT_EQ(flash.scoring_func, ScoringFunc::kSigmoid);  // Absent.
  EXPECT_EQ(flash.rope_theta, 1e6);
  EXPECT_EQ(flash.qk_head_dim(), 256);
  EXPECT_EQ(flash.SoftmaxScale(), 1.0 / 16);
  EXPECT_EQ(flash.index_topk, 0);
  EXPECT_THAT(flash.eos_token_ids, ElementsAre(154820, 154827, 154829));
  const ModelSpec glm5 = SpecOf(testing::Glm53Config());
  EXPECT_EQ(glm5.rope_theta, 8e6);
  EXPECT_EQ(glm5.index_topk, 2048);
  EXPECT_EQ(glm5.MostPositions(/*dense=*/false), 2048);
  EXPECT_EQ(glm5.MostPositions(/*dense=*/true), 1048576);
  EXPECT_THAT(std::string(glm5.MostPositionsCause(/*dense=*/false)),
              HasSubstr("--attention dense"));
  EXPECT_EQ(glm5.MostPositionsCause(/*dense=*/true), "max_position_embeddings");
}

TEST(FamiliesTest, ReadsMistral) {
  const ModelSpec spec = SpecOf(testing::MistralSmall4Config());
  EXPECT_EQ(spec.model_type, "mistral4");
  EXPECT_EQ(spec.scoring_func, ScoringFunc::kSoftmax);
  EXPECT_EQ(spec.topk_method, TopkMethod::kNoauxTc);
  EXPECT_FALSE(spec.has_router_bias());
  EXPECT_TRUE(spec.norm_topk_prob);
  ASSERT_TRUE(spec.query_scale.has_value());
  EXPECT_EQ(spec.query_scale->Of(8191), 1);
  EXPECT_NEAR(spec.SoftmaxScale(), 0.0883883476, 1e-10);
  const auto scaled = ParseModelSpec(testing::MistralSmall4Config().dump(),
                                     R"({"yarn": {"apply_scale": true}})");
  ASSERT_TRUE(scaled.ok()) << scaled.status();
  EXPECT_NEAR(scaled->SoftmaxScale(), 0.1949695, 1e-6);
}

// Values that a configuration class fills in where config.json has none.
TEST(FamiliesTest, AbsentMembersTakeTheDefaultsOfTheTextModelsType) {
  const std::vector<std::string> absent = {
      "n_group",      "topk_group",          "scoring_func",
      "topk_method",  "norm_topk_prob",      "routed_scaling_factor",
      "rms_norm_eps", "num_experts_per_tok", "first_k_dense_replace",
      "q_lora_rank",  "kv_lora_rank",        "qk_nope_head_dim",
      "v_head_dim",   "n_shared_experts",    "qk_rope_head_dim",
      "index_topk",   "tie_word_embeddings", "num_nextn_predict_layers"};
  for (Json config :
       {testing::KimiTextConfig(), testing::Glm47FlashConfig(),
        testing::Glm53Config(), testing::DeepSeekV32Config(),
        testing::KimiK25Config(), testing::MistralSmall4Config()}) {
    const ModelSpec full = SpecOf(config);
    Json& members =
        config.contains("text_config") ? config["text_config"] : config;
    for (const std::string& name : absent) members.erase(name);
    const ModelSpec silent = SpecOf(config);
    EXPECT_EQ(silent, full) << config;
  }
}

TEST(FamiliesTest, SaysWhatNobodyReads) {
  Json config = testing::KimiK25Config();
  EXPECT_THAT(*FindUnreadConfigMembers(config.dump()), IsEmpty());
  config["text_config"]["attention_temperature"] = 1;
  EXPECT_THAT(*FindUnreadConfigMembers(config.dump()),
              ElementsAre("text_config.attention_temperature"));
  for (const Json& published :
       {testing::Glm47FlashConfig(), testing::Glm53Config(),
        testing::DeepSeekV32Config(), testing::MistralSmall4Config(),
        testing::MoonlightConfig()}) {
    EXPECT_THAT(*FindUnreadConfigMembers(published.dump()), IsEmpty());
  }
}

}  // namespace
}  // namespace ringfleet::cluster
