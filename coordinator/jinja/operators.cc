// SPDX-License-Identifier: Apache-2.0
#include "coordinator/jinja/operators.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cluster/process/status_macros.h"
#include "coordinator/jinja/compare.h"
#include "coordinator/jinja/format.h"
#include "coordinator/jinja/integer.h"
#include "coordinator/jinja/methods.h"
#include "coordinator/jinja/print.h"
#include "coordinator/tokenizer/utf8.h"

namespace ringfleet::coordinator::jinja {
namespace {

absl::Status TypeError(absl::string_view op, const Value& a, const Value& b) {
  for (const Value* value : {&a, &b}) {
    if (value->IsUndefined()) return UndefinedOr(*value, "");
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "operator ", op, " on ", a.TypeName(), " and ", b.TypeName()));
}

absl::Status ByZero(absl::string_view op) {
  return absl::InvalidArgumentError(absl::StrCat("operator ", op, " by zero"));
}

// The quotient and the remainder of Python's divmod.
std::pair<double, double> FloatDivmod(double a, double b) {
  double remainder = std::fmod(a, b);
  double quotient = (a - remainder) / b;
  if (remainder != 0) {
    if ((b < 0) != (remainder < 0)) {
      remainder += b;
      quotient -= 1;
    }
  } else {
    remainder = std::copysign(0.0, b);
  }
  if (quotient == 0) return {std::copysign(0.0, a / b), remainder};
  const double floor = std::floor(quotient);
  return {quotient - floor > 0.5 ? floor + 1 : floor, remainder};
}

absl::StatusOr<double> Floats(absl::string_view op, double a, double b) {
  if (op == "+") return a + b;
  if (op == "-") return a - b;
  if (op == "*") return a * b;
  if (op == "**") {
    if (a == 0 && b < 0) return ByZero(op);
    const double power = std::pow(a, b);
    if (std::isfinite(power) || !std::isfinite(a) || !std::isfinite(b)) {
      return power;
    }
    return absl::InvalidArgumentError(absl::StrCat(
        DoubleText(a), " ** ", DoubleText(b), " is no finite number"));
  }
  if (b == 0) return ByZero(op);
  if (op == "/") return a / b;
  const auto [quotient, remainder] = FloatDivmod(a, b);
  return op == "%" ? remainder : quotient;
}

// A string joined with another: Markup escapes the one that is not.
Text Escaped(const Value& value, bool markup) {
  return markup && !value.IsMarkup() ? EscapeHtml(*value.AsText())
                                     : *value.AsText();
}

absl::StatusOr<Value> Join(const Value& a, const Value& b, Context* context) {
  RF_RETURN_IF_ERROR(context->Work(a.AsText()->size() + b.AsText()->size()));
  const bool markup = a.IsMarkup() || b.IsMarkup();
  Text joined = Escaped(a, markup);
  joined.Append(Escaped(b, markup));
  return markup ? Value::Markup(std::move(joined))
                : Value::String(std::move(joined));
}

absl::StatusOr<Value> JoinLists(const List& a, const List& b,
                                Context* context) {
  RF_RETURN_IF_ERROR(context->WorkOnItems(a.items.size() + b.items.size()));
  std::vector<Value> items = a.items;
  items.insert(items.end(), b.items.begin(), b.items.end());
  return context->NewList(std::move(items), a.kind);
}

// Checks the product of sizes before anything is built.
absl::Status CheckRepeat(absl::string_view what, size_t size, int64_t count,
                         Context* context) {
  if (size > 0 && static_cast<uint64_t>(count) > kMaxWorkBytes / size) {
    return absl::InvalidArgumentError(
        absl::StrCat(what, " of ", size, " bytes repeated ", count,
                     " times, want at most ", kMaxWorkBytes, " bytes"));
  }
  return context->Work(size * count);
}

absl::StatusOr<Value> Repeat(const Value& value, Integer times,
                             Context* context) {
  const int64_t count = std::max<int64_t>(Clamped(times), 0);
  if (const Text* text = value.AsText()) {
    RF_RETURN_IF_ERROR(CheckRepeat("a string", text->size(), count, context));
    Text out;
    for (int64_t i = 0; i < count && !text->empty(); ++i) out.Append(*text);
    return value.IsMarkup() ? Value::Markup(std::move(out))
                            : Value::String(std::move(out));
  }
  const List& list = *value.AsList();
  RF_RETURN_IF_ERROR(
      CheckRepeat("a list", list.items.size() * sizeof(Value), count, context));
  std::vector<Value> items;
  for (int64_t i = 0; i < count && !list.items.empty(); ++i) {
    items.insert(items.end(), list.items.begin(), list.items.end());
  }
  return context->NewList(std::move(items), list.kind);
}

// Strings, lists and tuples repeat. A range does not.
bool Repeats(const Value& value) {
  const List* list = value.AsList();
  return value.AsText() || (list && list->kind < List::kRange);
}

absl::StatusOr<Value> OnSequences(absl::string_view op, const Value& a,
                                  const Value& b, Context* context) {
  Integer times;
  if (op == "+" && a.AsText() && b.AsText()) return Join(a, b, context);
  if (op == "+" && a.AsList() && b.AsList()) {
    const List& left = *a.AsList();
    const List& right = *b.AsList();
    const bool lists = left.kind == List::kList && right.kind == List::kList;
    if (lists || (left.IsTuple() && right.IsTuple())) {
      return JoinLists(left, right, context);
    }
  }
  if (op == "*" && Repeats(a) && b.ToInteger(&times)) {
    return Repeat(a, times, context);
  }
  if (op == "*" && a.ToInteger(&times) && Repeats(b)) {
    return Repeat(b, times, context);
  }
  if (op == "%" && a.AsText()) return FormatPercent(a, b, context);
  return TypeError(op, a, b);
}

// A bound of a slice, or `fallback` when it is open; clamped to [low, high]
// after a negative one counts from the end.
absl::StatusOr<int64_t> Bound(const Value& value, int64_t size, int64_t low,
                              int64_t high, int64_t fallback) {
  if (value.IsNone()) return fallback;
  Integer integer;
  if (!value.ToInteger(&integer)) {
    return UndefinedOr(
        value, absl::StrCat("a slice bound of type ", value.TypeName()));
  }
  int64_t bound = Clamped(integer);
  if (bound < 0) bound = std::max(bound, -size - 1) + size;
  return std::clamp(bound, low, high);
}

// The indices that a slice takes.
std::vector<int64_t> Taken(int64_t begin, int64_t end, int64_t by) {
  std::vector<int64_t> taken;
  for (int64_t i = begin; by > 0 ? i < end : i > end; i += by) {
    taken.push_back(i);
  }
  return taken;
}

Value Missing(const Value& object, const Value& key) {
  const std::string* name = key.AsString();
  Integer index;
  const std::string shown = name                    ? *name
                            : key.ToInteger(&index) ? IntegerText(index)
                                                    : key.TypeName();
  return Value::Undefined(
      absl::StrCat("a ", object.TypeName(), " has no \"", shown, "\""));
}

// object[key], or nothing where Python raises a TypeError or a LookupError.
absl::StatusOr<absl::optional<Value>> Item(const Value& object,
                                           const Value& key, Context* context) {
  Integer integer;
  if (const Dict* dict = object.AsDict()) {
    const auto hash_key = HashKey(key, context);
    if (!hash_key.ok()) return absl::optional<Value>();
    const auto found = dict->index.find(*hash_key);
    if (found == dict->index.end()) return absl::optional<Value>();
    return absl::make_optional(dict->items[found->second].second);
  }
  if (!key.ToInteger(&integer)) return absl::optional<Value>();
  int64_t index = Clamped(integer);
  if (object.AsList() && object.AsList()->IsSequence()) {
    const auto& items = object.AsList()->items;
    const auto size = static_cast<int64_t>(items.size());
    if (index < 0) index = std::max(index, -size - 1) + size;
    if (index >= 0 && index < size) return absl::make_optional(items[index]);
  } else if (const Text* text = object.AsText()) {
    RF_RETURN_IF_ERROR(context->Work(text->size() * sizeof(absl::string_view)));
    const auto characters = Characters(text->bytes());
    const auto size = static_cast<int64_t>(characters.size());
    if (index < 0) index = std::max(index, -size - 1) + size;
    if (index >= 0 && index < size) {
      const absl::string_view found = characters[index];
      Text part = text->Part(found.data() - text->bytes().data(), found.size());
      return absl::make_optional(object.IsMarkup()
                                     ? Value::Markup(std::move(part))
                                     : Value::String(std::move(part)));
    }
  }
  return absl::optional<Value>();
}

}  // namespace

