// SPDX-License-Identifier: Apache-2.0
#include "coordinator/http/request_fields.h"

#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"

namespace ringfleet::coordinator {

const nlohmann::ordered_json* RequestFields::Find(const char* name) const {
  const auto it = object_.find(name);
  return it == object_.end() || it->is_null() ? nullptr : &*it;
}

void RequestFields::Fail(ApiError error) {
  if (!error_.has_value()) error_ = std::move(error);
}

void RequestFields::FailField(const char* name, std::string message,
                              std::string code) {
  ApiError error = BadField(absl::StrCat(path_, name), std::move(message));
  error.code = std::move(code);
  Fail(std::move(error));
}

std::optional<double> RequestFields::Number(const char* name, double least,
                                            double most) {
  const Json* const value = Find(name);
  if (value == nullptr) return std::nullopt;
  const double number = value->is_number()
                            ? value->get<double>()
                            : std::numeric_limits<double>::quiet_NaN();
  if (number >= least && number <= most) return number;
  FailField(name,
            absl::StrCat(
                value->is_number() ? absl::StrCat(number) : value->type_name(),
                ", want a number from ", least, " to ", most),
            value->is_number() ? kInvalidValue : kInvalidType);
  return std::nullopt;
}

std::optional<int64_t> RequestFields::Integer(const char* name, int64_t least,
                                              int64_t most) {
  const Json* const value = Find(name);
  if (value == nullptr) return std::nullopt;
  std::optional<int64_t> integer;
  if (value->is_number_float()) {
    // Some clients write 5 as 5.0.
    const double number = value->get<double>();
    if (number == std::floor(number) && std::abs(number) < 0x1p63) {
      integer = static_cast<int64_t>(number);
    }
  } else if (value->is_number_integer() &&
             (!value->is_number_unsigned() ||
              value->get<uint64_t>() <=
                  static_cast<uint64_t>(std::numeric_limits<int64_t>::max()))) {
    integer = value->get<int64_t>();
  }
  if (integer.has_value() && *integer >= least && *integer <= most) {
    return integer;
  }
  FailField(
      name,
      absl::StrCat(value->is_number() ? value->dump() : value->type_name(),
                   ", want an integer from ", least, " to ", most),
      value->is_number() ? kInvalidValue : kInvalidType);
  return std::nullopt;
}

bool RequestFields::Flag(const char* name, bool absent) {
  const Json* const value = Find(name);
  if (value == nullptr) return absent;
  if (value->is_boolean()) return value->get<bool>();
  FailField(name, absl::StrCat(value->type_name(), ", want true or false"),
            kInvalidType);
  return absent;
}

std::optional<std::string> RequestFields::Text(const char* name) {
  const Json* const value = Find(name);
  if (value == nullptr) return std::nullopt;
  if (value->is_string()) return value->get<std::string>();
  FailField(name, absl::StrCat(value->type_name(), ", want a string"),
            kInvalidType);
  return std::nullopt;
}

std::vector<uint32_t> RequestFields::Ids(const char* name, size_t most,
                                         uint32_t limit) {
  const Json* const value = Find(name);
  if (value == nullptr) return {};
  if (!value->is_array() || value->size() > most) {
    FailField(name, absl::StrCat("want a list of at most ", most, " ids"));
    return {};
  }
  std::vector<uint32_t> ids;
  for (const Json& id : *value) {
    if (!id.is_number_unsigned() || id.get<uint64_t>() >= limit) {
      FailField(name, absl::StrCat("entry ", ids.size(),
                                   " is no id, want integers below ", limit));
      return {};
    }
    ids.push_back(id.get<uint32_t>());
  }
  return ids;
}

void RequestFields::Refuse(const char* name, double neutral) {
  const Json* const value = Find(name);
  if (value == nullptr) return;
  if (value->is_number()) {
    if (value->get<double>() == neutral) return;
  } else if (value->is_boolean()) {
    if (!value->get<bool>()) return;
  } else if (value->is_string() ? value->get_ref<const std::string&>().empty()
                                : value->empty()) {
    return;
  }
  Fail(UnsupportedField(absl::StrCat(path_, name)));
}

}  // namespace ringfleet::coordinator
