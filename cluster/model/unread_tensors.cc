// SPDX-License-Identifier: Apache-2.0
#include "cluster/model/unread_tensors.h"

#include <optional>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "cluster/model/model_tensors.h"
#include "cluster/model/stored_tensor.h"

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
    TensorGroup group;
    if (layer.has_value()) group.prefix = LayerPrefix(*layer);
    int expert = 0;
    const ModelTensor* tensor = Find(tensors, rest, &expert);
    if (tensor == nullptr && ConsumeStoredSuffix(&rest)) {
      tensor = Find(tensors, rest, &expert);
      if (tensor != nullptr && !tensor->may_be_quantized()) tensor = nullptr;
    }
    if (tensor != nullptr &&
        (!tensor->may_be_quantized() ||
         IsStored(source_, spec_, group, *tensor, expert, name))) {
      return false;
    }
    return SkipReason(spec_, name).empty();
  }

 private:
  const TensorsByName& TensorsOf(std::optional<int> layer) const {
    if (!layer.has_value()) return root_;
    if (*layer >= spec_.num_hidden_layers) return mtp_;
    return spec_.IsMoeLayer(*layer) ? moe_ : dense_;
  }

  // Finds `name`, which has no layer's prefix. Sets `expert` if each expert has
  // such a tensor. One tensor of all experts is found as that of expert 0.
  const ModelTensor* Find(const TensorsByName& tensors, absl::string_view name,
                          int* expert) const {
    std::string key(name);
    absl::string_view rest = name;
    if (const auto number = ConsumeNumber("mlp.experts.", &rest);
        number.has_value() && *number < spec_.n_routed_experts) {
      key = absl::StrCat("mlp.experts.*.", rest);
      *expert = *number;
    }
    if (const auto it = tensors.find(key); it != tensors.end()) {
      return &it->second;
    }
    for (const auto& [key, tensor] : tensors) {
      if (tensor.each_expert() && StackedName(tensor) == name) return &tensor;
    }
    return nullptr;
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
    return ": only models with index_topk in config.json have an indexer";
  }
  if (absl::EndsWith(name, ".input_scale")) {
    return ": only fp8 weights have static scales of activations";
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
