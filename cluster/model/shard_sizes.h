// SPDX-License-Identifier: Apache-2.0
// Computes the memory of a rank's weights and cache from the model's dimensions
// alone. Sizes are those of matrices packed by
// kernels/products/weight_matrix.h, with padding, scales and the transposed
// copy of W_UK.
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

// The forms in memory that a fleet chooses. Routers and vectors are float32 in
// every fleet.
struct WeightForms {
  kernels::WeightForm products = kernels::WeightForm::kInt8;
  kernels::WeightForm experts = kernels::WeightForm::kInt8;  // Routed.
  kernels::WeightForm embedding = kernels::WeightForm::kBf16Rows;
  // True: a tensor is int4 if the checkpoint has it in int4, and else int8. Set
  // only for checkpoints with int4.
  // `products` and `experts` then say what most tensors are.
  bool native = false;
};
// Returns the form of one tensor. The tensor must not be kNotLoaded.
kernels::WeightForm FormOf(const ModelTensor& tensor, const WeightForms& forms);
// Returns the forms of a dtype for a model. An unknown dtype counts as native.
// Native is int8 where nothing is published in int4: int8 keeps published int8.
WeightForms FormsOf(v1::Dtype dtype, const ModelSpec& spec);
// Returns the type of the cache. UNSPECIFIED means float32 if forms.products is
// float32, and else bfloat16.
kernels::Dtype CacheDtypeOf(v1::CacheDtype dtype, const WeightForms& forms);

// One matrix or vector of a rank.
struct LocalMatrix {
  const ModelTensor* tensor = nullptr;
  kernels::WeightForm form = kernels::WeightForm::kF32;
  uint64_t rows = 0;
  uint64_t columns = 0;
  uint64_t bytes = 0;  // Packed; of one expert if each expert has a matrix.
  // Bytes of the transposed copy of W_UK; 0 for all but kv_b.
  uint64_t transposed_bytes = 0;
};
// Returns the rank's part of each tensor that is loaded. `tensors` must outlive
// the result.
std::vector<LocalMatrix> LocalMatrices(const std::vector<ModelTensor>& tensors,
                                       const ModelSpec& spec,
                                       const ShardPlan& plan,
                                       const WeightForms& forms);

// Returns the rank's experts of a layer, ascending. They come from `layout`, or
// from plan.experts if `layout` is null.
std::vector<int32_t> HeldExperts(const ShardPlan& plan,
                                 const ExpertLayout* layout, int layer);

// Bytes, indexed by WeightClass. Sums saturate at the largest uint64_t.
struct ShardSizes {
  std::array<uint64_t, kNumWeightClasses> bytes = {};
  uint64_t total() const;
};
// Returns the sizes of all weights of a rank. If `mtp`, counts the first
// multi-token prediction layer, if the model has one. HeldExperts explains
// `layout`.
ShardSizes ShardSizesOf(const ModelSpec& spec, const ShardPlan& plan,
                        const WeightForms& forms,
                        const ExpertLayout* layout = nullptr, bool mtp = true);
// Returns the sizes of the weights of a pipeline's stage: layers [layers.begin,
// layers.end) of the main model, the embedding if `first`, and the last norm
// and the head if `last`.
ShardSizes StageSizesOf(const ModelSpec& spec, const ShardPlan& plan,
                        const WeightForms& forms, Range layers, bool first,
                        bool last);

// Returns the cache's bytes for one position in all layers of the main model.
uint64_t CacheBytesPerPosition(const ModelSpec& spec, kernels::Dtype dtype);
// Returns the cache's bytes for `slots` sequences of `context` positions, in
// whole blocks. Counts one multi-token prediction layer if the model has any.
uint64_t CacheBytes(const ModelSpec& spec, kernels::Dtype dtype, uint64_t slots,
                    uint64_t context);

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_MODEL_SHARD_SIZES_H_
