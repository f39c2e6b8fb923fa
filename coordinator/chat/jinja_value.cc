// SPDX-License-Identifier: Apache-2.0
#include "coordinator/chat/jinja_value.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "cluster/process/status_macros.h"
#include "coordinator/tokenizer/utf8.h"

namespace ringfleet::coordinator::jinja {
namespace {

absl::Status TooDeep() {
  return absl::InvalidArgumentError(
      absl::StrCat("a value nests deeper than ", kMaxDepth));
}

// Python's repr: the fewest digits that read back as the same number.
std::string DoubleText(double number) {
  if (std::isnan(number)) return "nan";
  if (std::isinf(number)) return number > 0 ? "inf" : "-inf";
  char buffer[32];
  const auto end = std::to_chars(buffer, buffer + sizeof(buffer), number,
                                 std::chars_format::scientific);
  std::string text(buffer, end.ptr);
  const int exponent = std::stoi(text.substr(text.find('e') + 1));
  if (exponent < -4 || exponent >= 16) return text;
  // Python writes these without exponent.
  const auto fixed = std::to_chars(buffer, buffer + sizeof(buffer), number,
                                   std::chars_format::fixed);
  text.assign(buffer, fixed.ptr);
  if (!absl::StrContains(text, '.')) text += ".0";
  return text;
}

void AppendJsonString(absl::string_view text, std::string* out) {
  out->push_back('"');
  for (const char c : text) {
    switch (c) {
      case '"':
        *out += "\\\"";
        break;
      case '\\':
        *out += "\\\\";
        break;
      case '\n':
        *out += "\\n";
        break;
      case '\r':
        *out += "\\r";
        break;
      case '\t':
        *out += "\\t";
        break;
      case '\b':
        *out += "\\b";
        break;
      case '\f':
        *out += "\\f";
        break;
      default:
        if (static_cast<uint8_t>(c) < 0x20) {
          absl::StrAppend(out, "\\u",
                          absl::Hex(static_cast<uint8_t>(c), absl::kZeroPad4));
        } else {
          out->push_back(c);
        }
    }
  }
  out->push_back('"');
}

int DepthOf(const Value& value) {
  if (const List* list = value.AsList()) return list->depth;
  if (const Dict* dict = value.AsDict()) return dict->depth;
  return 0;
}

}  // namespace

absl::Status Budget::Step() {
  if (++steps_ <= kMaxSteps) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("the template takes more than ", kMaxSteps, " steps"));
}

absl::Status Budget::Work(size_t bytes) {
  if (bytes <= kMaxWorkBytes - work_bytes_) {
    work_bytes_ += bytes;
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("the template builds and searches more than ", kMaxWorkBytes,
                   " bytes of values"));
}

const Value* Dict::Find(absl::string_view key) const {
  const auto found = index.find(key);
  return found == index.end() ? nullptr : &items[found->second].second;
}

Value Value::Missing(absl::string_view name) {
  Value value;
  value.value_ = Undefined{std::string(name.data(), name.size())};
  return value;
}

Value Value::String(std::string text) {
  Value value;
  value.value_ = std::make_shared<const std::string>(std::move(text));
  return value;
}

absl::StatusOr<Value> Value::MakeList(std::vector<Value> items) {
  int depth = 0;
  for (const Value& item : items) depth = std::max(depth, DepthOf(item));
  if (depth >= kMaxDepth) return TooDeep();
  Value value;
  value.value_ =
      std::make_shared<const List>(List{std::move(items), depth + 1});
  return value;
}

absl::StatusOr<Value> Value::MakeDict(
    std::vector<std::pair<std::string, Value>> items) {
  Dict dict;
  dict.depth = 0;
  for (auto& item : items) {
    dict.depth = std::max(dict.depth, DepthOf(item.second));
    const auto inserted = dict.index.emplace(item.first, dict.items.size());
    if (inserted.second) {
      dict.items.push_back(std::move(item));
    } else {
      dict.items[inserted.first->second].second = std::move(item.second);
    }
  }
  if (dict.depth >= kMaxDepth) return TooDeep();
  ++dict.depth;
  Value value;
  value.value_ = std::make_shared<const Dict>(std::move(dict));
  return value;
}

absl::StatusOr<Value> Value::FromJson(const nlohmann::ordered_json& json) {
  return FromJson(json, 0);
}

