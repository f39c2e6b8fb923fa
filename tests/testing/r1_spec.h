// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_TESTS_TESTING_R1_SPEC_H_
#define RINGFLEET_TESTS_TESTING_R1_SPEC_H_

#include <string>

#include "cluster/model/model_spec.h"

namespace ringfleet::testing {

// Returns a config.json with the dimensions of DeepSeek-R1 (arXiv:2412.19437,
// section 4.2, and the published file).
inline std::string R1Config() {
  return R"({"architectures":["DeepseekV3ForCausalLM"],"vocab_size":129280,
    "hidden_size":7168,"num_hidden_layers":61,"num_attention_heads":128,
    "q_lora_rank":1536,"kv_lora_rank":512,"qk_nope_head_dim":128,
    "qk_rope_head_dim":64,"v_head_dim":128,"intermediate_size":18432,
    "moe_intermediate_size":2048,"n_routed_experts":256,"n_shared_experts":1,
    "num_experts_per_tok":8,"first_k_dense_replace":3,"n_group":8,
    "topk_group":4,"num_nextn_predict_layers":1,
    "max_position_embeddings":163840,"rope_theta":10000,"quantization_config":{
    "quant_method":"fp8","fmt":"e4m3","weight_block_size":[128,128]}})";
}

inline cluster::ModelSpec R1Spec() {
  return cluster::ParseModelSpec(R1Config()).value();
}

}  // namespace ringfleet::testing

#endif  // RINGFLEET_TESTS_TESTING_R1_SPEC_H_
