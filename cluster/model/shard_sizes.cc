// SPDX-License-Identifier: Apache-2.0
#include "cluster/model/shard_sizes.h"

#include <limits>
#include <numeric>

#include "kernels/attention/latent_cache.h"
#include "kernels/check.h"

namespace ringfleet::cluster {
namespace {

using kernels::WeightForm;
using kernels::WeightMatrix;

uint64_t SaturatingSum(uint64_t a, uint64_t b) {
  uint64_t sum = 0;
  return __builtin_add_overflow(a, b, &sum)
             ? std::numeric_limits<uint64_t>::max()
             : sum;
}

uint64_t SaturatingProduct(uint64_t a, uint64_t b) {
  uint64_t product = 0;
  return __builtin_mul_overflow(a, b, &product)
             ? std::numeric_limits<uint64_t>::max()
             : product;
}

// Adds `times` such groups with `experts` experts of the rank in all.
void AddLocal(const std::vector<ModelTensor>& tensors, const ModelSpec& spec,
              const ShardPlan& plan, const WeightForms& forms, uint64_t times,
              uint64_t experts, ShardSizes* sizes) {
  for (const LocalMatrix& matrix : LocalMatrices(tensors, spec, plan, forms)) {
    uint64_t& bytes =
        sizes->bytes[static_cast<size_t>(matrix.tensor->weight_class)];
    bytes = SaturatingSum(
        bytes, SaturatingProduct(
                   matrix.tensor->each_expert() ? experts : times,
                   SaturatingSum(matrix.bytes, matrix.transposed_bytes)));
  }
}

size_t CountHeldExperts(const ShardPlan& plan, const ExpertLayout* layout,
                        int layer) {
  return layout == nullptr ? plan.experts.size()
                           : layout->Held(layer, plan.expert_coordinate).size();
}

ShardSizes SizesOfLayers(const ModelSpec& spec, const ShardPlan& plan,
                         const WeightForms& forms, const ExpertLayout* layout,
                         Range layers, bool first, bool last) {
  ShardSizes sizes;
  uint64_t moe_layers = 0;
  uint64_t experts = 0;
  for (int i = layers.begin; i < layers.end; ++i) {
    if (!spec.IsMoeLayer(i)) continue;
    ++moe_layers;
    experts += CountHeldExperts(plan, layout, i);
  }
  if (moe_layers > 0) {
    AddLocal(LayerTensors(spec, true), spec, plan, forms, moe_layers, experts,
             &sizes);
  }
  AddLocal(LayerTensors(spec, false), spec, plan, forms,
           layers.size() - moe_layers, /*experts=*/0, &sizes);
  ShardSizes root;
  AddLocal(RootTensors(spec), spec, plan, forms, 1, /*experts=*/0, &root);
  const auto take = [&](WeightClass weight_class) {
    const auto index = static_cast<size_t>(weight_class);
    sizes.bytes[index] = SaturatingSum(sizes.bytes[index], root.bytes[index]);
  };
  if (first) take(WeightClass::kEmbedding);
  if (last) {
    take(WeightClass::kNorms);
    take(WeightClass::kHead);
  }
  return sizes;
}

kernels::LatentRowFormat RowFormat(const ModelSpec& spec,
                                   kernels::Dtype dtype) {
  return {.dtype = dtype,
          .kv_lora_rank = static_cast<size_t>(spec.kv_lora_rank),
          .rope_dim = static_cast<size_t>(spec.qk_rope_head_dim)};
}

}  // namespace

WeightForms FormsOf(v1::Dtype dtype, const ModelSpec& spec) {
  switch (dtype) {
    case v1::DTYPE_F32:
      return {WeightForm::kF32, WeightForm::kF32};
    case v1::DTYPE_BF16:
      return {WeightForm::kBf16, WeightForm::kBf16};
    case v1::DTYPE_INT8:
      return {WeightForm::kInt8, WeightForm::kInt8};
    case v1::DTYPE_INT4:
      return {WeightForm::kInt4, WeightForm::kInt4};
    case v1::DTYPE_INT4_EXPERTS:
      return {WeightForm::kInt8, WeightForm::kInt4};
    default: {
      const Quantization& stored = spec.quantization;
      const bool int4_experts =
          stored.IsInt4(TensorRole::kExpertDown, /*mtp=*/false);
      return {.products = WeightForm::kInt8,
              .experts = int4_experts ? WeightForm::kInt4 : WeightForm::kInt8,
              .native = (stored.int4_roles | stored.int4_mtp_roles) != 0};
    }
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

WeightForm FormOf(const ModelTensor& tensor, const WeightForms& forms) {
  switch (tensor.memory) {
    case MemoryForm::kNotLoaded:
      break;
    case MemoryForm::kVector:
    case MemoryForm::kRouter:
      return WeightForm::kF32Rows;
    case MemoryForm::kLookup:
      return forms.embedding;
    case MemoryForm::kMatrix:
    case MemoryForm::kKeyValue:
      if (forms.native) {
        return tensor.is_int4 ? WeightForm::kInt4 : WeightForm::kInt8;
      }
      return tensor.each_expert() ? forms.experts : forms.products;
  }
  RF_CHECK(false);
}

std::vector<LocalMatrix> LocalMatrices(const std::vector<ModelTensor>& tensors,
                                       const ModelSpec& spec,
                                       const ShardPlan& plan,
                                       const WeightForms& forms) {
  std::vector<LocalMatrix> matrices;
  for (const ModelTensor& tensor : tensors) {
    if (tensor.memory == MemoryForm::kNotLoaded) continue;
    const LocalSlice slice = LocalSliceOf(tensor, spec, plan);
    LocalMatrix matrix = {
        .tensor = &tensor,
        .form = FormOf(tensor, forms),
        .rows = static_cast<uint64_t>(slice.rows.size()),
        .columns = static_cast<uint64_t>(slice.columns.size())};
    matrix.bytes =
        WeightMatrix::Bytes(matrix.form, matrix.rows, matrix.columns);
    if (tensor.memory == MemoryForm::kKeyValue) {
      matrix.transposed_bytes = WeightMatrix::Bytes(
          matrix.form,
          static_cast<uint64_t>(plan.heads.size()) * spec.kv_lora_rank,
          spec.qk_nope_head_dim);
    }
    matrices.push_back(matrix);
  }
  return matrices;
}

std::vector<int32_t> HeldExperts(const ShardPlan& plan,
                                 const ExpertLayout* layout, int layer) {
  if (layout != nullptr) {
    const auto held = layout->Held(layer, plan.expert_coordinate);
    return {held.begin(), held.end()};
  }
  std::vector<int32_t> held(plan.experts.size());
  std::iota(held.begin(), held.end(), plan.experts.begin);
  return held;
}

uint64_t ShardSizes::total() const {
  uint64_t total = 0;
  for (const uint64_t size : bytes) total = SaturatingSum(total, size);
  return total;
}

ShardSizes StageSizesOf(const ModelSpec& spec, const ShardPlan& plan,
                        const WeightForms& forms, Range layers, bool first,
                        bool last) {
  return SizesOfLayers(spec, plan, forms, /*layout=*/nullptr, layers, first,
                       last);
}

ShardSizes ShardSizesOf(const ModelSpec& spec, const ShardPlan& plan,
                        const WeightForms& forms, const ExpertLayout* layout,
                        bool mtp) {
  ShardSizes sizes = SizesOfLayers(spec, plan, forms, layout,
                                   {0, spec.num_hidden_layers}, true, true);
  // Only the first of several such layers is loaded.
  if (mtp && spec.num_nextn_predict_layers > 0) {
    const uint64_t experts =
        spec.n_routed_experts == 0
            ? 0
            : CountHeldExperts(plan, layout, spec.num_hidden_layers);
    AddLocal(MtpTensors(spec), spec, plan, forms, 1, experts, &sizes);
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
         CeilDivide(context, kBlock) * kBlock;
}

}  // namespace ringfleet::cluster
