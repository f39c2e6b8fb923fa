// SPDX-License-Identifier: Apache-2.0
// Memory of a rank's weights and cache, from the model's dimensions alone.
// Sizes are as kernels/products/weight_matrix.h packs matrices, with padding,
// scales and W_UK's transposed copy.
#ifndef RINGFLEET_CLUSTER_MODEL_SHARD_SIZES_H_
#define RINGFLEET_CLUSTER_MODEL_SHARD_SIZES_H_

#include <array>
#include <cstdint>
#include <vector>

#include "cluster/model/expert_layout.h"
#include "cluster/model/model_spec.h"
#include "cluster/model/model_tensors.h"
#include "cluster/model/shard_plan.h"
#include "kernels/dtype.h"
#include "kernels/products/weight_matrix.h"
#include "protos/types.pb.h"

namespace ringfleet::cluster {

// Forms in memory that a fleet may choose. The router and vectors are float32
// in every fleet.
struct WeightForms {
  kernels::WeightForm products = kernels::WeightForm::kInt8;
  kernels::WeightForm experts = kernels::WeightForm::kInt8;  // Routed.
  kernels::WeightForm embedding = kernels::WeightForm::kBf16Rows;
};
// The form of one tensor. Requires one that is loaded.
kernels::WeightForm FormOf(const ModelTensor& tensor, const WeightForms& forms);
// The forms of a dtype; int8 for an unknown one.
WeightForms FormsOf(v1::Dtype dtype);
// An unspecified cache is float32 with float32 weights, else bfloat16.
kernels::Dtype CacheDtypeOf(v1::CacheDtype dtype, const WeightForms& forms);

// One matrix or vector of a rank.
struct LocalMatrix {
  const ModelTensor* tensor = nullptr;
  kernels::WeightForm form = kernels::WeightForm::kF32;
  uint64_t rows = 0;
  uint64_t columns = 0;
  uint64_t bytes = 0;  // Packed; one expert's where there is one for each.
  // W_UK's transposed copy beside kv_b; else 0.
  uint64_t transposed_bytes = 0;
};
// The rank's part of `tensors`, without those that are not loaded. `tensors`
// must outlive what is returned.
std::vector<LocalMatrix> LocalMatrices(const std::vector<ModelTensor>& tensors,
                                       const ModelSpec& spec,
                                       const ShardPlan& plan,
                                       const WeightForms& forms);

// The rank's experts of a layer, ascending: by `layout`, or if it is null by
// ShardPlan::experts.
std::vector<int32_t> HeldExperts(const ShardPlan& plan,
                                 const ExpertLayout* layout, int layer);

// Bytes by WeightClass. Sums end at the largest number instead of overflowing.
struct ShardSizes {
  std::array<uint64_t, kNumWeightClasses> bytes = {};
  uint64_t total() const;
};
// All weights of a rank. With `mtp`, the multi-token prediction layer is
// counted if the model has one. `layout`: as of HeldExperts.
ShardSizes ShardSizesOf(const ModelSpec& spec, const ShardPlan& plan,
                        const WeightForms& forms,
                        const ExpertLayout* layout = nullptr, bool mtp = true);
// The weights of a pipeline's stage: the layers [layers.begin, layers.end) of
// the main model, the embedding if `first`, norm and head if `last`.
ShardSizes StageSizesOf(const ModelSpec& spec, const ShardPlan& plan,
                        const WeightForms& forms, Range layers, bool first,
                        bool last);

// Bytes of one position in all layers of the main model.
uint64_t CacheBytesPerPosition(const ModelSpec& spec, kernels::Dtype dtype);
// Bytes that a worker reserves for `slots` sequences of `context` positions, in
// whole blocks, with the multi-token prediction layer.
uint64_t CacheBytes(const ModelSpec& spec, kernels::Dtype dtype, uint64_t slots,
                    uint64_t context);

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_MODEL_SHARD_SIZES_H_
