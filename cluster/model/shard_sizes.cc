// SPDX-License-Identifier: Apache-2.0
#include "cluster/model/shard_sizes.h"

#include "absl/strings/match.h"
#include "kernels/attention/latent_cache.h"

namespace ringfleet::cluster {
namespace {

using kernels::WeightForm;
using kernels::WeightMatrix;

WeightForm FormOf(const ModelTensor& tensor, const WeightForms& forms) {
  if (tensor.name == "model.embed_tokens.weight") return WeightForm::kBf16Rows;
  if (!tensor.is_product) return WeightForm::kF32Rows;
  return tensor.each_expert ? forms.experts : forms.products;
}

void AddLocal(const std::vector<ModelTensor>& tensors, const ModelSpec& spec,
              const ShardPlan& plan, const WeightForms& forms, uint64_t times,
              ShardSizes* sizes) {
  for (const LocalMatrix& matrix : LocalMatrices(tensors, spec, plan, forms)) {
    const uint64_t count =
        times * (matrix.tensor->each_expert ? plan.experts.size() : 1);
    sizes->bytes[static_cast<size_t>(matrix.tensor->weight_class)] +=
        count * (matrix.bytes + matrix.transposed_bytes);
  }
}

kernels::LatentRowFormat RowFormat(const ModelSpec& spec,
                                   kernels::Dtype dtype) {
  return {.dtype = dtype,
          .kv_lora_rank = static_cast<size_t>(spec.kv_lora_rank),
          .rope_dim = static_cast<size_t>(spec.qk_rope_head_dim)};
}

}  // namespace

WeightForms FormsOf(v1::Dtype dtype) {
  switch (dtype) {
    case v1::DTYPE_F32:
      return {WeightForm::kF32, WeightForm::kF32};
    case v1::DTYPE_BF16:
      return {WeightForm::kBf16, WeightForm::kBf16};
    case v1::DTYPE_INT4:
      return {WeightForm::kInt4, WeightForm::kInt4};
    case v1::DTYPE_INT4_EXPERTS:
      return {WeightForm::kInt8, WeightForm::kInt4};
    default:
      return {WeightForm::kInt8, WeightForm::kInt8};
  }
}

kernels::Dtype CacheDtypeOf(v1::CacheDtype dtype, const WeightForms& forms) {
  switch (dtype) {
    case v1::CACHE_DTYPE_F32:
      return kernels::Dtype::kF32;
    case v1::CACHE_DTYPE_BF16:
      return kernels::Dtype::kBf16;
    case v1::CACHE_DTYPE_INT8:
      return kernels::Dtype::kInt8;
    default:
      return forms.products == WeightForm::kF32 ? kernels::Dtype::kF32
                                                : kernels::Dtype::kBf16;
  }
}

std::vector<LocalMatrix> LocalMatrices(const std::vector<ModelTensor>& tensors,
                                       const ModelSpec& spec,
                                       const ShardPlan& plan,
                                       const WeightForms& forms) {
  std::vector<LocalMatrix> matrices;
  for (const ModelTensor& tensor : tensors) {
    if (tensor.is_copy) continue;
    const LocalShape shape = LocalShapeOf(tensor, spec, plan);
    LocalMatrix matrix = {
        .tensor = &tensor,
        .form = FormOf(tensor, forms),
        .rows = static_cast<uint64_t>(shape.is_vector ? 1 : shape.rows),
        .columns = static_cast<uint64_t>(shape.columns)};
    matrix.bytes =
        WeightMatrix::Bytes(matrix.form, matrix.rows, matrix.columns);
    if (absl::EndsWith(tensor.name, "kv_b_proj.weight")) {
      matrix.transposed_bytes = WeightMatrix::Bytes(
          matrix.form,
          static_cast<uint64_t>(plan.heads.size()) * spec.kv_lora_rank,
          spec.qk_nope_head_dim);
    }
    matrices.push_back(matrix);
  }
  return matrices;
}

uint64_t ShardSizes::total() const {
  uint64_t total = 0;
  for (const uint64_t size : bytes) total += size;
  return total;
}

ShardSizes StageSizesOf(const ModelSpec& spec, const ShardPlan& plan,
                        const WeightForms& forms, Range layers, bool first,
                        bool last) {
  ShardSizes sizes;
  uint64_t moe_layers = 0;
  for (int i = layers.begin; i < layers.end; ++i) {
    if (spec.IsMoeLayer(i)) ++moe_layers;
  }
  if (moe_layers > 0) {
    AddLocal(LayerTensors(spec, true), spec, plan, forms, moe_layers, &sizes);
  }
  AddLocal(LayerTensors(spec, false), spec, plan, forms,
           layers.size() - moe_layers, &sizes);
  // A tied head is a matrix of its own in memory, in another form.
  ModelSpec untied = spec;
  untied.tie_word_embeddings = false;
  ShardSizes root;
  AddLocal(RootTensors(untied), untied, plan, forms, 1, &root);
  const auto take = [&](WeightClass weight_class) {
    const auto index = static_cast<size_t>(weight_class);
    sizes.bytes[index] += root.bytes[index];
  };
  if (first) take(WeightClass::kEmbedding);
  if (last) {
    take(WeightClass::kNorms);
    take(WeightClass::kHead);
  }
  return sizes;
}

ShardSizes ShardSizesOf(const ModelSpec& spec, const ShardPlan& plan,
                        const WeightForms& forms) {
  ShardSizes sizes =
      StageSizesOf(spec, plan, forms, {0, spec.num_hidden_layers}, true, true);
  // Only the first of several such layers is loaded.
  if (spec.num_nextn_predict_layers > 0) {
    AddLocal(MtpTensors(spec), spec, plan, forms, 1, &sizes);
  }
  return sizes;
}

uint64_t CacheBytesPerPosition(const ModelSpec& spec, kernels::Dtype dtype) {
  return uint64_t{RowFormat(spec, dtype).bytes()} * spec.num_hidden_layers;
}

uint64_t CacheBytes(const ModelSpec& spec, kernels::Dtype dtype, uint64_t slots,
                    uint64_t context) {
  constexpr uint64_t kBlock = kernels::kCacheBlockPositions;
  const uint64_t layers =
      spec.num_hidden_layers + (spec.num_nextn_predict_layers > 0 ? 1 : 0);
  return RowFormat(spec, dtype).bytes() * layers * slots *
         ((context + kBlock - 1) / kBlock) * kBlock;
}

}  // namespace ringfleet::cluster
