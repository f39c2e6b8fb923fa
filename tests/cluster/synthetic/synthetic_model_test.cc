// SPDX-License-Identifier: Apache-2.0
#include "cluster/synthetic/synthetic_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cluster/checkpoint/open_model.h"
#include "cluster/config/config.h"
#include "cluster/model/model_spec.h"

namespace ringfleet::cluster {
namespace {

using ::testing::HasSubstr;

std::string ModelProblem(const std::string& name) {
  const auto model = ParseSyntheticModel(name);
  EXPECT_EQ(model.status().code(), absl::StatusCode::kInvalidArgument) << name;
  EXPECT_THAT(std::string(model.status().message()), HasSubstr(name));
  return std::string(model.status().message());
}

TEST(SyntheticModelTest, NamesReadBackAsTheSameModel) {
  for (const std::string name :
       {"synth:tiny", "synth:r1-slice,seed=18446744073709551615",
        "synth:tiny,zipf=1.1", "synth:tiny,seed=7,zipf=0.30000000000000004"}) {
    const auto model = ParseSyntheticModel(name);
    ASSERT_TRUE(model.ok()) << model.status();
    EXPECT_EQ(FormatSyntheticModel(*model), name);
  }
  const auto model = ParseSyntheticModel("synth:tiny,zipf=2,seed=0");
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ(FormatSyntheticModel(*model), "synth:tiny,zipf=2");
}

TEST(SyntheticModelTest, RejectsNamesOfNoModel) {
  EXPECT_THAT(ModelProblem("synth:"), HasSubstr("want tiny or r1-slice"));
  EXPECT_THAT(ModelProblem("synth:r2"), HasSubstr("want tiny or r1-slice"));
  EXPECT_THAT(ModelProblem("synth:tiny,"), HasSubstr("want seed=S or zipf=A"));
  EXPECT_THAT(ModelProblem("synth:tiny,depth=3"), HasSubstr("\"depth=3\""));
  EXPECT_THAT(ModelProblem("synth:tiny,seed=-1"), HasSubstr("seed -1"));
  EXPECT_THAT(ModelProblem("synth:tiny,seed=18446744073709551616"),
              HasSubstr("2^64"));
  EXPECT_THAT(ModelProblem("synth:tiny,seed=1,seed=1"), HasSubstr("twice"));
  EXPECT_THAT(ModelProblem("synth:tiny,zipf=-0.1"), HasSubstr("0 to 3"));
  EXPECT_THAT(ModelProblem("synth:tiny,zipf=3.01"), HasSubstr("0 to 3"));
  EXPECT_THAT(ModelProblem("synth:tiny,zipf=nan"), HasSubstr("zipf nan"));
  EXPECT_THAT(ModelProblem("tiny"), HasSubstr("want synth:PRESET"));
  EXPECT_EQ(LoadModelSpec("synth:r2").status().code(),
            absl::StatusCode::kInvalidArgument);
}

// DeepSeek-R1's config.json has these; fewer are layers, experts and tokens.
TEST(SyntheticModelTest, R1SliceHasTheLayersOfR1) {
  const auto spec = LoadModelSpec("synth:r1-slice,zipf=1");
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->architecture, "DeepseekV3ForCausalLM");
  EXPECT_EQ(spec->hidden_size, 7168);
  EXPECT_EQ(spec->num_attention_heads, 128);
  EXPECT_EQ(spec->q_lora_rank, 1536);
  EXPECT_EQ(spec->kv_lora_rank, 512);
  EXPECT_EQ(spec->qk_nope_head_dim, 128);
  EXPECT_EQ(spec->qk_rope_head_dim, 64);
  EXPECT_EQ(spec->v_head_dim, 128);
  EXPECT_EQ(spec->intermediate_size, 18432);
  EXPECT_EQ(spec->moe_intermediate_size, 2048);
  EXPECT_EQ(spec->n_shared_experts, 1);
  EXPECT_EQ(spec->num_experts_per_tok, 8);
  EXPECT_EQ(spec->n_group, 8);
  EXPECT_EQ(spec->topk_group, 4);
  EXPECT_EQ(spec->topk_method, TopkMethod::kNoauxTc);
  EXPECT_EQ(spec->scoring_func, ScoringFunc::kSigmoid);
  EXPECT_TRUE(spec->norm_topk_prob);
  EXPECT_EQ(spec->routed_scaling_factor, 2.5);
  EXPECT_EQ(spec->rms_norm_eps, 1e-6);
  EXPECT_EQ(spec->rope_theta, 10000);
  ASSERT_TRUE(spec->rope_scaling.has_value());
  EXPECT_EQ(spec->rope_scaling->factor, 40);
  EXPECT_EQ(spec->rope_scaling->original_max_position_embeddings, 4096);
  EXPECT_EQ(spec->rope_scaling->beta_fast, 32);
  EXPECT_EQ(spec->rope_scaling->beta_slow, 1);
  EXPECT_EQ(spec->rope_scaling->mscale, 1);
  EXPECT_EQ(spec->rope_scaling->mscale_all_dim, 1);
  EXPECT_EQ(spec->max_position_embeddings, 163840);
  EXPECT_EQ(spec->weight_block_rows, 128);
  EXPECT_EQ(spec->weight_block_columns, 128);
  EXPECT_FALSE(spec->tie_word_embeddings);

