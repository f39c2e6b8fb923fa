// SPDX-License-Identifier: Apache-2.0
// Reads quantization_config of config.json: the encoding of a checkpoint's
// weights.
#ifndef RINGFLEET_CLUSTER_MODEL_QUANTIZATION_CONFIG_H_
#define RINGFLEET_CLUSTER_MODEL_QUANTIZATION_CONFIG_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json_fwd.hpp"

namespace ringfleet::cluster {

struct ModelSpec;
enum class TensorRole : uint8_t;

// Encodings of weights. A tensor of a quantised checkpoint may still be f32,
// bf16 or f16. kInt4 is an exception: the list `ignore` of config.json tells
// which tensors are int4.
enum class QuantMethod : uint8_t {
  kNone,
  // e4m3 with scales for blocks (DeepSeek-V3, arXiv:2412.19437, section 3.3),
  // or, without weight_block_size, one scale for a tensor or an expert.
  kFp8,
  // compressed-tensors' pack-quantized: four bits with a bf16 scale for every
  // 32 inputs of an output.
  kInt4,
  kInt8Channel,  // w8a8_int8: int8 with an f32 scale for each output.
  kInt8Blocks,   // blockwise_int8: int8 with f32 scales for blocks.
};

// Returns "none", "fp8", "int4", "int8 channel" or "int8 blocks".
absl::string_view QuantMethodName(QuantMethod method);

struct Quantization {
  QuantMethod method = QuantMethod::kNone;
  // Roles of tensors that are int4, a bit for each TensorRole: in decoder
  // layers, and in multi-token prediction layers.
  uint32_t int4_roles = 0;
  uint32_t int4_mtp_roles = 0;

  bool IsInt4(TensorRole role, bool mtp) const {
    return ((mtp ? int4_mtp_roles : int4_roles) >> static_cast<int>(role) &
            1) != 0;
  }
  friend bool operator==(const Quantization&, const Quantization&) = default;
};

// Inputs that share a scale in int4.
inline constexpr int kInt4GroupSize = 32;

// Reads the object quantization_config into spec->quantization and
// spec->weight_block_rows and weight_block_columns. The other members of `spec`
// must be set. Appends the members that nothing reads to `unread`, as in
// "quantization_config.NAME".
//
// Errors: INVALID_ARGUMENT: not an object; a method, a format or an option that
// is not implemented (names the member, its value and the expected value); an
// int4 tensor whose inputs are no multiple of 32.
absl::Status ParseQuantization(const nlohmann::json& object, ModelSpec* spec,
                               std::vector<std::string>* unread);

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_MODEL_QUANTIZATION_CONFIG_H_
