// SPDX-License-Identifier: Apache-2.0
// The dimensions and choices of a model of one of the families of families.h,
// read from config.json and validated. Members have their names in config.json
// (DeepSeek-V2, arXiv:2405.04434; DeepSeek-V3, arXiv:2412.19437).
#ifndef RINGFLEET_CLUSTER_MODEL_MODEL_SPEC_H_
#define RINGFLEET_CLUSTER_MODEL_MODEL_SPEC_H_

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "cluster/model/quantization_config.h"

namespace ringfleet::cluster {

// Largest accepted config.json.
inline constexpr uint64_t kMaxConfigBytes = 1 << 20;

// Epsilon of the norms over the latents of queries and of keys and values,
// whatever rms_norm_eps says: models are trained and evaluated with it.
inline constexpr double kLatentNormEps = 1e-6;

enum class ScoringFunc { kSoftmax, kSigmoid };
enum class TopkMethod { kGreedy, kGroupLimitedGreedy, kNoauxTc };

// YaRN (arXiv:2309.00071), as DeepSeek parameterises it.
struct YarnSpec {
  double factor = 1;
  double original_max_position_embeddings = 4096;
  double beta_fast = 32;
  double beta_slow = 1;
  double mscale = 1;
  double mscale_all_dim = 0;
  // Multiplies cosine and sine. Unset: the quotient of the mscales' factors.
  std::optional<double> attention_factor;
  // True: the borders between fast and slow pairs are whole pairs.
  bool truncate = true;
  // True: the softmax scale has the square of mscale_all_dim's factor.
  bool scales_softmax = true;

  // Returns 0.1 * scale * ln(factor) + 1, `scale` being one of the mscales.
  double AttentionFactor(double scale) const;
  friend bool operator==(const YarnSpec&, const YarnSpec&) = default;
};

// The scale of queries by position, as in Llama 4 and Mistral Small 4.
struct QueryScaleSpec {
  double beta = 0;
  double original_max_position_embeddings = 1;

  // Returns 1 + beta ln(1 + floor(position /
  // original_max_position_embeddings)).
  double Of(int64_t position) const;
  friend bool operator==(const QueryScaleSpec&,
                         const QueryScaleSpec&) = default;
};

struct ModelSpec {
  std::string architecture;  // "DeepseekV3ForCausalLM"
  std::string model_type;    // "deepseek_v3": the type of the text model.
  int vocab_size = 0;
  int hidden_size = 0;
  int num_hidden_layers = 0;
  int num_attention_heads = 0;
  int q_lora_rank = 0;  // 0: one dense q_proj.
  int kv_lora_rank = 0;
  int qk_nope_head_dim = 0;
  int qk_rope_head_dim = 0;
  int v_head_dim = 0;
  int intermediate_size = 0;
  int moe_intermediate_size = 0;
  int n_routed_experts = 0;  // 0: every layer is dense.
  int n_shared_experts = 0;
  int num_experts_per_tok = 0;
  int first_k_dense_replace = 0;
  int moe_layer_freq = 1;
  ScoringFunc scoring_func = ScoringFunc::kSoftmax;
  TopkMethod topk_method = TopkMethod::kGreedy;
  int n_group = 1;
  int topk_group = 1;
  bool norm_topk_prob = false;
  double routed_scaling_factor = 1;
  double rms_norm_eps = 1e-6;
  double rope_theta = 10000;
  std::optional<YarnSpec> rope_scaling;
  std::optional<QueryScaleSpec> query_scale;
  int max_position_embeddings = 0;
  // Positions that sparse attention chooses for a token. 0: the model was
  // trained with dense attention.
  int index_topk = 0;
  bool tie_word_embeddings = false;
  int num_nextn_predict_layers = 0;
  Quantization quantization;
  // Rows and columns of the blocks of fp8 and int8 weights. Each block has one
  // scale. 0: no blocks.
  int weight_block_rows = 0;
  int weight_block_columns = 0;
  std::optional<uint32_t> bos_token_id;
  std::vector<uint32_t> eos_token_ids;

  int qk_head_dim() const { return qk_nope_head_dim + qk_rope_head_dim; }
  // Returns the number of values that the cache has per position and layer.
  int cache_row() const { return kv_lora_rank + qk_rope_head_dim; }
  bool IsMoeLayer(int layer) const {
    return n_routed_experts > 0 && layer >= first_k_dense_replace &&
           layer % moe_layer_freq == 0;
  }
  // Returns the most positions of a sequence: index_topk where attention must
  // not differ from a trained sparse one, else max_position_embeddings.
  int MostPositions(bool dense) const {
    return index_topk > 0 && !dense
               ? std::min(index_topk, max_position_embeddings)
               : max_position_embeddings;
  }
  // Returns what MostPositions depends on, for error messages.
  absl::string_view MostPositionsCause(bool dense) const;
  // True: the router adds e_score_correction_bias to choose experts.
  bool has_router_bias() const {
    return topk_method == TopkMethod::kNoauxTc &&
           scoring_func == ScoringFunc::kSigmoid;
  }
  // Returns qk_head_dim()^-0.5, times the square of YaRN's factor of
  // mscale_all_dim if YarnSpec::scales_softmax.
  double SoftmaxScale() const;
  friend bool operator==(const ModelSpec&, const ModelSpec&) = default;
};

// Reads the text of config.json. `params` is the text of params.json, which
// Mistral publishes beside it; "": there is none. Errors:
//   INVALID_ARGUMENT: malformed JSON; a missing or impossible value (names the
//     field, the value and the expected value); an architecture or a text model
//     without a family (families.h); a member that changes the mathematics in a
//     way that is not implemented (text_config.h); an error of ParseRope
//     or ParseQuantization.
absl::StatusOr<ModelSpec> ParseModelSpec(absl::string_view json,
                                         absl::string_view params = "");

// Returns the members of a config.json that nothing reads, as in "NAME",
// "rope_parameters.NAME" and "text_config.NAME", sorted. Leaves out members
// that are known to change no result. Errors: those of ParseModelSpec.
absl::StatusOr<std::vector<std::string>> FindUnreadConfigMembers(
    absl::string_view json);

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_MODEL_MODEL_SPEC_H_
