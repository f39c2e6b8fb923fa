// SPDX-License-Identifier: Apache-2.0
#include "cluster/model/rope_config.h"

#include <cmath>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cluster/process/status_macros.h"

namespace ringfleet::cluster {
namespace {

constexpr double kLowestTheta = 1 + 1e-6;
constexpr double kHighestTheta = 1e12;
constexpr int kMaxOriginalPositions = 1 << 30;
constexpr double kFactorTolerance = 1e-6;

// The content of rope_scaling or rope_parameters.
struct RopeMember {
  std::optional<double> theta;
  std::optional<YarnSpec> yarn;
  std::optional<QueryScaleSpec> query_scale;
};

// Returns "yarn" or "default", or "" if the object says neither.
std::string ReadRopeType(ConfigFields& fields) {
  const std::string type = fields.String("type", "");
  const std::string rope_type = fields.String("rope_type", type);
  if (!type.empty() && rope_type != type) {
    fields.Fail("rope_type", absl::StrCat("\"", rope_type, "\", but type is \"",
                                          type, "\""));
  }
  if (!rope_type.empty() && rope_type != "yarn" && rope_type != "default") {
    fields.Fail(type.empty() ? "rope_type" : "type",
                absl::StrCat("\"", rope_type,
                             "\", want \"yarn\" or "
                             "\"default\""));
  }
  return rope_type;
}

// Fails unless all of qk_rope_head_dim is rotated.
void CheckWholeRotation(ConfigFields& fields, const Family& family,
                        const ModelSpec& spec) {
  const double part = fields.Number("partial_rotary_factor", 0, 1, 1);
  if (part == 1) return;
  std::string want = ", want 1";
  if (family.rotary_factor_of_head) {
    const double whole =
        static_cast<double>(spec.qk_rope_head_dim) / spec.qk_head_dim();
    if (std::abs(part - whole) < kFactorTolerance) return;
    absl::StrAppend(&want, " or ", whole,
                    ", the share of qk_rope_head_dim in a head");
  }
  fields.Fail("partial_rotary_factor", absl::StrCat(part, want));
}

// Fails where published programs compute different magnitudes: DeepSeek's takes
// an absent mscale as 1 and an absent mscale_all_dim as 0, transformers takes
// neither unless both are there.
void CheckMscales(ConfigFields& fields, const YarnSpec& yarn) {
  if (yarn.attention_factor.has_value() || yarn.factor == 1) return;
  const bool both = yarn.mscale_all_dim != 0 && yarn.mscale != 0 &&
                    fields.Get("mscale") != nullptr;
  const bool neither = yarn.mscale_all_dim == 0 && yarn.mscale == 1;
  if (both || neither) return;
  fields.Fail(
      "mscale",
      absl::StrCat(fields.Get("mscale") == nullptr ? std::string("absent")
                                                   : absl::StrCat(yarn.mscale),
                   " beside mscale_all_dim ", yarn.mscale_all_dim,
                   ", want both, neither or attention_factor: programs "
                   "disagree about one without the other"));
}

YarnSpec ReadYarn(ConfigFields& fields) {
  YarnSpec yarn;
  yarn.factor = fields.Number("factor", 1, 1e6, std::nullopt);
  // Programs disagree about the value of an absent one.
  yarn.original_max_position_embeddings =
      fields.Number("original_max_position_embeddings", 1,
                    kMaxOriginalPositions, std::nullopt);
  yarn.beta_fast = fields.Number("beta_fast", 1e-6, 1e6, 32);
  yarn.beta_slow = fields.Number("beta_slow", 1e-6, 1e6, 1);
  yarn.mscale = fields.Number("mscale", 0, 100, 1);
  yarn.mscale_all_dim = fields.Number("mscale_all_dim", 0, 100, 0);
  if (yarn.beta_fast < yarn.beta_slow) {
    fields.Fail("beta_fast",
                absl::StrCat(yarn.beta_fast, ", want at least beta_slow, ",
                             yarn.beta_slow));
  }
  if (fields.Get("attention_factor") != nullptr) {
    yarn.attention_factor = fields.Number("attention_factor", 0, 1e6, 1);
  }
  CheckMscales(fields, yarn);
  yarn.truncate = fields.Bool("truncate", true);
  return yarn;
}

std::optional<QueryScaleSpec> ReadQueryScale(ConfigFields& fields,
                                             const Family& family) {
  QueryScaleSpec scale;
  scale.beta = fields.Number("llama_4_scaling_beta", 0, 1e6, 0);
  if (scale.beta == 0) return std::nullopt;
  if (!family.scales_queries) {
    fields.Fail(
        "llama_4_scaling_beta",
        absl::StrCat(scale.beta, ", want none in ", family.architecture));
  }
  scale.original_max_position_embeddings =
      fields.Number("original_max_position_embeddings", 1,
                    kMaxOriginalPositions, std::nullopt);
  return scale;
}

absl::StatusOr<RopeMember> ParseRopeMember(absl::string_view name,
                                           const nlohmann::json& object,
                                           const Family& family,
                                           const ModelSpec& spec,
                                           std::vector<std::string>* unread) {
  const std::string prefix = absl::StrCat("config.json: ", name);
  if (!object.is_object()) {
    return absl::InvalidArgumentError(absl::StrCat(
        prefix, ": ", ShowConfigValue(object), ", want an object"));
  }
  for (const auto& [key, value] : object.items()) {
    if (!value.is_object()) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(prefix, ".", key, ": ", ShowConfigValue(value),
                     ": parameters of one layer type are not supported, want "
                     "one set for all layers"));
  }
  ConfigFields fields(object, absl::StrCat(prefix, "."));
  RopeMember member;
  if (fields.Get("rope_theta") != nullptr) {
    member.theta = fields.Number("rope_theta", kLowestTheta, kHighestTheta, 1);
  }
  const std::string type = ReadRopeType(fields);
  CheckWholeRotation(fields, family, spec);
  if (type == "yarn") member.yarn = ReadYarn(fields);
  member.query_scale = ReadQueryScale(fields, family);
  fields.Ignore({"max_position_embeddings"});
  const std::vector<std::string> rest = fields.Unread();
  if (type.empty() && !rest.empty()) {
    fields.Fail("rope_type", absl::StrCat("missing beside ", rest.front(),
                                          ", want \"yarn\" or \"default\""));
  }
  for (const std::string& key : rest) {
    unread->push_back(absl::StrCat(name, ".", key));
  }
  RF_RETURN_IF_ERROR(fields.status());
  return member;
}

// Returns apply_scale of params.json's yarn; false without params.json.
absl::StatusOr<bool> ReadApplyScale(absl::string_view params) {
  if (params.empty()) return false;
  RF_ASSIGN_OR_RETURN(const nlohmann::json config,
                      ParseConfigObject(params, "params.json"));
  ConfigFields fields(config, "params.json: ");
  const nlohmann::json* yarn = fields.Get("yarn");
  if (yarn == nullptr) return false;
  if (!yarn->is_object()) {
    fields.Fail("yarn",
                absl::StrCat(ShowConfigValue(*yarn), ", want an object"));
    return fields.status();
  }
  ConfigFields members(*yarn, "params.json: yarn.");
  const bool apply = members.Bool("apply_scale", false);
  RF_RETURN_IF_ERROR(members.status());
  return apply;
}

}  // namespace

