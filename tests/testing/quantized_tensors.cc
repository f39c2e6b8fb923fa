// SPDX-License-Identifier: Apache-2.0
#include "tests/testing/quantized_tensors.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cluster/model/model_tensors.h"
#include "kernels/check.h"

namespace ringfleet::testing {
namespace {

using cluster::ModelSpec;
using cluster::ModelTensor;
using cluster::QuantMethod;
using kernels::Dtype;

// Values, the codes that stand for them, and what these widen to.
struct Encoded {
  std::vector<float> codes;
  std::vector<float> scales;
  std::vector<float> plain;
};

float RoundScale(float scale, Dtype dtype) {
  switch (dtype) {
    case Dtype::kF8E8M0:
      return std::exp2(std::ceil(std::log2(std::max(scale, 1e-30f))));
    case Dtype::kBf16:
      return kernels::RoundToBf16(scale);
    default:
      return scale;
  }
}

class Encoder {
 public:
  Encoder(const ModelSpec& spec, const QuantizedForm& form)
      : spec_(spec), form_(form) {}

  // Encodes `rows` rows with their own scales.
  Encoded Encode(const std::vector<float>& values, int64_t rows) const {
    const int64_t columns = static_cast<int64_t>(values.size()) / rows;
    int64_t block_rows = rows, block_columns = columns;
    switch (spec_.quantization.method) {
      case QuantMethod::kInt4:
        block_rows = 1;
        block_columns = 32;
        break;
      case QuantMethod::kInt8Channel:
        block_rows = 1;
        break;
      default:
        if (spec_.weight_block_rows == 0) break;
        block_rows = spec_.weight_block_rows;
        block_columns = spec_.weight_block_columns;
    }
    const int64_t scale_columns = (columns + block_columns - 1) / block_columns;
    Encoded encoded;
    encoded.scales.resize((rows + block_rows - 1) / block_rows * scale_columns);
    const auto scale_of = [&](int64_t i) -> float& {
      return encoded.scales[i / columns / block_rows * scale_columns +
                            i % columns / block_columns];
    };
    for (size_t i = 0; i < values.size(); ++i) {
      scale_of(i) = std::max(scale_of(i), std::abs(values[i]) / Largest());
    }
    for (float& scale : encoded.scales) scale = RoundScale(scale, scales());
    for (size_t i = 0; i < values.size(); ++i) {
      encoded.codes.push_back(values[i] / scale_of(i));
    }
    RoundCodes(&encoded.codes);
    for (size_t i = 0; i < values.size(); ++i) {
      encoded.plain.push_back(encoded.codes[i] * scale_of(i));
    }
    return encoded;
  }

  Dtype codes() const {
    return spec_.quantization.method == QuantMethod::kFp8 ? Dtype::kF8E4M3
                                                          : Dtype::kInt8;
  }
  Dtype scales() const {
    return spec_.quantization.method == QuantMethod::kInt4 ? Dtype::kBf16
                                                           : form_.scales;
  }

 private:
  float Largest() const {
    switch (spec_.quantization.method) {
      case QuantMethod::kFp8:
        return 448;
      case QuantMethod::kInt4:
        return 7;
      default:
        return 127;
    }
  }
  void RoundCodes(std::vector<float>* codes) const {
    if (spec_.quantization.method == QuantMethod::kFp8) {
      const TestTensor rounded = MakeTensor(
          "", Dtype::kF8E4M3, {static_cast<int64_t>(codes->size())}, *codes);
      kernels::ToFloat(Dtype::kF8E4M3, rounded.data.data(), codes->size(),
                       codes->data());
      return;
    }
    const bool int4 = spec_.quantization.method == QuantMethod::kInt4;
    for (float& code : *codes) {
      // No negative zero: an integer has none.
      code = std::clamp(std::nearbyint(code), int4 ? -8.0f : -127.0f,
                        int4 ? 7.0f : 127.0f) +
             0.0f;
    }
  }

