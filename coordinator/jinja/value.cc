// SPDX-License-Identifier: Apache-2.0
#include "coordinator/jinja/value.h"

#include "absl/strings/str_cat.h"

namespace ringfleet::coordinator::jinja {

Value Value::Boolean(bool b, Origin origin) {
  Value value;
  value.value_ = b;
  value.origin_ = origin;
  return value;
}

Value Value::Int(Integer i, Origin origin) {
  Value value;
  value.value_ = i;
  value.origin_ = origin;
  return value;
}

Value Value::Float(double d, Origin origin) {
  Value value;
  value.value_ = d;
  value.origin_ = origin;
  return value;
}

Value Value::String(Text text) {
  Value value;
  value.value_ = std::make_shared<const Text>(std::move(text));
  return value;
}

Value Value::Markup(Text text) {
  Value value = String(std::move(text));
  value.markup_ = true;
  return value;
}

Value Value::Undefined(std::string problem) {
  Value value;
  value.value_ =
      Missing{std::make_shared<const std::string>(std::move(problem))};
  return value;
}

Value Value::MissingVariable(absl::string_view name) {
  return Undefined(absl::StrCat("\"", name, "\" is undefined"));
}

const std::string* Value::AsUndefined() const {
  const auto* missing = std::get_if<Missing>(&value_);
  return missing == nullptr ? nullptr : missing->problem.get();
}

const Text* Value::AsText() const {
  const auto* text = std::get_if<std::shared_ptr<const Text>>(&value_);
  return text == nullptr ? nullptr : text->get();
}

const std::string* Value::AsString() const {
  const Text* text = AsText();
  return text == nullptr ? nullptr : &text->bytes();
}

bool Value::ToNumber(double* number) const {
  Integer integer;
  if (ToInteger(&integer)) {
    *number = static_cast<double>(integer);
  } else if (AsDouble()) {
    *number = *AsDouble();
  } else {
    return false;
  }
  return true;
}

bool Value::ToInteger(Integer* integer) const {
  if (AsBool()) {
    *integer = *AsBool() ? 1 : 0;
  } else if (AsInt()) {
    *integer = *AsInt();
  } else {
    return false;
  }
  return true;
}

Origin Value::origin() const { return AsText() ? AsText()->origin() : origin_; }

Value Value::WithOrigin(Origin origin) const {
  Value value = *this;
  value.origin_ = origin;
  return value;
}

bool Value::IsTrue() const {
  double number;
  if (ToNumber(&number)) return number != 0;
  if (AsText()) return !AsText()->empty();
  if (const List* list = AsList()) {
    return list->kind == List::kIterator || !list->items.empty();
  }
  if (AsDict()) return !AsDict()->items.empty();
  return !IsUndefined() && !IsNone();
}

const char* Value::TypeName() const {
  if (markup_) return "Markup";
  if (const List* list = AsList()) {
    static constexpr const char* kLists[] = {
        "list",      "tuple",     "tuple",       "range",
        "generator", "dict_keys", "dict_values", "dict_items"};
    return kLists[list->kind];
  }
  static constexpr const char* kNames[] = {
      "NoneType", "Undefined", "bool",    "int",       "float",
      "str",      "list",      "dict",    "Namespace", "LoopContext",
      "Macro",    "method",    "function"};
  return kNames[value_.index()];
}

const Value* Dict::Find(absl::string_view key) const {
  const auto found = index.find(StringKey(key));
  return found == index.end() ? nullptr : &items[found->second].second;
}

void Dict::Set(std::string hash_key, Value key, Value value) {
  const auto inserted = index.emplace(std::move(hash_key), items.size());
  if (inserted.second) {
    items.emplace_back(std::move(key), std::move(value));
  } else {
    items[inserted.first->second].second = std::move(value);
  }
}

void Dict::Set(absl::string_view key, Value value) {
  Set(StringKey(key), Value::Literal(key), std::move(value));
}

std::string Dict::StringKey(absl::string_view key) {
  return absl::StrCat("s", key);
}

}  // namespace ringfleet::coordinator::jinja