  EXPECT_EQ(spec->num_hidden_layers, 3);
  EXPECT_EQ(spec->first_k_dense_replace, 1);
  EXPECT_EQ(spec->n_routed_experts, 32);
  EXPECT_EQ(spec->vocab_size, 32768);
  EXPECT_EQ(spec->num_nextn_predict_layers, 0);
}

TEST(SyntheticModelTest, HasGenerationDefaultsAndNoOtherFiles) {
  const auto defaults = LoadGenerationDefaults("synth:tiny");
  ASSERT_TRUE(defaults.ok()) << defaults.status();
  EXPECT_EQ(defaults->temperature, 0.6);
  EXPECT_THAT(defaults->eos_token_ids, ::testing::ElementsAre(1));
  for (const std::string& name : SyntheticFileNames()) {
    EXPECT_TRUE(ReadModelFile("synth:tiny", name, 1 << 20).ok()) << name;
  }
  EXPECT_EQ(
      ReadModelFile("synth:tiny", "chat_template.jinja", 9).status().code(),
      absl::StatusCode::kNotFound);
}

TEST(ModelFilesTest, KnowsTheSameModelByOtherNames) {
  EXPECT_TRUE(IsSameModel("synth:tiny", "synth:tiny,seed=0"));
  EXPECT_FALSE(IsSameModel("synth:tiny", "synth:tiny,seed=1"));
  EXPECT_FALSE(IsSameModel("synth:tiny", "/synth:tiny"));
  EXPECT_FALSE(IsSameModel("synth:r2", "synth:r2"));
  EXPECT_TRUE(IsSameModel("/usr/../usr/lib", "/usr/lib/"));
  EXPECT_EQ(AbsoluteModel("synth:tiny"), "synth:tiny");
  EXPECT_EQ(AbsoluteModel("/a/b"), "/a/b");
}

TEST(ClusterConfigTest, AModelCanBeSynthetic) {
  const auto config = ParseClusterConfig(
      "model: synth:tiny,seed=3\nworkers: [{}]\n", "f.yaml", "/etc");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->settings.model(), "synth:tiny,seed=3");
  const auto bad =
      ParseClusterConfig("workers: [{}]\nmodel: synth:tin\n", "f.yaml", "/etc");
  EXPECT_EQ(
      bad.status().message(),
      "f.yaml:2: model: synth:tin: no such preset, want tiny or r1-slice "
      "or glm-flash-slice or kimi-slice or glm5-slice");
}

}  // namespace
}  // namespace ringfleet::cluster