  const ModelSpec& spec_;
  const QuantizedForm& form_;
};

std::vector<float> ValuesOf(const TestTensor& tensor) {
  std::vector<float> values(tensor.data.size() / 2);
  RF_CHECK(tensor.dtype == "BF16");
  kernels::ToFloat(Dtype::kBf16, tensor.data.data(), values.size(),
                   values.data());
  return values;
}

// Adds NAME_packed, NAME_scale and NAME_shape.
void AddInt4(const std::string& name, const std::vector<int64_t>& shape,
             const Encoded& encoded, std::vector<TestTensor>* tensors) {
  std::string packed(encoded.codes.size() / 2, '\0');
  for (size_t i = 0; i < encoded.codes.size(); ++i) {
    const int code = static_cast<int>(encoded.codes[i]) + 8;
    packed[i / 2] = static_cast<char>(packed[i / 2] | code << i % 2 * 4);
  }
  tensors->push_back(
      {name + "_packed", "I32", {shape[0], shape[1] / 8}, std::move(packed)});
  tensors->push_back(MakeTensor(name + "_scale", Dtype::kBf16,
                                {shape[0], shape[1] / 32}, encoded.scales));
  tensors->push_back(
      MakeTensor(name + "_shape", Dtype::kInt64, {2},
                 {static_cast<float>(shape[0]), static_cast<float>(shape[1])}));
}

}  // namespace

QuantizedTensors MakeQuantized(const ModelSpec& spec, const QuantizedForm& form,
                               uint64_t seed) {
  std::map<std::string, TestTensor> source;
  for (TestTensor& tensor : RandomTensors(spec, Dtype::kBf16, seed)) {
    std::string name = tensor.name;
    source.emplace(std::move(name), std::move(tensor));
  }
  const Encoder encoder(spec, form);
  const QuantMethod method = spec.quantization.method;
  QuantizedTensors made;
  const auto add = [&](const std::string& name, std::vector<int64_t> shape,
                       int64_t matrices, const std::vector<float>& values) {
    if (method == QuantMethod::kNone) {
      made.stored.push_back(MakeTensor(name, Dtype::kBf16, shape, values));
      return;
    }
    // Each of several matrices has scales of its own.
    std::vector<float> codes, scales;
    const size_t each = values.size() / matrices;
    for (int64_t i = 0; i < matrices; ++i) {
      const Encoded part = encoder.Encode(
          {values.begin() + i * each, values.begin() + (i + 1) * each},
          shape[shape.size() - 2]);
      codes.insert(codes.end(), part.codes.begin(), part.codes.end());
      scales.insert(scales.end(), part.scales.begin(), part.scales.end());
    }
    made.stored.push_back(MakeTensor(name, encoder.codes(), shape, codes));
    std::vector<int64_t> scale_shape;
    const int64_t rows = shape[shape.size() - 2];
    if (method == QuantMethod::kInt8Channel) {
      scale_shape = {rows, 1};
    } else if (spec.weight_block_rows > 0) {
      scale_shape = {
          cluster::CeilDivide(rows, spec.weight_block_rows),
          cluster::CeilDivide(shape.back(), spec.weight_block_columns)};
    } else if (shape.size() == 3) {
      scale_shape = {1, 1};
    }
    if (shape.size() == 3) scale_shape.insert(scale_shape.begin(), shape[0]);
    made.stored.push_back(MakeTensor(
        name + (method == QuantMethod::kInt8Channel ? "_scale" : "_scale_inv"),
        form.scales, scale_shape, scales));
  };
  for (const cluster::TensorGroup& group : cluster::AllTensors(spec)) {
    std::map<std::string, std::vector<float>> stacks;
    for (const auto& [tensor, expert] :
         cluster::InOrder(group, spec.n_routed_experts)) {
      if (tensor->is_tied) continue;
      const std::string name =
          cluster::TensorName(group.prefix, *tensor, expert);
      const TestTensor& original = source.at(name);
      if (!tensor->may_be_quantized() ||
          (method == QuantMethod::kInt4 && !tensor->is_int4)) {
        made.stored.push_back(original);
        made.plain.push_back(original);
        continue;
      }
      const std::vector<float> values = ValuesOf(original);
      if (method == QuantMethod::kInt4) {
        const Encoded encoded = encoder.Encode(values, tensor->rows);
        AddInt4(name, tensor->shape(), encoded, &made.stored);
        made.plain.push_back(
            MakeTensor(name, Dtype::kF32, tensor->shape(), encoded.plain));
        continue;
      }
      if (form.stacked && tensor->each_expert()) {
        const bool down = tensor->role == cluster::TensorRole::kExpertDown;
        std::vector<float>& stack = stacks[absl::StrCat(
            group.prefix, "mlp.experts.", down ? "down_proj" : "gate_up_proj")];
        stack.insert(stack.end(), values.begin(), values.end());
        continue;
      }
      add(name, tensor->shape(), 1, values);
      made.plain.push_back(
          method == QuantMethod::kNone
              ? original
              : MakeTensor(name, Dtype::kF32, tensor->shape(),
                           encoder.Encode(values, tensor->rows).plain));
    }
    for (const auto& [name, values] : stacks) {
      const bool down = name.ends_with("down_proj");
      const int64_t width = spec.moe_intermediate_size;
      const int64_t rows = down ? spec.hidden_size : 2 * width;
      add(name, {spec.n_routed_experts, rows, down ? width : spec.hidden_size},
          spec.n_routed_experts, values);
      const size_t each = values.size() / spec.n_routed_experts;
      for (int expert = 0; expert < spec.n_routed_experts; ++expert) {
        const std::vector<float> own(values.begin() + expert * each,
                                     values.begin() + (expert + 1) * each);
        const std::vector<float> plain = method == QuantMethod::kNone
                                             ? own
                                             : encoder.Encode(own, rows).plain;
        const std::string prefix =
            absl::StrCat(group.prefix, "mlp.experts.", expert, ".");
        if (down) {
          made.plain.push_back(MakeTensor(prefix + "down_proj.weight",
                                          Dtype::kF32, {rows, width}, plain));
          continue;
        }
        const auto middle = plain.begin() + plain.size() / 2;
        made.plain.push_back(MakeTensor(prefix + "gate_proj.weight",
                                        Dtype::kF32, {width, spec.hidden_size},
                                        {plain.begin(), middle}));
        made.plain.push_back(MakeTensor(prefix + "up_proj.weight", Dtype::kF32,
                                        {width, spec.hidden_size},
                                        {middle, plain.end()}));
      }
    }
  }
  return made;
}

}  // namespace ringfleet::testing
