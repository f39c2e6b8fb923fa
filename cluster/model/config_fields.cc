// SPDX-License-Identifier: Apache-2.0
#include "cluster/model/config_fields.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "cluster/model/model_spec.h"
#include "cluster/process/json_depth.h"
#include "cluster/process/status_macros.h"

namespace ringfleet::cluster {

absl::StatusOr<nlohmann::json> ParseConfigObject(absl::string_view json,
                                                 absl::string_view file) {
  if (json.size() > kMaxConfigBytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        file, ": ", json.size(), " bytes, want at most ", kMaxConfigBytes));
  }
  if (json.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(file, " is empty"));
  }
  const absl::Status depth = CheckJsonDepth(json);
  if (!depth.ok()) return Annotate(depth, file);
  try {
    nlohmann::json value = nlohmann::json::parse(json.begin(), json.end());
    if (!value.is_object()) {
      return absl::InvalidArgumentError(absl::StrCat(
          file, ": ", ShowConfigValue(value), ", want a JSON object"));
    }
    return value;
  } catch (const nlohmann::json::exception& e) {
    return absl::InvalidArgumentError(absl::StrCat(file, ": ", e.what()));
  }
}

std::string ShowConfigValue(const nlohmann::json& value) {
  std::string text = value.dump(-1, ' ', /*ensure_ascii=*/true,
                                nlohmann::json::error_handler_t::replace);
  if (text.size() > 80) text = absl::StrCat(text.substr(0, 77), "...");
  return text;
}

void ConfigFields::Fail(absl::string_view field, absl::string_view problem) {
  if (!status_.ok()) return;
  status_ =
      absl::InvalidArgumentError(absl::StrCat(prefix_, field, ": ", problem));
}

const nlohmann::json* ConfigFields::Get(const char* field) {
  asked_.insert(field);
  const auto it = object_.find(field);
  return it == object_.end() || it->is_null() ? nullptr : &*it;
}

int ConfigFields::Int(const char* field, int low, int high,
                      std::optional<int> fallback) {
  const std::optional<double> value =
      Checked(field, low, high, /*integer=*/true, fallback);
  return value.has_value() ? static_cast<int>(*value) : low;
}

double ConfigFields::Number(const char* field, double low, double high,
                            std::optional<double> fallback) {
  return Checked(field, low, high, /*integer=*/false, fallback).value_or(low);
}

bool ConfigFields::Bool(const char* field, bool fallback) {
  const nlohmann::json* value = Get(field);
  if (value == nullptr) return fallback;
  if (!value->is_boolean()) {
    Fail(field, absl::StrCat(ShowConfigValue(*value), ", want true or false"));
    return fallback;
  }
  return value->get<bool>();
}

std::string ConfigFields::String(const char* field,
                                 absl::string_view fallback) {
  const nlohmann::json* value = Get(field);
  if (value == nullptr) return std::string(fallback);
  if (!value->is_string()) {
    Fail(field, absl::StrCat(ShowConfigValue(*value), ", want a string"));
    return std::string(fallback);
  }
  return value->get<std::string>();
}

std::vector<uint32_t> ConfigFields::TokenIds(const char* field,
                                             uint32_t vocab_size,
                                             std::vector<uint32_t> fallback) {
  const nlohmann::json* value = Get(field);
  if (value == nullptr) return fallback;
  std::vector<uint32_t> ids;
  const auto take = [&](const nlohmann::json& id) {
    if (id.is_number_unsigned() && id.get<uint64_t>() < vocab_size) {
      ids.push_back(id.get<uint32_t>());
      return;
    }
    Fail(field, absl::StrCat(ShowConfigValue(id), ", want a token id in 0 to ",
                             vocab_size - 1));
  };
  if (value->is_array()) {
    for (const nlohmann::json& id : *value) take(id);
  } else {
    take(*value);
  }
  return ids;
}

void ConfigFields::Ignore(absl::Span<const absl::string_view> fields) {
  for (const absl::string_view field : fields) {
    asked_.emplace(field.data(), field.size());
  }
}

std::vector<std::string> ConfigFields::Unread() const {
  std::vector<std::string> unread;
  for (const auto& [name, value] : object_.items()) {
    if (!value.is_null() && !asked_.contains(name)) unread.push_back(name);
  }
  return unread;
}

std::optional<double> ConfigFields::Checked(const char* field, double low,
                                            double high, bool integer,
                                            std::optional<double> fallback) {
  const nlohmann::json* value = Get(field);
  const auto border = [&](double x) {
    return integer ? absl::StrCat(static_cast<int64_t>(x)) : ShowConfigValue(x);
  };
  const std::string want =
      absl::StrCat(", want ", integer ? "an integer" : "a number", " in ",
                   border(low), " to ", border(high));
  if (value == nullptr) {
    if (!fallback.has_value()) Fail(field, absl::StrCat("missing", want));
    return fallback;
  }
  if (value->is_number()) {
    const double number = value->get<double>();
    if (number >= low && number <= high &&
        (!integer || number == std::floor(number))) {
      return number;
    }
  }
  Fail(field, absl::StrCat(ShowConfigValue(*value), want));
  return std::nullopt;
}

}  // namespace ringfleet::cluster
