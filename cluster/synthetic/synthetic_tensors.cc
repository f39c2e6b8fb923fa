// SPDX-License-Identifier: Apache-2.0
#include "cluster/synthetic/synthetic_tensors.h"

#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/check.h"

namespace ringfleet::cluster {
namespace {

using kernels::Dtype;
using Values = SyntheticTensor::Values;

// Of what a sublayer adds to the residual stream, for inputs near 1.
constexpr double kResidualDeviation = 0.5;
// Root mean square of silu(g) u for normal g and u of deviation 1.
constexpr double kSwigluDeviation = 0.6;
constexpr double kLogitDeviation = 2;

constexpr char kEmbedding[] = "model.embed_tokens.weight";
constexpr char kHead[] = "lm_head.weight";

class Builder {
 public:
  explicit Builder(const ModelSpec& spec) : spec_(spec) {}

  std::vector<SyntheticTensor> Build() {
    const int hidden = spec_.hidden_size;
    Bf16(kEmbedding, {spec_.vocab_size, hidden}, 1);
    for (int i = 0; i < spec_.num_hidden_layers; ++i) {
      Layer(absl::StrCat("model.layers.", i, "."), spec_.IsMoeLayer(i));
    }
    Norm("model.norm.weight", hidden);
    Bf16(kHead, {spec_.vocab_size, hidden},
         kLogitDeviation / std::sqrt(static_cast<double>(hidden)));
    for (int i = 0; i < spec_.num_nextn_predict_layers; ++i) {
      Mtp(absl::StrCat("model.layers.", spec_.num_hidden_layers + i, "."));
    }
    return std::move(tensors_);
  }

 private:
  void Bf16(std::string name, std::vector<int64_t> shape, double deviation,
            std::string copy_of = "") {
    tensors_.push_back({.name = std::move(name),
                        .shape = std::move(shape),
                        .deviation = deviation,
                        .copy_of = std::move(copy_of)});
  }

  void Norm(std::string name, int size) {
    tensors_.push_back(
        {.name = std::move(name), .shape = {size}, .values = Values::kNorm});
  }

  // A product from `columns` inputs near 1 to `rows` outputs near `gain`.
  void Product(absl::string_view name, int64_t rows, int64_t columns,
               double gain = 1) {
    const std::string weight = absl::StrCat(name, ".weight");
    const double deviation = gain / std::sqrt(static_cast<double>(columns));
    const auto blocks = [](int64_t size, int block) {
      return (size + block - 1) / block;
    };
    tensors_.push_back({.name = weight,
                        .dtype = Dtype::kF8E4M3,
                        .shape = {rows, columns},
                        .deviation = deviation});
    tensors_.push_back({.name = absl::StrCat(weight, "_scale_inv"),
                        .dtype = Dtype::kF32,
                        .shape = {blocks(rows, spec_.weight_block_rows),
                                  blocks(columns, spec_.weight_block_columns)},
                        .values = Values::kScale,
                        .deviation = deviation});
  }

  void Attention(const std::string& prefix) {
    const int hidden = spec_.hidden_size;
    const int64_t heads = spec_.num_attention_heads;
    const auto name = [&prefix](absl::string_view part) {
      return absl::StrCat(prefix, part);
    };
    Product(name("q_a_proj"), spec_.q_lora_rank, hidden);
    Norm(name("q_a_layernorm.weight"), spec_.q_lora_rank);
    Product(name("q_b_proj"), heads * spec_.qk_head_dim(), spec_.q_lora_rank);
    Product(name("kv_a_proj_with_mqa"), spec_.cache_row(), hidden);
    Norm(name("kv_a_layernorm.weight"), spec_.kv_lora_rank);
    Product(name("kv_b_proj"),
            heads * (spec_.qk_nope_head_dim + spec_.v_head_dim),
            spec_.kv_lora_rank);
    Product(name("o_proj"), hidden, heads * spec_.v_head_dim,
            kResidualDeviation);
  }

  void Mlp(const std::string& prefix, int width) {
    const int hidden = spec_.hidden_size;
    Product(absl::StrCat(prefix, "gate_proj"), width, hidden);
    Product(absl::StrCat(prefix, "up_proj"), width, hidden);
    Product(absl::StrCat(prefix, "down_proj"), hidden, width,
            kResidualDeviation / kSwigluDeviation);
  }

  void Layer(const std::string& prefix, bool is_moe) {
    const int hidden = spec_.hidden_size;
    Norm(absl::StrCat(prefix, "input_layernorm.weight"), hidden);
    Norm(absl::StrCat(prefix, "post_attention_layernorm.weight"), hidden);
    Attention(absl::StrCat(prefix, "self_attn."));
    const std::string mlp = absl::StrCat(prefix, "mlp.");
    if (!is_moe) return Mlp(mlp, spec_.intermediate_size);
    Bf16(absl::StrCat(mlp, "gate.weight"), {spec_.n_routed_experts, hidden},
         1 / std::sqrt(static_cast<double>(hidden)));
    tensors_.push_back(
        {.name = absl::StrCat(mlp, "gate.e_score_correction_bias"),
         .dtype = Dtype::kF32,
         .shape = {spec_.n_routed_experts},
         .values = Values::kBias});
    for (int e = 0; e < spec_.n_routed_experts; ++e) {
      Mlp(absl::StrCat(mlp, "experts.", e, "."), spec_.moe_intermediate_size);
    }
    if (spec_.n_shared_experts == 0) return;
    Mlp(absl::StrCat(mlp, "shared_experts."),
        spec_.n_shared_experts * spec_.moe_intermediate_size);
  }

  void Mtp(const std::string& prefix) {
    const int hidden = spec_.hidden_size;
    Bf16(absl::StrCat(prefix, "embed_tokens.weight"),
         {spec_.vocab_size, hidden}, 1, kEmbedding);
    Norm(absl::StrCat(prefix, "enorm.weight"), hidden);
    Norm(absl::StrCat(prefix, "hnorm.weight"), hidden);
    Bf16(absl::StrCat(prefix, "eh_proj.weight"), {hidden, 2 * hidden},
         1 / std::sqrt(2.0 * hidden));
    Layer(prefix, /*is_moe=*/true);
    Norm(absl::StrCat(prefix, "shared_head.norm.weight"), hidden);
    Bf16(absl::StrCat(prefix, "shared_head.head.weight"),
         {spec_.vocab_size, hidden},
         kLogitDeviation / std::sqrt(static_cast<double>(hidden)), kHead);
  }

  const ModelSpec& spec_;
  std::vector<SyntheticTensor> tensors_;
};

}  // namespace

std::vector<SyntheticTensor> SyntheticTensors(const ModelSpec& spec) {
  RF_CHECK(spec.q_lora_rank > 0 && spec.topk_method == TopkMethod::kNoauxTc &&
           spec.weight_block_rows > 0 && spec.weight_block_columns > 0 &&
           !spec.tie_word_embeddings);
  return Builder(spec).Build();
}

}  // namespace ringfleet::cluster
