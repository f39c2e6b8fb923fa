// SPDX-License-Identifier: Apache-2.0
// config.json of published models, cut down to what is read, and without
// quantization_config where its form does not matter.
#ifndef RINGFLEET_TESTS_TESTING_PUBLISHED_CONFIGS_H_
#define RINGFLEET_TESTS_TESTING_PUBLISHED_CONFIGS_H_

#include <string>

#include "nlohmann/json.hpp"

namespace ringfleet::testing {

// The text model of Kimi K2.5 and its successors; K2-0905 is equal, flat.
inline nlohmann::json KimiTextConfig() {
  return nlohmann::json::parse(R"({
    "architectures": ["DeepseekV3ForCausalLM"], "model_type": "kimi_k2",
    "first_k_dense_replace": 1, "hidden_size": 7168,
    "intermediate_size": 18432, "kv_lora_rank": 512,
    "max_position_embeddings": 262144, "moe_intermediate_size": 2048,
    "n_group": 1, "n_routed_experts": 384, "n_shared_experts": 1,
    "norm_topk_prob": true, "num_attention_heads": 64,
    "num_experts_per_tok": 8, "num_hidden_layers": 61,
    "num_nextn_predict_layers": 0, "q_lora_rank": 1536,
    "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "rms_norm_eps": 1e-06,
    "rope_scaling": {"beta_fast": 1.0, "beta_slow": 1.0, "factor": 64.0,
      "mscale": 1.0, "mscale_all_dim": 1.0,
      "original_max_position_embeddings": 4096, "type": "yarn"},
    "rope_theta": 50000.0, "routed_scaling_factor": 2.827,
    "scoring_func": "sigmoid", "topk_group": 1, "topk_method": "noaux_tc",
    "v_head_dim": 128, "vocab_size": 163840, "bos_token_id": 163584,
    "eos_token_id": 163586, "tie_word_embeddings": false})");
}

inline nlohmann::json KimiK25Config() {
  return {{"architectures", {"KimiK25ForConditionalGeneration"}},
          {"model_type", "kimi_k25"},
          {"text_config", KimiTextConfig()},
          {"vision_config", {{"model_type", "kimi_k25"}}},
          {"tie_word_embeddings", false}};
}

inline nlohmann::json Glm47FlashConfig() {
  return nlohmann::json::parse(R"({
    "architectures": ["Glm4MoeLiteForCausalLM"], "model_type": "glm4_moe_lite",
    "attention_bias": false, "eos_token_id": [154820, 154827, 154829],
    "first_k_dense_replace": 1, "hidden_size": 2048,
    "intermediate_size": 10240, "kv_lora_rank": 512,
    "max_position_embeddings": 202752, "moe_intermediate_size": 1536,
    "n_group": 1, "n_routed_experts": 64, "n_shared_experts": 1,
    "norm_topk_prob": true, "num_attention_heads": 20,
    "num_experts_per_tok": 4, "num_hidden_layers": 47,
    "num_nextn_predict_layers": 1, "partial_rotary_factor": 1.0,
    "q_lora_rank": 768, "qk_nope_head_dim": 192, "qk_rope_head_dim": 64,
    "rms_norm_eps": 1e-05, "rope_parameters": {"rope_theta": 1000000,
      "rope_type": "default"}, "routed_scaling_factor": 1.8, "topk_group": 1,
    "topk_method": "noaux_tc", "v_head_dim": 256, "vocab_size": 154880})");
}

// GLM-5.3; GLM-5.2 is equal.
inline nlohmann::json Glm53Config() {
  return nlohmann::json::parse(R"({
    "architectures": ["GlmMoeDsaForCausalLM"], "model_type": "glm_moe_dsa",
    "attention_bias": false, "eos_token_id": [154820, 154827, 154829],
    "first_k_dense_replace": 3, "head_dim": 64, "hidden_size": 6144,
    "index_head_dim": 128, "index_n_heads": 32, "index_topk": 2048,
    "indexer_rope_interleave": true, "intermediate_size": 12288,
    "kv_lora_rank": 512, "max_position_embeddings": 1048576,
    "moe_intermediate_size": 2048, "n_group": 1, "n_routed_experts": 256,
    "n_shared_experts": 1, "norm_topk_prob": true, "num_attention_heads": 64,
    "num_experts_per_tok": 8, "num_hidden_layers": 78,
    "num_nextn_predict_layers": 1, "q_lora_rank": 2048,
    "qk_nope_head_dim": 192, "qk_rope_head_dim": 64, "rms_norm_eps": 1e-05,
    "rope_parameters": {"rope_theta": 8000000, "rope_type": "default"},
    "routed_scaling_factor": 2.5, "scoring_func": "sigmoid", "topk_group": 1,
    "topk_method": "noaux_tc", "v_head_dim": 256, "vocab_size": 154880,
    "quantization_config": {"activation_scheme": "dynamic", "fmt": "e4m3",
      "quant_method": "fp8", "weight_block_size": [128, 128]}})");
}