absl::Status UndefinedOr(const Value& value, absl::string_view problem) {
  return absl::InvalidArgumentError(
      value.IsUndefined() ? absl::string_view(*value.AsUndefined()) : problem);
}

absl::StatusOr<Value> Arithmetic(absl::string_view op, const Value& a,
                                 const Value& b, Context* context) {
  if (op == "~") {
    RF_ASSIGN_OR_RETURN(Text text, ToText(a, context));
    RF_ASSIGN_OR_RETURN(const Text right, ToText(b, context));
    RF_RETURN_IF_ERROR(context->Work(text.size() + right.size()));
    text.Append(right);
    return Value::String(std::move(text));
  }
  Integer i, j;
  double x, y;
  if (!a.ToNumber(&x) || !b.ToNumber(&y)) {
    return OnSequences(op, a, b, context);
  }
  const Origin origin = Either(a.origin(), b.origin());
  if (op != "/" && a.ToInteger(&i) && b.ToInteger(&j) &&
      (op != "**" || j >= 0)) {
    RF_ASSIGN_OR_RETURN(const Integer result, IntegerArithmetic(op, i, j));
    return Value::Int(result, origin);
  }
  RF_ASSIGN_OR_RETURN(const double result, Floats(op, x, y));
  return Value::Float(result, origin);
}

