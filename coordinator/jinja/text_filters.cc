// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "cluster/process/status_macros.h"
#include "coordinator/jinja/characters.h"
#include "coordinator/jinja/compare.h"
#include "coordinator/jinja/filters.h"
#include "coordinator/jinja/format.h"
#include "coordinator/jinja/integer.h"
#include "coordinator/jinja/json.h"
#include "coordinator/jinja/operators.h"
#include "coordinator/jinja/print.h"
#include "coordinator/jinja/split.h"
#include "coordinator/jinja/string_methods.h"
#include "coordinator/tokenizer/utf8.h"

namespace ringfleet::coordinator::jinja {
namespace {

// The value as a string, which stays Markup if it is.
absl::StatusOr<Value> SoftText(const FilterCall& call) {
  if (call.value.AsText()) return call.value;
  RF_ASSIGN_OR_RETURN(Text text, ToText(call.value, call.context));
  RF_RETURN_IF_ERROR(call.context->Work(text.size()));
  return Value::String(std::move(text));
}

// The filters that are methods of str: upper, lower, capitalize, trim, center.
absl::StatusOr<Value> FilterByMethod(const FilterCall& call) {
  RF_ASSIGN_OR_RETURN(const Value text, SoftText(call));
  if (call.name == "trim") {
    RF_RETURN_IF_ERROR(call.Bind({"chars"}).status());
    return CallStringMethod(text, "strip", call.arguments, call.context);
  }
  if (call.name == "center") {
    RF_ASSIGN_OR_RETURN(const BoundArguments bound, call.Bind({"width"}));
    return CallStringMethod(text, "center", {{bound.Or(0, Value::Int(80))}, {}},
                            call.context);
  }
  RF_RETURN_IF_ERROR(call.Bind({}).status());
  return CallStringMethod(text, call.name, {}, call.context);
}

// Words begin behind white space and - ( { [ <.
absl::StatusOr<Value> FilterTitle(const FilterCall& call) {
  RF_RETURN_IF_ERROR(call.Bind({}).status());
  RF_ASSIGN_OR_RETURN(const Value value, SoftText(call));
  const Text& text = *value.AsText();
  RF_RETURN_IF_ERROR(call.context->Work(text.size()));
  Text out;
  bool begins = true;
  size_t at = 0;
  for (const absl::string_view character : Characters(text.bytes())) {
    const uint32_t c = CodePoint(character);
    const bool separates = IsPythonSpace(c) || c == '-' || c == '(' ||
                           c == '{' || c == '[' || c == '<';
    std::string changed;
    if (begins) {
      AppendUpper(c, &changed);
    } else {
      AppendLower(c, &changed);
    }
    out.Append(separates ? character : absl::string_view(changed),
               text.OriginAt(at));
    begins = separates;
    at += character.size();
  }
  return Value::String(std::move(out));
}

absl::StatusOr<Value> FilterReplace(const FilterCall& call) {
  RF_ASSIGN_OR_RETURN(const BoundArguments bound,
                      call.Bind({"old", "new", "count"}, 2));
  RF_ASSIGN_OR_RETURN(const Text text, ToText(call.value, call.context));
  RF_ASSIGN_OR_RETURN(const Text old, ToText(bound[0], call.context));
  RF_ASSIGN_OR_RETURN(const Text by, ToText(bound[1], call.context));
  RF_ASSIGN_OR_RETURN(const int64_t count,
                      bound.AbsentOrNone(2) ? -1 : bound.IntegerOr(2, -1));
  RF_ASSIGN_OR_RETURN(Text replaced,
                      Replace(text, old.bytes(), by, count, call.context));
  return Value::String(std::move(replaced));
}

absl::StatusOr<Value> FilterIndent(const FilterCall& call) {
  RF_ASSIGN_OR_RETURN(const BoundArguments bound,
                      call.Bind({"width", "first", "blank"}));
  if (call.value.AsText() == nullptr) {
    return UndefinedOr(call.value, absl::StrCat("indent() of a value of type ",
                                                call.value.TypeName()));
  }
  Text margin;
  if (bound.Has(0) && bound[0].AsText()) {
    margin = *bound[0].AsText();
  } else {
    RF_ASSIGN_OR_RETURN(const int64_t width, bound.IntegerOr(0, 4));
    if (width > 1000) {
      return CallError("indent",
                       absl::StrCat("width ", width, ", want at most 1000"));
    }
    margin =
        Text(std::string(std::max<int64_t>(width, 0), ' '), Origin::kTemplate);
  }
  Text text = *call.value.AsText();
  text.Append("\n", Origin::kTemplate);
  const std::vector<Text> lines = SplitLines(text, /*keep_ends=*/false);
  RF_RETURN_IF_ERROR(
      call.context->Work(text.size() + lines.size() * (margin.size() + 1)));
  Text out;
  if (bound.TruthOr(1, false)) out.Append(margin);
  for (size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) {
      out.Append("\n", Origin::kTemplate);
      if (bound.TruthOr(2, false) || !lines[i].empty()) out.Append(margin);
    }
    out.Append(lines[i]);
  }
  return call.value.IsMarkup() ? Value::Markup(std::move(out))
                               : Value::String(std::move(out));
}

absl::StatusOr<Value> FilterWordcount(const FilterCall& call) {
  RF_RETURN_IF_ERROR(call.Bind({}).status());
  RF_ASSIGN_OR_RETURN(const Value value, SoftText(call));
  RF_RETURN_IF_ERROR(call.context->Work(value.AsText()->size()));
  int64_t count = 0;
  bool in_word = false;
  for (const absl::string_view character : Characters(*value.AsString())) {
    const uint32_t c = CodePoint(character);
    const bool word = IsAlpha(c) || IsDecimal(c) || c == '_';
    count += word && !in_word;
    in_word = word;
  }
  return Value::Int(count);
}

absl::StatusOr<Value> FilterTruncate(const FilterCall& call) {
  RF_ASSIGN_OR_RETURN(const BoundArguments bound,
                      call.Bind({"length", "killwords", "end", "leeway"}));
  RF_ASSIGN_OR_RETURN(const int64_t length, bound.IntegerOr(0, 255));
  RF_ASSIGN_OR_RETURN(const Text end, bound.TextOr(2, "..."));
  RF_ASSIGN_OR_RETURN(const int64_t leeway,
                      bound.AbsentOrNone(3) ? 5 : bound.IntegerOr(3, 5));
  const auto end_size = static_cast<int64_t>(CountCharacters(end.bytes()));
  const Text* text = call.value.AsText();
  if (text == nullptr) {
    // Python asks for the length first.
    RF_ASSIGN_OR_RETURN(const int64_t size, Length(call.value, call.context));
    if (size - leeway <= length) return call.value;
  }
  if (text == nullptr || length < end_size || leeway < 0) {
    return UndefinedOr(
        call.value,
        absl::StrCat("truncate() of a ", call.value.TypeName(), " to ", length,
                     " characters with leeway ", leeway));
  }
  RF_RETURN_IF_ERROR(
      call.context->Work(text->size() * sizeof(absl::string_view)));
  const auto characters = Characters(text->bytes());
  const auto size = static_cast<int64_t>(characters.size());
  if (size - leeway <= length) return call.value;
  const int64_t kept = std::min(length - end_size, size);
  size_t bytes = 0;
  for (int64_t i = 0; i < kept; ++i) bytes += characters[i].size();
  Text out = text->Part(0, bytes);
  if (!bound.TruthOr(1, false)) out = SplitAt(out, " ", 1, true)[0];
  out.Append(end);
  return Value::String(std::move(out));
}

absl::StatusOr<Value> FilterString(const FilterCall& call) {
  RF_RETURN_IF_ERROR(call.Bind({}).status());
  return SoftText(call);
}

absl::StatusOr<Value> FilterSafe(const FilterCall& call) {
  RF_RETURN_IF_ERROR(call.Bind({}).status());
  RF_ASSIGN_OR_RETURN(const Value text, SoftText(call));
  return Value::Markup(*text.AsText());
}

// escape, e and forceescape.
absl::StatusOr<Value> FilterEscape(const FilterCall& call) {
  RF_RETURN_IF_ERROR(call.Bind({}).status());
  if (call.value.IsMarkup() && call.name != "forceescape") return call.value;
  RF_ASSIGN_OR_RETURN(const Value text, SoftText(call));
  RF_RETURN_IF_ERROR(call.context->Work(text.AsText()->size() * 6));
  return Value::Markup(EscapeHtml(*text.AsText()));
}

absl::StatusOr<Value> FilterFormat(const FilterCall& call) {
  RF_ASSIGN_OR_RETURN(const Value format, SoftText(call));
  if (call.arguments.keywords.empty()) {
    return FormatPercent(
        format, call.context->NewList(call.arguments.positional, List::kTuple),
        call.context);
  }
  if (!call.arguments.positional.empty()) {
    return CallError(call.name, "positional and keyword arguments at once");
  }
  Dict values;
  for (const auto& [name, value] : call.arguments.keywords) {
    values.Set(name, value);
  }
  return FormatPercent(format, Value(call.context->New(std::move(values))),
                       call.context);
}

absl::StatusOr<Value> FilterToJson(const FilterCall& call) {
  RF_ASSIGN_OR_RETURN(
      const BoundArguments bound,
      call.Bind({"ensure_ascii", "indent", "separators", "sort_keys"}));
  JsonStyle style;
  style.ensure_ascii = bound.TruthOr(0, false);
  style.sort_keys = bound.TruthOr(3, false);
  if (!bound.AbsentOrNone(1) && bound[1].AsString()) {
    style.indent = *bound[1].AsString();
  } else if (!bound.AbsentOrNone(1)) {
    RF_ASSIGN_OR_RETURN(const int64_t indent, bound.IntegerOr(1, 0));
    if (indent > 1000) {
      return CallError(call.name,
                       absl::StrCat("indent ", indent, ", want at most 1000"));
    }
    style.indent = std::string(std::max<int64_t>(indent, 0), ' ');
  }
  if (!bound.AbsentOrNone(2)) {
    const List* pair = bound[2].AsList();
    if (!pair || pair->items.size() != 2 || !pair->items[0].AsString() ||
        !pair->items[1].AsString()) {
      return CallError(call.name, "separators that are not two strings");
    }
    style.item_separator = *pair->items[0].AsString();
    style.key_separator = *pair->items[1].AsString();
  }
  RF_ASSIGN_OR_RETURN(Text json, ToJson(call.value, style, call.context));
  return Value::String(std::move(json));
}

absl::StatusOr<Value> FilterFromJson(const FilterCall& call) {
  RF_RETURN_IF_ERROR(call.Bind({}).status());
  const Text* text = call.value.AsText();
  if (text == nullptr) {
    return UndefinedOr(
        call.value,
        absl::StrCat("from_json() of a value of type ", call.value.TypeName()));
  }
  absl::StatusOr<Value> value =
      ParseJson(text->bytes(), text->origin(), call.context);
  if (!value.ok()) return CallError(call.name, value.status().message());
  return value;
}

// --- Numbers.

absl::StatusOr<Value> FilterAbs(const FilterCall& call) {
  RF_RETURN_IF_ERROR(call.Bind({}).status());
  double number;
  if (!call.value.ToNumber(&number)) {
    return UndefinedOr(call.value, absl::StrCat("abs() of a value of type ",
                                                call.value.TypeName()));
  }
  return std::signbit(number) ? Negative(call.value) : Positive(call.value);
}

// float(text) of Python.
bool ParseFloat(const std::string& text, double* number) {
  absl::string_view rest = text;
  rest.remove_prefix(LeadingSpace(rest));
  rest.remove_suffix(TrailingSpace(rest));
  return absl::SimpleAtod(absl::StrReplaceAll(rest, {{"_", ""}}), number);
}

absl::StatusOr<Value> FilterInt(const FilterCall& call) {
  RF_ASSIGN_OR_RETURN(const BoundArguments bound,
                      call.Bind({"default", "base"}));
  RF_ASSIGN_OR_RETURN(const int64_t base, bound.IntegerOr(1, 10));
  if (call.value.IsUndefined()) return UndefinedOr(call.value, "");
  if (base != 0 && (base < 2 || base > 36)) {
    return CallError(call.name,
                     absl::StrCat("base ", base, ", want 0 or 2 to 36"));
  }
  const Origin origin = call.value.origin();
  Integer integer;
  if (call.value.ToInteger(&integer)) return Value::Int(integer, origin);
  double number;
  if (const std::string* text = call.value.AsString()) {
    const absl::StatusOr<Integer> parsed =
        ParseInteger(*text, static_cast<int>(base));
    if (parsed.ok()) return Value::Int(*parsed, origin);
    if (!absl::IsNotFound(parsed.status())) return parsed.status();
    if (!ParseFloat(*text, &number)) return bound.Or(0, Value::Int(0));
  } else if (call.value.AsDouble()) {
    number = *call.value.AsDouble();
    if (std::isinf(number)) {
      return CallError(call.name, "an infinite number");
    }
  } else {
    return bound.Or(0, Value::Int(0));
  }
  if (!std::isfinite(number)) return bound.Or(0, Value::Int(0));
  if (std::abs(number) > static_cast<double>(kMaxInteger)) {
    return CallError(call.name, absl::StrCat(DoubleText(number), " exceeds ",
                                             IntegerText(kMaxInteger)));
  }
  return Value::Int(static_cast<Integer>(number), origin);
}

absl::StatusOr<Value> FilterFloat(const FilterCall& call) {
  RF_ASSIGN_OR_RETURN(const BoundArguments bound, call.Bind({"default"}));
  if (call.value.IsUndefined()) return UndefinedOr(call.value, "");
  double number;
  if (call.value.ToNumber(&number) ||
      (call.value.AsString() && ParseFloat(*call.value.AsString(), &number))) {
    return Value::Float(number, call.value.origin());
  }
  return bound.Or(0, Value::Float(0));
}

absl::StatusOr<Value> FilterRound(const FilterCall& call) {
  RF_ASSIGN_OR_RETURN(const BoundArguments bound,
                      call.Bind({"precision", "method"}));
  RF_ASSIGN_OR_RETURN(const int64_t precision, bound.IntegerOr(0, 0));
  RF_ASSIGN_OR_RETURN(const Text method, bound.TextOr(1, "common"));
  double number;
  if (!call.value.ToNumber(&number)) {
    return UndefinedOr(call.value, absl::StrCat("round() of a value of type ",
                                                call.value.TypeName()));
  }
  if (precision < 0 || precision > 300) {
    return CallError(call.name,
                     absl::StrCat("precision ", precision, ", want 0 to 300"));
  }
  const Origin origin = call.value.origin();
  if (method.bytes() == "ceil" || method.bytes() == "floor") {
    const double scale = std::pow(10.0, precision);
    const double scaled = number * scale;
    return Value::Float(
        (method.bytes() == "ceil" ? std::ceil(scaled) : std::floor(scaled)) /
            scale,
        origin);
  }
  if (method.bytes() != "common") {
    return CallError(call.name, absl::StrCat("method \"", method.bytes(),
                                             "\", want common, ceil or floor"));
  }
  if (!call.value.AsDouble()) return Positive(call.value);
  char buffer[700];  // 309 digits, a dot and 300 digits.
  snprintf(buffer, sizeof(buffer), "%.*f", static_cast<int>(precision), number);
  if (std::isfinite(number) && !absl::SimpleAtod(buffer, &number)) {
    return CallError(call.name, absl::StrCat("no number ", buffer));
  }
  return Value::Float(number, origin);
}

}  // namespace

const FilterTable& TextFilters() {
  static const auto* const kFilters =
      new FilterTable({{"upper", FilterByMethod},
                       {"lower", FilterByMethod},
                       {"capitalize", FilterByMethod},
                       {"trim", FilterByMethod},
                       {"center", FilterByMethod},
                       {"title", FilterTitle},
                       {"replace", FilterReplace},
                       {"indent", FilterIndent},
                       {"wordcount", FilterWordcount},
                       {"truncate", FilterTruncate},
                       {"string", FilterString},
                       {"safe", FilterSafe},
                       {"escape", FilterEscape},
                       {"e", FilterEscape},
                       {"forceescape", FilterEscape},
                       {"format", FilterFormat},
                       {"tojson", FilterToJson},
                       {"from_json", FilterFromJson},
                       {"abs", FilterAbs},
                       {"int", FilterInt},
                       {"float", FilterFloat},
                       {"round", FilterRound}});
  return *kFilters;
}

}  // namespace ringfleet::coordinator::jinja