inline nlohmann::json MistralSmall4Config() {
  return nlohmann::json::parse(R"({
    "architectures": ["Mistral3ForConditionalGeneration"],
    "model_type": "mistral3", "image_token_index": 10,
    "spatial_merge_size": 2, "tie_word_embeddings": false,
    "text_config": {"model_type": "mistral4", "first_k_dense_replace": 0,
      "hidden_size": 4096, "intermediate_size": 12288, "kv_lora_rank": 256,
      "max_position_embeddings": 1048576, "moe_intermediate_size": 2048,
      "n_group": 1, "n_routed_experts": 128, "n_shared_experts": 1,
      "norm_topk_prob": true, "num_attention_heads": 32,
      "num_experts_per_tok": 4, "num_hidden_layers": 36, "q_lora_rank": 1024,
      "qk_nope_head_dim": 64, "qk_rope_head_dim": 64, "rms_norm_eps": 1e-06,
      "rope_interleave": true,
      "rope_parameters": {"type": "yarn", "rope_type": "yarn",
        "rope_theta": 10000.0, "factor": 128.0,
        "original_max_position_embeddings": 8192,
        "max_position_embeddings": 1048576, "beta_fast": 32.0,
        "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0,
        "llama_4_scaling_beta": 0.1},
      "routed_scaling_factor": 1.0, "topk_group": 1, "v_head_dim": 128,
      "vocab_size": 131072},
    "vision_config": {"model_type": "pixtral"}})");
}

inline nlohmann::json MoonlightConfig() {
  return nlohmann::json::parse(R"({
    "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3",
    "first_k_dense_replace": 1, "hidden_size": 2048,
    "intermediate_size": 11264, "kv_lora_rank": 512,
    "max_position_embeddings": 8192, "moe_intermediate_size": 1408,
    "n_group": 1, "n_routed_experts": 64, "n_shared_experts": 2,
    "norm_topk_prob": true, "num_attention_heads": 16,
    "num_experts_per_tok": 6, "num_hidden_layers": 27,
    "num_nextn_predict_layers": 0, "q_lora_rank": null,
    "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "rms_norm_eps": 1e-05,
    "rope_scaling": null, "rope_theta": 50000.0,
    "routed_scaling_factor": 2.446, "scoring_func": "sigmoid",
    "topk_group": 1, "topk_method": "noaux_tc", "v_head_dim": 128,
    "vocab_size": 163840, "bos_token_id": 163584, "eos_token_id": 163585})");
}

// DeepSeek-V3.2 in the members of V3 beside those of its indexer.
inline nlohmann::json DeepSeekV32Config() {
  return nlohmann::json::parse(R"({
    "architectures": ["DeepseekV32ForCausalLM"], "model_type": "deepseek_v32",
    "first_k_dense_replace": 3, "hidden_size": 7168, "index_head_dim": 128,
    "index_n_heads": 64, "index_topk": 2048, "intermediate_size": 18432,
    "kv_lora_rank": 512, "max_position_embeddings": 163840,
    "moe_intermediate_size": 2048, "n_group": 8, "n_routed_experts": 256,
    "n_shared_experts": 1, "norm_topk_prob": true, "num_attention_heads": 128,
    "num_experts_per_tok": 8, "num_hidden_layers": 61,
    "num_nextn_predict_layers": 1, "q_lora_rank": 1536,
    "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "rms_norm_eps": 1e-06,
    "rope_scaling": {"beta_fast": 32, "beta_slow": 1, "factor": 40,
      "mscale": 1.0, "mscale_all_dim": 1.0,
      "original_max_position_embeddings": 4096, "type": "yarn"},
    "rope_theta": 10000, "routed_scaling_factor": 2.5,
    "scoring_func": "sigmoid", "topk_group": 4, "topk_method": "noaux_tc",
    "v_head_dim": 128, "vocab_size": 129280, "bos_token_id": 0,
    "eos_token_id": 1, "quantization_config": {"fmt": "e4m3",
      "quant_method": "fp8", "scale_fmt": "ue8m0",
      "weight_block_size": [128, 128]}})");
}

}  // namespace ringfleet::testing

#endif  // RINGFLEET_TESTS_TESTING_PUBLISHED_CONFIGS_H_