absl::StatusOr<Value> Negative(const Value& value) {
  Integer integer;
  if (value.ToInteger(&integer)) return Value::Int(-integer, value.origin());
  if (value.AsDouble()) {
    return Value::Float(-*value.AsDouble(), value.origin());
  }
  return UndefinedOr(value, absl::StrCat("operator - on ", value.TypeName()));
}

absl::StatusOr<Value> Positive(const Value& value) {
  Integer integer;
  if (value.ToInteger(&integer)) return Value::Int(integer, value.origin());
  if (value.AsDouble()) return value;
  return UndefinedOr(value, absl::StrCat("operator + on ", value.TypeName()));
}

absl::StatusOr<Value> Subscript(const Value& object, const Value& key,
                                Context* context) {
  if (object.IsUndefined()) return UndefinedOr(object, "");
  RF_ASSIGN_OR_RETURN(absl::optional<Value> item, Item(object, key, context));
  if (!item.has_value() && key.AsString()) {
    RF_ASSIGN_OR_RETURN(item, OwnAttribute(object, *key.AsString(), context));
  }
  return item.has_value() ? *std::move(item) : Missing(object, key);
}

absl::StatusOr<Value> Attribute(const Value& object, absl::string_view name,
                                Context* context) {
  if (object.IsUndefined()) return UndefinedOr(object, "");
  RF_ASSIGN_OR_RETURN(absl::optional<Value> found,
                      OwnAttribute(object, name, context));
  if (!found.has_value()) {
    RF_ASSIGN_OR_RETURN(found, Item(object, Value::Literal(name), context));
  }
  return found.has_value() ? *std::move(found)
                           : Missing(object, Value::Literal(name));
}

