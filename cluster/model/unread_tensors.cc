// SPDX-License-Identifier: Apache-2.0
#include "cluster/model/unread_tensors.h"

#include <optional>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "cluster/model/model_tensors.h"

namespace ringfleet::cluster {
namespace {

// By name, as the table has it.
using TensorsByName = absl::flat_hash_map<std::string, ModelTensor>;

TensorsByName ByName(const std::vector<ModelTensor>& tensors) {
  TensorsByName by_name;
  for (const ModelTensor& tensor : tensors) {
    by_name.emplace(tensor.name, tensor);
  }
  return by_name;
}

// Consumes "PREFIX", a number as absl::StrCat writes it, and a dot.
std::optional<int> ConsumeNumber(absl::string_view prefix,
                                 absl::string_view* name) {
  absl::string_view rest = *name;
  if (!absl::ConsumePrefix(&rest, prefix)) return std::nullopt;
  const size_t dot = rest.find('.');
  int number = 0;
  if (dot == rest.npos || !absl::SimpleAtoi(rest.substr(0, dot), &number) ||
      number < 0 || absl::StrCat(number) != rest.substr(0, dot)) {
    return std::nullopt;
  }
  *name = rest.substr(dot + 1);
  return number;
}

class ReadTensors {
 public:
  ReadTensors(const ModelSpec& spec, const TensorSource& source,
              int used_layers)
      : spec_(spec),
        source_(source),
        used_layers_(used_layers),
        root_(ByName(RootTensors(spec))),
        dense_(ByName(LayerTensors(spec, /*is_moe=*/false))),
        moe_(ByName(LayerTensors(spec, /*is_moe=*/true))),
        mtp_(ByName(MtpTensors(spec))) {}

  bool IsUnread(const std::string& name) const {
    absl::string_view rest = name;
    const std::optional<int> layer = ConsumeNumber("model.layers.", &rest);
    if (layer.has_value() && *layer >= used_layers_) return false;
    const TensorsByName& tensors = TensorsOf(layer);
    if (Find(tensors, rest) != nullptr) return false;
    if (absl::ConsumeSuffix(&rest, "_scale_inv")) {
      const ModelTensor* weight = Find(tensors, rest);
      if (weight != nullptr && weight->may_be_fp8() && MayNeedScales(name)) {
        return false;
      }
    }
    return !IsIgnored(spec_, name);
  }

 private:
  const TensorsByName& TensorsOf(std::optional<int> layer) const {
    if (!layer.has_value()) return root_;
    if (*layer >= spec_.num_hidden_layers) return mtp_;
    return spec_.IsMoeLayer(*layer) ? moe_ : dense_;
  }

  // `name` without the layer's prefix.
  const ModelTensor* Find(const TensorsByName& tensors,
                          absl::string_view name) const {
    std::string key(name);
    absl::string_view rest = name;
    if (const auto expert = ConsumeNumber("mlp.experts.", &rest);
        expert.has_value() && *expert < spec_.n_routed_experts) {
      key = absl::StrCat("mlp.experts.*.", rest);
    }
    const auto it = tensors.find(key);
    return it == tensors.end() ? nullptr : &it->second;
  }

  // False if the weight of these scales is there in a type that has none. A
  // missing weight is an error of its own.
  bool MayNeedScales(absl::string_view scales) const {
    const auto weight = source_.Find(absl::StripSuffix(scales, "_scale_inv"));
    return !weight.ok() || (*weight)->dtype == kernels::Dtype::kF8E4M3;
  }

  const ModelSpec& spec_;
  const TensorSource& source_;
  const int used_layers_;
  const TensorsByName root_;
  const TensorsByName dense_;
  const TensorsByName moe_;
  const TensorsByName mtp_;
};

}  // namespace

std::vector<std::string> FindUnreadTensors(const ModelSpec& spec,
                                           const TensorSource& source,
                                           int used_layers) {
  const ReadTensors read(spec, source, used_layers);
  std::vector<std::string> unread;
  for (std::string& name : source.Names()) {
    if (read.IsUnread(name)) unread.push_back(std::move(name));
  }
  return unread;
}

absl::string_view UnsupportedTechnique(absl::string_view name) {
  if (absl::StrContains(name, ".indexer.")) {
    return ": the sparse attention of DeepSeek-V3.2 is not supported";
  }
  if (absl::EndsWith(name, ".input_scale")) {
    return ": static scales of activations are not supported";
  }
  if (absl::EndsWith(name, ".bias")) return ": biases are not supported";
  return "";
}

absl::Status CheckAllRead(const ModelSpec& spec, const TensorSource& source,
                          int used_layers) {
  const std::vector<std::string> unread =
      FindUnreadTensors(spec, source, used_layers);
  if (unread.empty()) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(
      unread.front(), ": nothing reads this tensor",
      unread.size() == 1
          ? ""
          : absl::StrCat(" and ", unread.size() - 1, " more like it"),
      ", want only tensors of ", spec.architecture, " as config.json has it",
      UnsupportedTechnique(unread.front())));
}

}  // namespace ringfleet::cluster
