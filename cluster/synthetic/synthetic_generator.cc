// SPDX-License-Identifier: Apache-2.0
#include "cluster/synthetic/synthetic_generator.h"

#include <xxhash.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "cluster/synthetic/expert_popularity.h"
#include "kernels/check.h"
#include "kernels/dtype.h"

namespace ringfleet::cluster {
namespace {

using Values = SyntheticTensor::Values;

// Weights of norms: 1 with this deviation, and outliers, one draw in 256.
constexpr float kNormDeviation = 0.1f;
constexpr size_t kOutlierDraws = kDraws / 256;

// Scales of blocks are uniform in [1 - kScaleSpread, 1 + kScaleSpread] times
// one that gives all weights together their deviation.
constexpr double kScaleSpread = 0.25;

uint64_t KeyOf(absl::string_view name, uint64_t seed) {
  return XXH3_64bits_withSeed(name.data(), name.size(), seed);
}

CodeTable<uint16_t> NormalTable(double deviation) {
  CodeTable<uint16_t> table;
  for (size_t i = 0; i < kDraws; ++i) {
    table[i] =
        kernels::FloatToBf16(static_cast<float>(deviation * NormalDraws()[i]));
  }
  return table;
}

CodeTable<uint16_t> NormTable() {
  CodeTable<uint16_t> table;
  for (size_t i = 0; i < kDraws; ++i) {
    const float value =
        i < kOutlierDraws
            ? 4 + 2 * static_cast<float>(i) / static_cast<float>(kOutlierDraws)
            : 1 + kNormDeviation * NormalDraws()[i];
    table[i] = kernels::FloatToBf16(value);
  }
  return table;
}

CodeTable<uint32_t> ScaleTable(double deviation) {
  const double square = 1 + kScaleSpread * kScaleSpread / 3;
  const double middle = deviation / kF8Deviation / std::sqrt(square);
  CodeTable<uint32_t> table;
  for (size_t i = 0; i < kDraws; ++i) {
    const double place = (2 * static_cast<double>(i) + 1) / kDraws - 1;
    table[i] = std::bit_cast<uint32_t>(
        static_cast<float>(middle * (1 + kScaleSpread * place)));
  }
  return table;
}

kernels::RouterParameters RouterOf(const ModelSpec& spec) {
  return {.num_experts = spec.n_routed_experts,
          .num_experts_per_tok = spec.num_experts_per_tok,
          .n_group = spec.n_group,
          .topk_group = spec.topk_group};
}

}  // namespace

SyntheticGenerator::SyntheticGenerator(const ModelSpec& spec,
                                       std::vector<SyntheticTensor> tensors,
                                       uint64_t seed, double zipf)
    : spec_(spec),
      tensors_(std::move(tensors)),
      zipf_(zipf),
      norm_(NormTable()) {
  for (const SyntheticTensor& tensor : tensors_) {
    index_of_.emplace(tensor.name, recipes_.size());
    recipes_.push_back(MakeRecipe(tensor, seed));
  }
}

SyntheticGenerator::~SyntheticGenerator() = default;

SyntheticGenerator::Recipe SyntheticGenerator::MakeRecipe(
    const SyntheticTensor& tensor, uint64_t seed) {
  Recipe recipe;
  recipe.key =
      KeyOf(tensor.copy_of.empty() ? tensor.name : tensor.copy_of, seed);
  const double deviation = tensor.deviation;
  switch (tensor.values) {
    case Values::kNormal:
      if (tensor.dtype == kernels::Dtype::kF8E4M3) {
        recipe.f8 = &F8NormalCodes();
        break;
      }
      RF_CHECK(tensor.dtype == kernels::Dtype::kBf16);
      if (!normal_.contains(deviation)) {
        normal_.emplace(deviation, NormalTable(deviation));
      }
      recipe.bf16 = &normal_.at(deviation);
      break;
    case Values::kNorm:
      recipe.bf16 = &norm_;
      break;
    case Values::kScale:
      if (!scale_.contains(deviation)) {
        scale_.emplace(deviation, ScaleTable(deviation));
      }
      recipe.f32 = &scale_.at(deviation);
      break;
    case Values::kBias:
      recipe.bias = std::make_unique<Bias>();
      break;
  }
  return recipe;
}

std::vector<float> SyntheticGenerator::Floats(const std::string& name) const {
  const Recipe& recipe = recipes_[index_of_.at(name)];
  const SyntheticTensor& tensor = tensors_[index_of_.at(name)];
  size_t count = 1;
  for (const int64_t size : tensor.shape) count *= size;
  std::vector<uint16_t> codes(count);
  FillCodes(recipe.key, *recipe.bf16, 0, 2 * count, codes.data());
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i) values[i] = kernels::Bf16ToFloat(codes[i]);
  return values;
}

std::vector<float> SyntheticGenerator::MakeBias(const SyntheticTensor& bias,
                                                uint64_t key) const {
  absl::string_view layer = bias.name;
  RF_CHECK(absl::ConsumeSuffix(&layer, "mlp.gate.e_score_correction_bias"));
  const kernels::RouterParameters router = RouterOf(spec_);
  return BalanceRouter(
      router, Floats(absl::StrCat(layer, "mlp.gate.weight")),
      Floats(absl::StrCat(layer, "post_attention_layernorm.weight")),
      ZipfPopularity(router, zipf_, key), key);
}

void SyntheticGenerator::Fill(size_t tensor, uint64_t offset, size_t size,
                              void* destination) const {
  const Recipe& recipe = recipes_[tensor];
  if (recipe.f8 != nullptr) {
    FillCodes(recipe.key, *recipe.f8, offset, size, destination);
  } else if (recipe.bf16 != nullptr) {
    FillCodes(recipe.key, *recipe.bf16, offset, size, destination);
  } else if (recipe.f32 != nullptr) {
    FillCodes(recipe.key, *recipe.f32, offset, size, destination);
  } else {
    Bias& bias = *recipe.bias;
    std::call_once(bias.once, [&] {
      bias.values = MakeBias(tensors_[tensor], recipe.key);
    });
    std::memcpy(destination,
                reinterpret_cast<const char*>(bias.values.data()) + offset,
                size);
  }
}

}  // namespace ringfleet::cluster
