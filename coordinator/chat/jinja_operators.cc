// SPDX-License-Identifier: Apache-2.0
#include "coordinator/chat/jinja_operators.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cluster/process/status_macros.h"
#include "coordinator/tokenizer/utf8.h"

namespace ringfleet::coordinator::jinja {
namespace {

// An integer, or a boolean as one.
bool ToInteger(const Value& value, int64_t* integer) {
  if (value.AsBool()) {
    *integer = *value.AsBool();
  } else if (value.AsInt()) {
    *integer = *value.AsInt();
  } else {
    return false;
  }
  return true;
}

absl::Status TypeError(absl::string_view op, const Value& a, const Value& b) {
  const auto describe = [](const Value& value) {
    const Undefined* missing = value.AsUndefined();
    return missing ? absl::StrCat("undefined \"", missing->name, "\"")
                   : std::string(value.TypeName());
  };
  return absl::InvalidArgumentError(
      absl::StrCat("operator ", op, " on ", describe(a), " and ", describe(b)));
}

absl::StatusOr<Value> Integers(absl::string_view op, int64_t a, int64_t b) {
  int64_t result = 0;
  bool overflow = false;
  if (op == "+") {
    overflow = __builtin_add_overflow(a, b, &result);
  } else if (op == "-") {
    overflow = __builtin_sub_overflow(a, b, &result);
  } else if (op == "*") {
    overflow = __builtin_mul_overflow(a, b, &result);
  } else if (b == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("operator ", op, " by zero"));
  } else if (b == -1) {  // Apart, as INT64_MIN / -1 traps.
    if (op == "//") overflow = __builtin_sub_overflow(int64_t{0}, a, &result);
  } else {
    // Python rounds the quotient down, C++ towards zero.
    const int64_t remainder = a % b;
    const bool adjust = remainder != 0 && (remainder < 0) != (b < 0);
    result =
        op == "//" ? a / b - (adjust ? 1 : 0) : remainder + (adjust ? b : 0);
  }
  if (overflow) {
    return absl::InvalidArgumentError(
        absl::StrCat(a, " ", op, " ", b, " exceeds 64 bits"));
  }
  return Value(result);
}

absl::StatusOr<Value> Doubles(absl::string_view op, double a, double b) {
  if (op == "+") return Value(a + b);
  if (op == "-") return Value(a - b);
  if (op == "*") return Value(a * b);
  if (b == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("operator ", op, " by zero"));
  }
  if (op == "/") return Value(a / b);
  double remainder = std::fmod(a, b);
  if (remainder != 0 && (remainder < 0) != (b < 0)) remainder += b;
  return op == "%" ? Value(remainder) : Value(std::round((a - remainder) / b));
}

absl::StatusOr<Value> Join(const std::string& a, const std::string& b,
                           Budget* budget) {
  RF_RETURN_IF_ERROR(budget->Work(a.size() + b.size()));
  return Value::String(absl::StrCat(a, b));
}

absl::StatusOr<Value> Repeat(const std::string& text, int64_t count,
                             Budget* budget) {
  if (count <= 0 || text.empty()) return Value::String("");
  if (static_cast<uint64_t>(count) > kMaxWorkBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("a string repeated ", count, " times"));
  }
  RF_RETURN_IF_ERROR(budget->Work(text.size() * count));
  std::string out;
  for (int64_t i = 0; i < count; ++i) out += text;
  return Value::String(std::move(out));
}

// A bound of a slice, or `fallback` when it is open; clamped to [low, high]
// after a negative one counts from the end.
absl::StatusOr<int64_t> Bound(const Value& value, int64_t size, int64_t low,
                              int64_t high, int64_t fallback) {
  if (value.IsNone() || value.IsUndefined()) return fallback;
  int64_t bound;
  if (!ToInteger(value, &bound)) {
    return absl::InvalidArgumentError(
        absl::StrCat("a slice bound that is ", value.TypeName()));
  }
  if (bound < 0) bound = std::max(bound, -size - 1) + size;
  return std::clamp(bound, low, high);
}

Value LoopAttribute(const Loop& loop, absl::string_view name) {
  if (name == "index0") return Value(loop.index0);
  if (name == "index") return Value(loop.index0 + 1);
  if (name == "revindex") return Value(loop.length - loop.index0);
  if (name == "revindex0") return Value(loop.length - loop.index0 - 1);
  if (name == "first") return Value(loop.index0 == 0);
  if (name == "last") return Value(loop.index0 + 1 == loop.length);
  if (name == "length") return Value(loop.length);
  return Value::Missing(name);
}

}  // namespace

