// SPDX-License-Identifier: Apache-2.0
#include "cluster/synthetic/synthetic_tensors.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "cluster/model/model_tensors.h"
#include "kernels/check.h"

namespace ringfleet::cluster {
namespace {

using kernels::Dtype;
using Values = SyntheticTensor::Values;

// Deviation of a sublayer's addition to the residual stream, for inputs near 1.
constexpr double kResidualDeviation = 0.5;
// Root mean square of silu(g) u for normal g and u of deviation 1.
constexpr double kSwigluDeviation = 0.6;
constexpr double kLogitDeviation = 2;

constexpr char kEmbedding[] = "model.embed_tokens.weight";
constexpr char kHead[] = "lm_head.weight";

// Deviation of a product's outputs, for inputs near 1.
double OutputDeviation(TensorRole role) {
  switch (role) {
    case TensorRole::kO:
      return kResidualDeviation;
    case TensorRole::kDenseDown:
    case TensorRole::kExpertDown:
    case TensorRole::kSharedDown:
      return kResidualDeviation / kSwigluDeviation;
    case TensorRole::kHead:
    case TensorRole::kMtpHeadCopy:
      return kLogitDeviation;
    default:
      return 1;
  }
}

double WeightDeviation(const ModelTensor& tensor) {
  if (tensor.role == TensorRole::kEmbedding ||
      tensor.role == TensorRole::kMtpEmbeddingCopy) {
    return 1;
  }
  return OutputDeviation(tensor.role) /
         std::sqrt(static_cast<double>(tensor.columns));
}

void AddSynthetic(const ModelSpec& spec, const ModelTensor& tensor,
                  const std::string& name,
                  std::vector<SyntheticTensor>* tensors) {
  SyntheticTensor made = {.name = name, .shape = tensor.shape()};
  if (tensor.role == TensorRole::kRouterBias) {
    made.dtype = Dtype::kF32;
    made.values = Values::kBias;
  } else if (tensor.is_vector()) {
    made.values = Values::kNorm;
  } else {
    made.deviation = WeightDeviation(tensor);
  }
  if (tensor.role == TensorRole::kMtpEmbeddingCopy) made.copy_of = kEmbedding;
  if (tensor.role == TensorRole::kMtpHeadCopy) made.copy_of = kHead;
  if (!tensor.may_be_quantized()) {
    tensors->push_back(std::move(made));
    return;
  }
  made.dtype = Dtype::kF8E4M3;
  const double deviation = made.deviation;
  tensors->push_back(std::move(made));
  tensors->push_back(
      {.name = absl::StrCat(name, "_scale_inv"),
       .dtype = Dtype::kF32,
       .shape = {CeilDivide(tensor.rows, spec.weight_block_rows),
                 CeilDivide(tensor.columns, spec.weight_block_columns)},
       .values = Values::kScale,
       .deviation = deviation});
}

}  // namespace

std::vector<SyntheticTensor> SyntheticTensors(const ModelSpec& spec) {
  RF_CHECK(spec.q_lora_rank > 0 && spec.topk_method == TopkMethod::kNoauxTc &&
           spec.weight_block_rows > 0 && spec.weight_block_columns > 0 &&
           !spec.tie_word_embeddings);
  std::vector<SyntheticTensor> tensors;
  for (const TensorGroup& group : AllTensors(spec)) {
    for (const auto& [tensor, expert] : InOrder(group, spec.n_routed_experts)) {
      AddSynthetic(spec, *tensor, TensorName(group.prefix, *tensor, expert),
                   &tensors);
    }
  }
  return tensors;
}

}  // namespace ringfleet::cluster