absl::Status ParseRope(ConfigFields& config, const Family& family,
                       absl::string_view params, ModelSpec* spec,
                       std::vector<std::string>* unread) {
  // Values of theta and their places.
  std::vector<std::pair<std::string, double>> thetas;
  if (config.Get("rope_theta") != nullptr) {
    thetas.emplace_back("rope_theta", config.Number("rope_theta", kLowestTheta,
                                                    kHighestTheta, 1));
  }
  CheckWholeRotation(config, family, *spec);
  RF_RETURN_IF_ERROR(config.status());
  bool has_member = false;
  for (const char* name : {"rope_parameters", "rope_scaling"}) {
    const nlohmann::json* object = config.Get(name);
    if (object == nullptr || (object->is_object() && object->empty())) continue;
    RF_ASSIGN_OR_RETURN(const RopeMember member,
                        ParseRopeMember(name, *object, family, *spec, unread));
    if (member.theta.has_value()) {
      thetas.emplace_back(absl::StrCat(name, ".rope_theta"), *member.theta);
    }
    if (has_member && (member.yarn != spec->rope_scaling ||
                       member.query_scale != spec->query_scale)) {
      config.Fail(name, absl::StrCat(ShowConfigValue(*object),
                                     ", but rope_parameters differs, want one "
                                     "of the two"));
    }
    spec->rope_scaling = member.yarn;
    spec->query_scale = member.query_scale;
    has_member = true;
  }
  for (const auto& [place, theta] : thetas) {
    if (theta == thetas.front().second) continue;
    config.Fail(place, absl::StrCat(theta, ", but ", thetas.front().first,
                                    " is ", thetas.front().second));
  }
  if (thetas.empty()) {
    config.Fail("rope_theta",
                "missing, want a number here or in rope_parameters");
  } else {
    spec->rope_theta = thetas.front().second;
  }
  RF_RETURN_IF_ERROR(config.status());
  if (family.softmax == SoftmaxRule::kByParams &&
      spec->rope_scaling.has_value()) {
    RF_ASSIGN_OR_RETURN(spec->rope_scaling->scales_softmax,
                        ReadApplyScale(params));
  }
  return absl::OkStatus();
}

}  // namespace ringfleet::cluster