absl::StatusOr<Value> Arithmetic(absl::string_view op, const Value& a,
                                 const Value& b, Budget* budget) {
  if (op == "~") {
    RF_ASSIGN_OR_RETURN(const std::string left, a.ToText());
    RF_ASSIGN_OR_RETURN(const std::string right, b.ToText());
    return Join(left, right, budget);
  }
  int64_t i, j;
  double x, y;
  if (op != "/" && ToInteger(a, &i) && ToInteger(b, &j)) {
    return Integers(op, i, j);
  }
  if (a.ToNumber(&x) && b.ToNumber(&y)) return Doubles(op, x, y);
  if (op == "+" && a.AsString() && b.AsString()) {
    return Join(*a.AsString(), *b.AsString(), budget);
  }
  if (op == "+" && a.AsList() && b.AsList()) {
    std::vector<Value> items = a.AsList()->items;
    const auto& more = b.AsList()->items;
    RF_RETURN_IF_ERROR(
        budget->Work((items.size() + more.size()) * sizeof(Value)));
    items.insert(items.end(), more.begin(), more.end());
    return Value::MakeList(std::move(items));
  }
  if (op == "*" && a.AsString() && ToInteger(b, &j)) {
    return Repeat(*a.AsString(), j, budget);
  }
  if (op == "*" && ToInteger(a, &i) && b.AsString()) {
    return Repeat(*b.AsString(), i, budget);
  }
  return TypeError(op, a, b);
}

absl::StatusOr<Value> Negative(const Value& value) {
  int64_t integer;
  if (ToInteger(value, &integer)) return Integers("-", 0, integer);
  if (value.AsDouble()) return Value(-*value.AsDouble());
  return absl::InvalidArgumentError(
      absl::StrCat("operator - on ", value.TypeName()));
}

absl::StatusOr<Value> Subscript(const Value& object, const Value& key,
                                Budget* budget) {
  if (const Undefined* missing = object.AsUndefined()) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", missing->name, "\" is undefined"));
  }
  if (const std::string* name = key.AsString()) {
    if (object.AsDict()) {
      const Value* found = object.AsDict()->Find(*name);
      return found ? *found : Value::Missing(*name);
    }
    if (Namespace* space = object.AsNamespace()) {
      const auto found = space->attributes.find(*name);
      return found == space->attributes.end() ? Value::Missing(*name)
                                              : found->second;
    }
    if (object.AsLoop()) {
      Value value = LoopAttribute(*object.AsLoop(), *name);
      if (!value.IsUndefined()) return value;
      return absl::InvalidArgumentError(
          absl::StrCat("loop.", *name, " is not supported"));
    }
    return Value::Missing(*name);
  }
  int64_t index;
  if (!ToInteger(key, &index)) return Value::Missing("subscript");
  if (object.AsList()) {
    const auto& items = object.AsList()->items;
    const auto size = static_cast<int64_t>(items.size());
    if (index < 0) index += size;
    if (index >= 0 && index < size) return items[index];
  } else if (object.AsString()) {
    RF_RETURN_IF_ERROR(
        budget->Work(object.AsString()->size() * sizeof(absl::string_view)));
    const auto characters = Characters(*object.AsString());
    const auto size = static_cast<int64_t>(characters.size());
    if (index < 0) index += size;
    if (index >= 0 && index < size) {
      const absl::string_view character = characters[index];
      return Value::String(std::string(character.data(), character.size()));
    }
  }
  return Value::Missing(absl::StrCat("[", index, "]"));
}

absl::StatusOr<Value> Slice(const Value& object, const Value& start,
                            const Value& stop, const Value& step,
                            Budget* budget) {
  if (!object.AsString() && !object.AsList()) {
    return absl::InvalidArgumentError(
        absl::StrCat("a slice of a value that is ", object.TypeName()));
  }
  RF_ASSIGN_OR_RETURN(const std::vector<Value> items, object.ToItems(budget));
  const auto size = static_cast<int64_t>(items.size());
  int64_t by = 1;
  if (!step.IsNone() && !step.IsUndefined() && !ToInteger(step, &by)) {
    return absl::InvalidArgumentError(
        absl::StrCat("a slice step that is ", step.TypeName()));
  }
  by =
      std::clamp(by, -size - 1, size + 1);  // A longer step takes one item too.
  if (by == 0) return absl::InvalidArgumentError("a slice with step 0");
  const int64_t low = by > 0 ? 0 : -1;
  const int64_t high = by > 0 ? size : size - 1;
  RF_ASSIGN_OR_RETURN(const int64_t begin,
                      Bound(start, size, low, high, by > 0 ? low : high));
  RF_ASSIGN_OR_RETURN(const int64_t end,
                      Bound(stop, size, low, high, by > 0 ? high : low));
  std::vector<Value> taken;
  for (int64_t i = begin; by > 0 ? i < end : i > end; i += by) {
    taken.push_back(items[i]);
  }
  if (object.AsList()) return Value::MakeList(std::move(taken));
  std::string text;
  for (const Value& character : taken) text += *character.AsString();
  return Value::String(std::move(text));
}

}  // namespace ringfleet::coordinator::jinja
