// SPDX-License-Identifier: Apache-2.0
#include "cluster/model/quantization_config.h"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <regex>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "cluster/model/config_fields.h"
#include "cluster/model/model_spec.h"
#include "cluster/model/model_tensors.h"
#include "cluster/process/status_macros.h"
#include "nlohmann/json.hpp"

namespace ringfleet::cluster {
namespace {

constexpr int kMaxBlockSize = 1 << 16;
constexpr size_t kMaxModules = 1 << 16;
// Bounds the time and the stack that patterns take.
constexpr size_t kMaxPatterns = 1 << 10;
constexpr size_t kMaxPatternLength = 1 << 10;

// Members that change no weight. The files tell which tensors are not
// quantised.
constexpr absl::string_view kWithoutEffect[] = {
    "activation_scheme", "dequantize", "modules_to_not_convert", "scale_fmt"};
constexpr absl::string_view kPackedWithoutEffect[] = {
    "global_compression_ratio", "quantization_status", "version"};
constexpr absl::string_view kPackedWeightsWithoutEffect[] = {
    "observer", "observer_kwargs", "scale_dtype"};

// Fails unless a member is absent, null or empty.
void WantNone(ConfigFields& fields, const char* field) {
  const nlohmann::json* value = fields.Get(field);
  if (value == nullptr || (value->is_structured() && value->empty())) return;
  fields.Fail(field, absl::StrCat(ShowConfigValue(*value), ", want null"));
}

// Fails unless a member has one value.
void WantValue(ConfigFields& fields, const char* field,
               const nlohmann::json& want) {
  const nlohmann::json* value = fields.Get(field);
  if (value != nullptr && *value == want) return;
  fields.Fail(field, absl::StrCat(
                         value == nullptr ? "missing" : ShowConfigValue(*value),
                         ", want ", ShowConfigValue(want)));
}

void ParseBlocks(ConfigFields& fields, bool required, ModelSpec* spec) {
  const nlohmann::json* block = fields.Get("weight_block_size");
  if (block == nullptr && !required) return;
  const auto size_ok = [](const nlohmann::json& size) {
    return size.is_number_unsigned() && size.get<uint64_t>() >= 1 &&
           size.get<uint64_t>() <= kMaxBlockSize;
  };
  if (block == nullptr || !block->is_array() || block->size() != 2 ||
      !size_ok((*block)[0]) || !size_ok((*block)[1])) {
    fields.Fail(
        "weight_block_size",
        absl::StrCat(block == nullptr ? "missing" : ShowConfigValue(*block),
                     ", want [rows, columns], each in 1 to ", kMaxBlockSize));
    return;
  }
  spec->weight_block_rows = (*block)[0].get<int>();
  spec->weight_block_columns = (*block)[1].get<int>();
}

// A list of modules as compressed-tensors has it: names, and regular
// expressions behind "re:" that match from a name's start.
class ModuleList {
 public:
  static absl::StatusOr<ModuleList> Parse(const nlohmann::json* list) {
    ModuleList modules;
    if (list == nullptr) return modules;
    if (!list->is_array() || list->size() > kMaxModules) {
      return absl::InvalidArgumentError(
          absl::StrCat(ShowConfigValue(*list), ", want a list of at most ",
                       kMaxModules, " names"));
    }
    for (const nlohmann::json& entry : *list) {
      if (!entry.is_string()) {
        return absl::InvalidArgumentError(
            absl::StrCat(ShowConfigValue(entry), ", want a module's name"));
      }
      absl::string_view name = entry.get_ref<const std::string&>();
      if (!absl::ConsumePrefix(&name, "re:")) {
        modules.names_.emplace(name);
        continue;
      }
      if (modules.patterns_.size() == kMaxPatterns ||
          name.size() > kMaxPatternLength) {
        return absl::InvalidArgumentError(absl::StrCat(
            ShowConfigValue(entry), ", want at most ", kMaxPatterns,
            " patterns of ", kMaxPatternLength, " characters"));
      }
      try {
        // The polynomial matcher bounds the time of any pattern.
        modules.patterns_.emplace_back(
            name.begin(), name.end(),
            std::regex::ECMAScript | std::regex_constants::__polynomial);
      } catch (const std::regex_error& e) {
        return absl::InvalidArgumentError(absl::StrCat(
            ShowConfigValue(entry), ", want a regular expression: ", e.what()));
      }
    }
    return modules;
  }

