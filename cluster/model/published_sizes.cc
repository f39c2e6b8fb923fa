// SPDX-License-Identifier: Apache-2.0
#include "cluster/model/published_sizes.h"

#include <vector>

namespace ringfleet::cluster {
namespace {

// Returns the bytes of `elements` values in the tensor's published form, and
// sets the number of their scales.
uint64_t PublishedBytes(const ModelTensor& tensor, const ModelSpec& spec,
                        uint64_t* scales) {
  const auto elements = static_cast<uint64_t>(tensor.elements());
  *scales = 0;
  const uint64_t floats =
      elements * (tensor.stored == StoredForm::kF32 ? 4 : 2);
  if (!tensor.may_be_quantized()) return floats;
  switch (spec.quantization.method) {
    case QuantMethod::kNone:
      return floats;
    case QuantMethod::kInt4:
      if (!tensor.is_int4) return floats;
      *scales = tensor.rows * CeilDivide(tensor.columns, kInt4GroupSize);
      // Codes, bf16 scales, and two int32 of the shape.
      return elements / 2 + 2 * *scales + 8;
    case QuantMethod::kInt8Channel:
      *scales = tensor.rows;
      break;
    case QuantMethod::kFp8:
    case QuantMethod::kInt8Blocks:
      *scales = spec.weight_block_rows == 0
                    ? 1
                    : CeilDivide(tensor.rows, spec.weight_block_rows) *
                          CeilDivide(tensor.columns, spec.weight_block_columns);
      break;
  }
  return elements + *scales * sizeof(float);
}

void AddPublished(const std::vector<ModelTensor>& tensors,
                  const ModelSpec& spec, CheckpointSizes* sizes) {
  for (const ModelTensor& tensor : tensors) {
    if (tensor.is_tied) continue;
    const uint64_t count = tensor.each_expert() ? spec.n_routed_experts : 1;
    const auto index = static_cast<size_t>(tensor.weight_class);
    uint64_t scales = 0;
    const uint64_t bytes = PublishedBytes(tensor, spec, &scales);
    sizes->parameters[index] += count * tensor.elements();
    sizes->bytes[index] += count * bytes;
    sizes->scales += count * scales;
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