absl::StatusOr<Value> Value::FromJson(const nlohmann::ordered_json& json,
                                      int depth) {
  if (depth > kMaxDepth) return TooDeep();
  switch (json.type()) {
    case nlohmann::ordered_json::value_t::null:
      return Value();
    case nlohmann::ordered_json::value_t::boolean:
      return Value(json.get<bool>());
    case nlohmann::ordered_json::value_t::number_integer:
      return Value(json.get<int64_t>());
    case nlohmann::ordered_json::value_t::number_unsigned:
      if (json.get<uint64_t>() > INT64_MAX) {
        return absl::InvalidArgumentError(absl::StrCat(
            "integer ", json.get<uint64_t>(), ", want at most ", INT64_MAX));
      }
      return Value(json.get<int64_t>());
    case nlohmann::ordered_json::value_t::number_float:
      return Value(json.get<double>());
    case nlohmann::ordered_json::value_t::string:
      return String(json.get<std::string>());
    case nlohmann::ordered_json::value_t::array: {
      std::vector<Value> items;
      for (const auto& item : json) {
        RF_ASSIGN_OR_RETURN(Value value, FromJson(item, depth + 1));
        items.push_back(std::move(value));
      }
      return MakeList(std::move(items));
    }
    case nlohmann::ordered_json::value_t::object: {
      std::vector<std::pair<std::string, Value>> items;
      for (const auto& item : json.items()) {
        RF_ASSIGN_OR_RETURN(Value value, FromJson(item.value(), depth + 1));
        items.emplace_back(item.key(), std::move(value));
      }
      return MakeDict(std::move(items));
    }
    default:
      return absl::InvalidArgumentError(
          absl::StrCat("a JSON value of type ", json.type_name()));
  }
}

Namespace* Value::AsNamespace() const {
  const auto* found = std::get_if<Namespace*>(&value_);
  return found == nullptr ? nullptr : *found;
}

bool Value::ToNumber(double* number) const {
  if (AsBool()) {
    *number = *AsBool() ? 1 : 0;
  } else if (AsInt()) {
    *number = static_cast<double>(*AsInt());
  } else if (AsDouble()) {
    *number = *AsDouble();
  } else {
    return false;
  }
  return true;
}

bool Value::IsTrue() const {
  double number;
  if (ToNumber(&number)) return number != 0;
  if (AsString()) return !AsString()->empty();
  if (AsList()) return !AsList()->items.empty();
  if (AsDict()) return !AsDict()->items.empty();
  return !IsUndefined() && !IsNone();
}

const char* Value::TypeName() const {
  static constexpr const char* kNames[] = {
      "undefined", "none", "boolean", "integer",   "float",
      "string",    "list", "mapping", "namespace", "loop"};
  return kNames[value_.index()];
}

absl::StatusOr<std::string> Value::ToText() const {
  if (AsString()) return *AsString();
  if (AsBool()) return std::string(*AsBool() ? "True" : "False");
  if (AsInt()) return absl::StrCat(*AsInt());
  if (AsDouble()) return DoubleText(*AsDouble());
  if (IsNone()) return std::string("None");
  if (IsUndefined()) return std::string();
  return absl::InvalidArgumentError(
      absl::StrCat("a ", TypeName(), " cannot be printed, want tojson"));
}

absl::StatusOr<std::string> Value::ToJson(int64_t indent,
                                          Budget* budget) const {
  std::string out;
  RF_RETURN_IF_ERROR(WriteJson(indent, 0, budget, &out));
  return out;
}

// `margin` is the indentation of the line that the value begins on. The
// recursion is as deep as the value, at most kMaxDepth.
absl::Status Value::WriteJson(int64_t indent, int64_t margin, Budget* budget,
                              std::string* out) const {
  RF_RETURN_IF_ERROR(budget->Step());
  if (AsString()) {
    RF_RETURN_IF_ERROR(budget->Work(AsString()->size()));
    AppendJsonString(*AsString(), out);
    return absl::OkStatus();
  }
  if (AsBool() || IsNone()) {
    *out += IsNone() ? "null" : *AsBool() ? "true" : "false";
    return absl::OkStatus();
  }
  if (AsInt() || AsDouble()) {
    RF_ASSIGN_OR_RETURN(const std::string text, ToText());
    *out += text;
    return absl::OkStatus();
  }
  const List* list = AsList();
  const Dict* dict = AsDict();
  if (list == nullptr && dict == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("tojson of a value that is ", TypeName()));
  }
  const size_t size = list ? list->items.size() : dict->items.size();
  *out += list ? '[' : '{';
  const int64_t inner = margin + indent;
  for (size_t i = 0; i < size; ++i) {
    if (i > 0) *out += indent < 0 ? ", " : ",";
    if (indent >= 0) {
      RF_RETURN_IF_ERROR(budget->Work(inner));
      *out += '\n';
      out->append(inner, ' ');
    }
    if (dict) {
      RF_RETURN_IF_ERROR(budget->Work(dict->items[i].first.size()));
      AppendJsonString(dict->items[i].first, out);
      *out += ": ";
    }
    const Value& item = list ? list->items[i] : dict->items[i].second;
    RF_RETURN_IF_ERROR(item.WriteJson(indent, inner, budget, out));
  }
  if (indent >= 0 && size > 0) {
    *out += '\n';
    out->append(margin, ' ');
  }
  *out += list ? ']' : '}';
  return absl::OkStatus();
}