  // Returns true if the list has the name of a module, or of a class of
  // modules.
  bool Has(absl::string_view name) const { return names_.contains(name); }
  // Returns true if a pattern or a name matches the module.
  bool Matches(const std::string& module) const {
    return Has(module) ||
           std::any_of(patterns_.begin(), patterns_.end(),
                       [&](const std::regex& pattern) {
                         return std::regex_search(
                             module, pattern,
                             std::regex_constants::match_continuous);
                       });
  }

 private:
  absl::flat_hash_set<std::string> names_;
  std::vector<std::regex> patterns_;
};

// Returns the names that a list may have for a tensor's module: a text model
// inside of another has a prefix.
std::vector<std::string> ModuleNames(absl::string_view tensor) {
  absl::ConsumeSuffix(&tensor, ".weight");
  const size_t layers = tensor.find("layers.");
  if (layers == tensor.npos) return {std::string(tensor)};
  const absl::string_view name = tensor.substr(layers);
  return {absl::StrCat("model.", name),
          absl::StrCat("language_model.model.", name),
          absl::StrCat("model.language_model.", name)};
}

// Roles whose tensors have one form in memory.
constexpr std::array<TensorRole, 3> kRolesOfOneForm[] = {
    {TensorRole::kQB, TensorRole::kKvB, TensorRole::kO},
    {TensorRole::kDenseGate, TensorRole::kDenseUp, TensorRole::kDenseDown},
    {TensorRole::kExpertGate, TensorRole::kExpertUp, TensorRole::kExpertDown},
    {TensorRole::kSharedGate, TensorRole::kSharedUp, TensorRole::kSharedDown}};

// Returns the first role of those that have the form of `role`.
TensorRole FormRole(TensorRole role) {
  for (const auto& roles : kRolesOfOneForm) {
    if (std::find(roles.begin(), roles.end(), role) != roles.end()) {
      return roles.front();
    }
  }
  return role;
}

// Finds the roles that are int4. Experts of a layer have the choice of the
// first.
absl::Status FindInt4Roles(const ModuleList& targets, const ModuleList& ignored,
                           ModelSpec* spec) {
  const auto any = [](const ModuleList& list,
                      const std::vector<std::string>& names) {
    return std::any_of(
        names.begin(), names.end(),
        [&](const std::string& name) { return list.Matches(name); });
  };
  // True if the role's first tensor is int4; and its name.
  std::map<std::pair<bool, TensorRole>, std::pair<bool, std::string>> first;
  for (const TensorGroup& group : AllTensors(*spec)) {
    const bool mtp = group.layer >= spec->num_hidden_layers;
    for (const ModelTensor& tensor : group.tensors) {
      if (!tensor.may_be_quantized()) continue;
      const std::string name = TensorName(group.prefix, tensor, /*expert=*/0);
      const std::vector<std::string> modules = ModuleNames(name);
      const bool int4 = (targets.Has("Linear") || any(targets, modules)) &&
                        !any(ignored, modules);
      const auto& [known, known_name] =
          first.try_emplace({mtp, FormRole(tensor.role)}, int4, name)
              .first->second;
      if (known != int4) {
        return absl::InvalidArgumentError(
            absl::StrCat("config.json: quantization_config.ignore: has ",
                         int4 ? known_name : name, ", but not ",
                         int4 ? name : known_name, ", want both or neither"));
      }
      if (!int4) continue;
      const bool by_heads = tensor.split == Split::kHeadColumns;
      const int64_t inputs = by_heads ? spec->v_head_dim : tensor.columns;
      if (inputs % kInt4GroupSize != 0) {
        return absl::InvalidArgumentError(absl::StrCat(
            "config.json: quantization_config: int4 tensor ", name, " has ",
            inputs, by_heads ? " inputs of each head" : " inputs",
            ", want a multiple of ", kInt4GroupSize, ", the group_size"));
      }
      (mtp ? spec->quantization.int4_mtp_roles
           : spec->quantization.int4_roles) |= 1u
                                               << static_cast<int>(tensor.role);
    }
  }
  return absl::OkStatus();
}

// Reads compressed-tensors' configuration of pack-quantized int4.
absl::Status ParsePacked(ConfigFields& fields, ModelSpec* spec,
                         std::vector<std::string>* unread) {
  WantValue(fields, "format", "pack-quantized");
  for (const char* field :
       {"kv_cache_scheme", "sparsity_config", "transform_config"}) {
    WantNone(fields, field);
  }
  fields.Ignore(kPackedWithoutEffect);
  const nlohmann::json* groups = fields.Get("config_groups");
  if (groups == nullptr || !groups->is_object() || groups->size() != 1) {
    fields.Fail(
        "config_groups",
        absl::StrCat(groups == nullptr ? "missing" : ShowConfigValue(*groups),
                     ", want an object with one group"));
  }
  const absl::StatusOr<ModuleList> ignored =
      ModuleList::Parse(fields.Get("ignore"));
  if (!ignored.ok()) fields.Fail("ignore", ignored.status().message());
  RF_RETURN_IF_ERROR(fields.status());

  const auto first_group = groups->cbegin();
  const nlohmann::json& group = *first_group;
  const std::string group_path = absl::StrCat(
      "quantization_config.config_groups.", first_group.key(), ".");
  const auto append_unread = [unread](const ConfigFields& of,
                                      absl::string_view path) {
    for (const std::string& name : of.Unread()) {
      unread->push_back(absl::StrCat(path, name));
    }
  };
  if (!group.is_object()) {
    fields.Fail("config_groups", absl::StrCat(ShowConfigValue(*groups),
                                              ", want an object with one "
                                              "group"));
    return fields.status();
  }
  ConfigFields of_group(group, absl::StrCat("config.json: ", group_path));
  if (of_group.Get("format") != nullptr) {
    WantValue(of_group, "format", "pack-quantized");
  }
  WantNone(of_group, "input_activations");
  WantNone(of_group, "output_activations");
  const absl::StatusOr<ModuleList> targets =
      ModuleList::Parse(of_group.Get("targets"));
  if (!targets.ok()) of_group.Fail("targets", targets.status().message());
  const nlohmann::json* weights = of_group.Get("weights");
  if (weights == nullptr || !weights->is_object()) {
    of_group.Fail(
        "weights",
        absl::StrCat(weights == nullptr ? "missing" : ShowConfigValue(*weights),
                     ", want an object"));
  }
  RF_RETURN_IF_ERROR(of_group.status());

  const std::string weights_path = absl::StrCat(group_path, "weights.");
  ConfigFields of_weights(*weights,
                          absl::StrCat("config.json: ", weights_path));
  WantValue(of_weights, "num_bits", 4);
  WantValue(of_weights, "type", "int");
  WantValue(of_weights, "symmetric", true);
  WantValue(of_weights, "group_size", kInt4GroupSize);
  WantValue(of_weights, "strategy", "group");
  if (of_weights.Get("dynamic") != nullptr) {
    WantValue(of_weights, "dynamic", false);
  }
  for (const char* field : {"actorder", "block_structure", "zp_dtype"}) {
    WantNone(of_weights, field);
  }
  of_weights.Ignore(kPackedWeightsWithoutEffect);
  RF_RETURN_IF_ERROR(of_weights.status());
  append_unread(of_group, group_path);
  append_unread(of_weights, weights_path);
  return FindInt4Roles(*targets, *ignored, spec);
}

}  // namespace

absl::string_view QuantMethodName(QuantMethod method) {
  constexpr absl::string_view kNames[] = {"none", "fp8", "int4", "int8 channel",
                                          "int8 blocks"};
  return kNames[static_cast<size_t>(method)];
}

absl::Status ParseQuantization(const nlohmann::json& object, ModelSpec* spec,
                               std::vector<std::string>* unread) {
  if (!object.is_object()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "config.json: quantization_config: ", ShowConfigValue(object),
        ", want an object"));
  }
  ConfigFields fields(object, "config.json: quantization_config.");
  const std::string method = fields.String("quant_method", "");
  RF_RETURN_IF_ERROR(fields.status());
  QuantMethod& known = spec->quantization.method;
  if (method == "fp8") {
    known = QuantMethod::kFp8;
    const std::string format = fields.String("fmt", "e4m3");
    if (format != "e4m3") {
      fields.Fail("fmt", absl::StrCat("\"", format, "\", want \"e4m3\""));
    }
    ParseBlocks(fields, /*required=*/false, spec);
  } else if (method == "compressed-tensors") {
    known = QuantMethod::kInt4;
    RF_RETURN_IF_ERROR(ParsePacked(fields, spec, unread));
  } else if (method == "w8a8_int8") {
    known = QuantMethod::kInt8Channel;
    WantNone(fields, "weight_block_size");
  } else if (method == "blockwise_int8") {
    known = QuantMethod::kInt8Blocks;
    ParseBlocks(fields, /*required=*/true, spec);
  } else {
    fields.Fail("quant_method",
                absl::StrCat("\"", method,
                             "\", want \"fp8\", \"compressed-tensors\", "
                             "\"w8a8_int8\" or \"blockwise_int8\""));
  }
  RF_RETURN_IF_ERROR(fields.status());
  fields.Ignore(kWithoutEffect);
  for (const std::string& name : fields.Unread()) {
    unread->push_back(absl::StrCat("quantization_config.", name));
  }
  return absl::OkStatus();
}

}  // namespace ringfleet::cluster
