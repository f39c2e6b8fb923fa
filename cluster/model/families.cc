// SPDX-License-Identifier: Apache-2.0
#include "cluster/model/families.h"

#include "absl/strings/str_cat.h"
#include "kernels/check.h"

namespace ringfleet::cluster {
namespace {

constexpr absl::string_view kOneGroup =
    "one group of experts, so that groups choose nothing";
constexpr absl::string_view kValueHeads =
    "heads of qk_nope_head_dim and v_head_dim that differ";
constexpr absl::string_view kDenseIndexer =
    "trained with sparse attention (DSA): each token sees the index_topk "
    "positions that an indexer chooses. This program attends to all positions, "
    "which is equal up to index_topk of them";

// The members that DeepSeek-V3's configuration class fills in.
ModelSpec DeepSeekV3() {
  ModelSpec spec;
  spec.q_lora_rank = 1536;
  spec.kv_lora_rank = 512;
  spec.qk_nope_head_dim = 128;
  spec.qk_rope_head_dim = 64;
  spec.v_head_dim = 128;
  spec.n_shared_experts = 1;
  spec.num_experts_per_tok = 8;
  spec.first_k_dense_replace = 3;
  spec.scoring_func = ScoringFunc::kSigmoid;
  spec.topk_method = TopkMethod::kNoauxTc;
  spec.n_group = 8;
  spec.topk_group = 4;
  spec.norm_topk_prob = true;
  spec.routed_scaling_factor = 2.5;
  spec.rms_norm_eps = 1e-6;
  spec.max_position_embeddings = 4096;
  spec.num_nextn_predict_layers = 1;
  spec.bos_token_id = 0;
  spec.eos_token_ids = {1};
  return spec;
}

ModelSpec DeepSeekV2() {
  ModelSpec spec = DeepSeekV3();
  spec.n_shared_experts = 0;
  spec.num_experts_per_tok = 0;
  spec.first_k_dense_replace = 0;
  spec.scoring_func = ScoringFunc::kSoftmax;
  spec.topk_method = TopkMethod::kGreedy;
  spec.n_group = 1;
  spec.topk_group = 1;
  spec.norm_topk_prob = false;
  spec.routed_scaling_factor = 1;
  spec.max_position_embeddings = 2048;
  spec.num_nextn_predict_layers = 0;
  spec.bos_token_id = 100000;
  spec.eos_token_ids = {100001};
  return spec;
}

ModelSpec DeepSeekV32() {
  ModelSpec spec = DeepSeekV3();
  spec.index_topk = 2048;
  return spec;
}

ModelSpec KimiK2() {
  ModelSpec spec = DeepSeekV3();
  spec.first_k_dense_replace = 1;
  spec.n_group = 1;
  spec.topk_group = 1;
  spec.routed_scaling_factor = 2.827;
  spec.num_nextn_predict_layers = 0;
  spec.bos_token_id = 163584;
  spec.eos_token_ids = {163585};
  return spec;
}

ModelSpec Glm5() {
  ModelSpec spec = DeepSeekV3();
  spec.q_lora_rank = 2048;
  spec.qk_nope_head_dim = 192;
  spec.v_head_dim = 256;
  spec.n_group = 1;
  spec.topk_group = 1;
  spec.rms_norm_eps = 1e-5;
  spec.max_position_embeddings = 202752;
  spec.bos_token_id.reset();
  spec.eos_token_ids.clear();
  spec.index_topk = 2048;
  return spec;
}

ModelSpec Glm47Flash() {
  ModelSpec spec = Glm5();
  spec.q_lora_rank = 768;
  spec.num_experts_per_tok = 4;
  spec.first_k_dense_replace = 1;
  spec.routed_scaling_factor = 1.8;
  spec.index_topk = 0;
  return spec;
}

ModelSpec Mistral4() {
  ModelSpec spec = DeepSeekV3();
  spec.q_lora_rank = 1024;
  spec.kv_lora_rank = 256;
  spec.qk_nope_head_dim = 64;
  spec.num_experts_per_tok = 4;
  spec.first_k_dense_replace = 0;
  spec.scoring_func = ScoringFunc::kSoftmax;
  spec.n_group = 1;
  spec.topk_group = 1;
  spec.routed_scaling_factor = 1;
  spec.max_position_embeddings = 1048576;
  spec.num_nextn_predict_layers = 0;
  spec.bos_token_id.reset();
  spec.eos_token_ids.clear();
  return spec;
}

std::vector<Family> MakeFamilies() {
  const std::string one_group(kOneGroup);
  const std::string value_heads(kValueHeads);
  const std::string dense(kDenseIndexer);
  return {
      {.name = "DeepSeek-V3",
       .architecture = "DeepseekV3ForCausalLM",
       .model_type = "deepseek_v3",
       .defaults = DeepSeekV3()},
      {.name = "Kimi K2",
       .architecture = "DeepseekV3ForCausalLM",
       .model_type = "kimi_k2",
       .defaults = KimiK2(),
       .differences = {one_group}},
      {.name = "DeepSeek-V2",
       .architecture = "DeepseekV2ForCausalLM",
       .model_type = "deepseek_v2",
       .defaults = DeepSeekV2(),
       .differences = {"softmax router, the best experts of all or of the "
                       "best groups, weights either normalised or scaled"}},
      {.name = "DeepSeek-V3.2",
       .architecture = "DeepseekV32ForCausalLM",
       .model_type = "deepseek_v32",
       .defaults = DeepSeekV32(),
       .differences = {dense},
       .unverified = "the type of the published scales weight_scale_inv"},
      {.name = "Kimi K2.5",
       .architecture = "KimiK25ForConditionalGeneration",
       .model_type = "kimi_k2",
       .outer_type = "kimi_k25",
       .defaults = KimiK2(),
       .differences = {one_group, "the text model of a model of images"},
       .unverified = "beta_fast and beta_slow of the published configurations"},
      // The names under which transformers saves the model.
      {.name = "Kimi K2.5",
       .architecture = "Kimi_K25ForConditionalGeneration",
       .model_type = "deepseek_v3",
       .outer_type = "kimi_k25",
       .defaults = DeepSeekV3(),
       .differences = {"the text model of a model of images"}},
      {.name = "GLM-4.7-Flash",
       .architecture = "Glm4MoeLiteForCausalLM",
       .model_type = "glm4_moe_lite",
       .defaults = Glm47Flash(),
       .differences = {one_group, value_heads},
       .unverified = "whether the multi-token prediction layer has an "
                     "embedding of its own"},
      {.name = "GLM-5",
       .architecture = "GlmMoeDsaForCausalLM",
       .model_type = "glm_moe_dsa",
       .defaults = Glm5(),
       .differences = {one_group, value_heads, dense}},
      {.name = "Mistral Small 4",
       .architecture = "Mistral3ForConditionalGeneration",
       .model_type = "mistral4",
       .outer_type = "mistral3",
       .defaults = Mistral4(),
       .softmax = SoftmaxRule::kByParams,
       .scales_queries = true,
       .rotary_factor_of_head = true,
       .differences =
           {one_group, "the text model of a model of images",
            "softmax router without bias, weights normalised and "
            "scaled",
            "queries scaled by their position "
            "(llama_4_scaling_beta)",
            "YaRN's magnitude scales the softmax only if params.json "
            "says apply_scale"},
       .unverified = "whether YaRN's magnitude scales the softmax of the "
                     "published weights"},
  };
}

}  // namespace

absl::Span<const Family> Families() {
  static const auto& families = *new std::vector<Family>(MakeFamilies());
  return families;
}

const Family* FindFamily(absl::string_view architecture,
                         absl::string_view model_type) {
  const Family* first = nullptr;
  for (const Family& family : Families()) {
    if (family.architecture != architecture) continue;
    if (family.model_type == model_type || family.outer_type == model_type) {
      return &family;
    }
    if (first == nullptr) first = &family;
  }
  return FindFamilyOfType(model_type) == nullptr ? first : nullptr;
}

const Family* FindFamilyOfType(absl::string_view model_type) {
  if (model_type.empty()) return nullptr;
  for (const Family& family : Families()) {
    if (family.model_type == model_type || family.outer_type == model_type) {
      return &family;
    }
  }
  return nullptr;
}

const Family& FamilyOf(const ModelSpec& spec) {
  const Family* family = FindFamily(spec.architecture, spec.model_type);
  RF_CHECK(family != nullptr);
  return *family;
}

std::string FamilyArchitectures() {
  std::vector<absl::string_view> names;
  for (const Family& family : Families()) {
    bool listed = false;
    for (const absl::string_view name : names) {
      listed = listed || name == family.architecture;
    }
    if (!listed) names.push_back(family.architecture);
  }
  std::string text;
  for (size_t i = 0; i < names.size(); ++i) {
    absl::StrAppend(&text,
                    i == 0                 ? ""
                    : i + 1 < names.size() ? ", "
                                           : " and ",
                    names[i]);
  }
  return text;
}

absl::Span<const NamePrefixes> KnownNamePrefixes() {
  static constexpr NamePrefixes kPrefixes[] = {
      {"model.", ""},
      {"language_model.model.", "language_model."},
      {"model.language_model.", ""},
  };
  return kPrefixes;
}

}  // namespace ringfleet::cluster