absl::StatusOr<std::vector<Value>> Value::ToItems(Budget* budget) const {
  std::vector<Value> items;
  if (AsList()) {
    RF_RETURN_IF_ERROR(budget->Work(AsList()->items.size() * sizeof(Value)));
    items = AsList()->items;
  } else if (AsDict()) {
    for (const auto& item : AsDict()->items) {
      RF_RETURN_IF_ERROR(budget->Work(sizeof(Value) + item.first.size()));
      items.push_back(String(item.first));
    }
  } else if (AsString()) {
    RF_RETURN_IF_ERROR(budget->Work(AsString()->size() * sizeof(Value)));
    for (const absl::string_view character : Characters(*AsString())) {
      items.push_back(String(std::string(character.data(), character.size())));
    }
  } else if (!IsUndefined()) {
    return absl::InvalidArgumentError(
        absl::StrCat("a value that is ", TypeName(), " has no items"));
  }
  return items;
}

absl::StatusOr<bool> Equal(const Value& a, const Value& b, Budget* budget) {
  RF_RETURN_IF_ERROR(budget->Step());
  double x, y;
  if (a.AsInt() && b.AsInt()) return *a.AsInt() == *b.AsInt();
  if (a.ToNumber(&x) && b.ToNumber(&y)) return x == y;
  if (a.AsString() && b.AsString()) {
    if (a.AsString()->size() != b.AsString()->size()) return false;
    RF_RETURN_IF_ERROR(budget->Work(a.AsString()->size()));
    return *a.AsString() == *b.AsString();
  }
  if (a.AsList() && b.AsList()) {
    const auto& left = a.AsList()->items;
    const auto& right = b.AsList()->items;
    if (left.size() != right.size()) return false;
    for (size_t i = 0; i < left.size(); ++i) {
      RF_ASSIGN_OR_RETURN(const bool same, Equal(left[i], right[i], budget));
      if (!same) return false;
    }
    return true;
  }
  if (a.AsDict() && b.AsDict()) {
    if (a.AsDict()->items.size() != b.AsDict()->items.size()) return false;
    for (const auto& item : a.AsDict()->items) {
      const Value* other = b.AsDict()->Find(item.first);
      if (other == nullptr) return false;
      RF_ASSIGN_OR_RETURN(const bool same, Equal(item.second, *other, budget));
      if (!same) return false;
    }
    return true;
  }
  if (a.AsNamespace()) return a.AsNamespace() == b.AsNamespace();
  return (a.IsNone() && b.IsNone()) || (a.IsUndefined() && b.IsUndefined());
}

absl::StatusOr<bool> Less(const Value& a, const Value& b, Budget* budget) {
  double x, y;
  if (a.AsInt() && b.AsInt()) return *a.AsInt() < *b.AsInt();
  if (a.ToNumber(&x) && b.ToNumber(&y)) return x < y;
  // Bytes of UTF-8 are in the order of code points.
  if (a.AsString() && b.AsString()) {
    RF_RETURN_IF_ERROR(budget->Work(a.AsString()->size()));
    return *a.AsString() < *b.AsString();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("a comparison of ", a.TypeName(), " with ", b.TypeName()));
}

absl::StatusOr<bool> Contains(const Value& container, const Value& item,
                              Budget* budget) {
  if (container.AsString()) {
    if (item.AsString() == nullptr) {
      return absl::InvalidArgumentError(absl::StrCat(
          "\"in\" a string needs a string, not ", item.TypeName()));
    }
    RF_RETURN_IF_ERROR(budget->Work(container.AsString()->size()));
    return absl::StrContains(*container.AsString(), *item.AsString());
  }
  if (container.AsDict()) {
    return item.AsString() && container.AsDict()->Find(*item.AsString());
  }
  if (container.AsList()) {
    for (const Value& candidate : container.AsList()->items) {
      RF_ASSIGN_OR_RETURN(const bool same, Equal(candidate, item, budget));
      if (same) return true;
    }
    return false;
  }
  if (container.IsUndefined()) return false;
  return absl::InvalidArgumentError(
      absl::StrCat("\"in\" a value that is ", container.TypeName()));
}

}  // namespace ringfleet::coordinator::jinja
