// SPDX-License-Identifier: Apache-2.0
#include "cluster/model/published_sizes.h"

#include <vector>

namespace ringfleet::cluster {
namespace {

void AddPublished(const std::vector<ModelTensor>& tensors,
                  const ModelSpec& spec, CheckpointSizes* sizes) {
  for (const ModelTensor& tensor : tensors) {
    if (tensor.is_tied) continue;
    const uint64_t count = tensor.each_expert() ? spec.n_routed_experts : 1;
    const uint64_t elements = count * tensor.elements();
    const auto index = static_cast<size_t>(tensor.weight_class);
    const bool fp8 = tensor.may_be_fp8() && spec.weight_block_rows > 0;
    const bool f32 = tensor.stored == StoredForm::kF32;
    sizes->parameters[index] += elements;
    sizes->bytes[index] += elements * (fp8 ? 1 : f32 ? 4 : 2);
    if (!fp8) continue;
    const uint64_t scales =
        count * CeilDivide(tensor.rows, spec.weight_block_rows) *
        CeilDivide(tensor.columns, spec.weight_block_columns);
    sizes->scales += scales;
    sizes->bytes[index] += scales * sizeof(float);
  }
}

}  // namespace

uint64_t CheckpointSizes::main_parameters() const {
  uint64_t total = 0;
  for (int i = 0; i < kNumWeightClasses; ++i) {
    if (i != static_cast<int>(WeightClass::kMtp)) total += parameters[i];
  }
  return total;
}

uint64_t CheckpointSizes::all_bytes() const {
  uint64_t total = 0;
  for (const uint64_t size : bytes) total += size;
  return total;
}

CheckpointSizes PublishedSizes(const ModelSpec& spec) {
  CheckpointSizes sizes;
  for (const TensorGroup& group : AllTensors(spec)) {
    AddPublished(group.tensors, spec, &sizes);
  }
  return sizes;
}

uint64_t CountParameters(const ModelSpec& spec) {
  return PublishedSizes(spec).main_parameters();
}

}  // namespace ringfleet::cluster