absl::StatusOr<Value> Slice(const Value& object, const Value& start,
                            const Value& stop, const Value& step,
                            Context* context) {
  const Text* text = object.AsText();
  const List* list = object.AsList();
  if (!text && !(list && list->IsSequence())) {
    return UndefinedOr(
        object, absl::StrCat("a slice of a value of type ", object.TypeName()));
  }
  std::vector<absl::string_view> characters;
  if (text) {
    RF_RETURN_IF_ERROR(context->Work(text->size() * sizeof(absl::string_view)));
    characters = Characters(text->bytes());
  }
  const auto size =
      static_cast<int64_t>(text ? characters.size() : list->items.size());
  Integer integer = 1;
  if (!step.IsNone() && !step.ToInteger(&integer)) {
    return UndefinedOr(step,
                       absl::StrCat("a slice step of type ", step.TypeName()));
  }
  if (integer == 0) return absl::InvalidArgumentError("a slice with step 0");
  // A longer step takes one item too.
  const int64_t by = std::clamp(Clamped(integer), -size - 1, size + 1);
  const int64_t low = by > 0 ? 0 : -1;
  const int64_t high = by > 0 ? size : size - 1;
  RF_ASSIGN_OR_RETURN(const int64_t begin,
                      Bound(start, size, low, high, by > 0 ? low : high));
  RF_ASSIGN_OR_RETURN(const int64_t end,
                      Bound(stop, size, low, high, by > 0 ? high : low));
  if (!text) {
    const std::vector<int64_t> taken = Taken(begin, end, by);
    RF_RETURN_IF_ERROR(context->WorkOnItems(taken.size()));
    std::vector<Value> items;
    for (const int64_t i : taken) items.push_back(list->items[i]);
    List slice;
    slice.kind = list->kind == List::kGroup ? List::kTuple : list->kind;
    slice.items = std::move(items);
    if (list->kind == List::kRange) {
      slice.bounds[0] = list->bounds[0] + begin * list->bounds[2];
      slice.bounds[1] = list->bounds[0] + end * list->bounds[2];
      slice.bounds[2] = list->bounds[2] * by;
    }
    return Value(context->New(std::move(slice)));
  }
  Text part;
  const char* base = text->bytes().data();
  if (by == 1) {
    if (begin < end) {
      const size_t first = characters[begin].data() - base;
      const absl::string_view last = characters[end - 1];
      part = text->Part(first, last.data() + last.size() - base - first);
    }
  } else {
    for (const int64_t i : Taken(begin, end, by)) {
      part.Append(*text, characters[i].data() - base, characters[i].size());
    }
  }
  return object.IsMarkup() ? Value::Markup(std::move(part))
                           : Value::String(std::move(part));
}

absl::StatusOr<Value> MakeRange(Integer start, Integer stop, Integer step,
                                Context* context) {
  if (step == 0) return absl::InvalidArgumentError("range() with step 0");
  const Integer distance = step > 0 ? stop - start : start - stop;
  const Integer size = step > 0 ? step : -step;
  const Integer count = distance > 0 ? (distance - 1) / size + 1 : Integer(0);
  if (count > kMaxRange) {
    return absl::InvalidArgumentError(
        absl::StrCat("range() of ", IntegerText(count),
                     " integers, want at most ", kMaxRange));
  }
  RF_RETURN_IF_ERROR(context->WorkOnItems(Clamped(count)));
  List range;
  range.kind = List::kRange;
  range.bounds[0] = start;
  range.bounds[1] = stop;
  range.bounds[2] = step;
  for (Integer i = 0; i < count; ++i) {
    range.items.push_back(Value::Int(start + i * step));
  }
  return Value(context->New(std::move(range)));
}

}  // namespace ringfleet::coordinator::jinja
