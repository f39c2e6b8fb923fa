// SPDX-License-Identifier: Apache-2.0
#include "coordinator/jinja/print.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "cluster/process/status_macros.h"
#include "coordinator/jinja/characters.h"
#include "coordinator/tokenizer/utf8.h"

namespace ringfleet::coordinator::jinja {
namespace {

// Writes repr() of values. The recursion is at most kMaxDepth deep.
class Printer {
 public:
  explicit Printer(Context* context) : context_(context) {}

  absl::Status Write(const Value& value, int depth) {
    RF_RETURN_IF_ERROR(context_->Step());
    if (depth > kMaxDepth) return TooDeep();
    if (value.AsText()) {
      if (value.IsMarkup()) Add("Markup(", Origin::kTemplate);
      RF_RETURN_IF_ERROR(WriteString(*value.AsText()));
      if (value.IsMarkup()) Add(")", Origin::kTemplate);
      return absl::OkStatus();
    }
    if (const List* list = value.AsList()) return WriteList(*list, depth);
    if (const Dict* dict = value.AsDict()) return WriteDict(*dict, depth);
    if (const Namespace* space = value.AsNamespace()) {
      Add("<Namespace ", Origin::kTemplate);
      RF_RETURN_IF_ERROR(WriteDict(space->attributes, depth));
      Add(">", Origin::kTemplate);
      return absl::OkStatus();
    }
    if (value.IsUndefined()) {
      Add("Undefined", Origin::kTemplate);
      return absl::OkStatus();
    }
    RF_ASSIGN_OR_RETURN(const Text text, ToText(value, context_));
    out_.Append(text);
    return absl::OkStatus();
  }

  Text Take() { return std::move(out_); }

 private:
  void Add(absl::string_view text, Origin origin) { out_.Append(text, origin); }

  absl::Status WriteString(const Text& text) {
    RF_RETURN_IF_ERROR(context_->Work(text.size()));
    const bool double_quotes = absl::StrContains(text.bytes(), '\'') &&
                               !absl::StrContains(text.bytes(), '"');
    const char quote = double_quotes ? '"' : '\'';
    const std::string quotes(1, quote);
    Add(quotes, text.origin());
    size_t at = 0;
    for (const absl::string_view character : Characters(text.bytes())) {
      Add(Escaped(character, quote), text.OriginAt(at));
      at += character.size();
    }
    Add(quotes, text.origin());
    return absl::OkStatus();
  }

  static std::string Escaped(absl::string_view character, char quote) {
    const uint32_t code_point = CodePoint(character);
    if (code_point == '\\' || code_point == static_cast<uint8_t>(quote)) {
      return absl::StrCat("\\", character);
    }
    if (code_point == '\n') return "\\n";
    if (code_point == '\r') return "\\r";
    if (code_point == '\t') return "\\t";
    if (IsPrintable(code_point)) return std::string(character);
    if (code_point < 0x100) {
      return absl::StrCat("\\x", absl::Hex(code_point, absl::kZeroPad2));
    }
    if (code_point < 0x10000) {
      return absl::StrCat("\\u", absl::Hex(code_point, absl::kZeroPad4));
    }
    return absl::StrCat("\\U", absl::Hex(code_point, absl::kZeroPad8));
  }

  absl::Status WriteList(const List& list, int depth) {
    static constexpr absl::string_view kViews[] = {"dict_keys(", "dict_values(",
                                                   "dict_items("};
    const bool view = list.kind >= List::kKeys;
    if (list.kind == List::kIterator) {
      return absl::InvalidArgumentError(
          "an iterator cannot be printed, want the filter list before");
    }
    if (list.kind == List::kRange) {
      Add(absl::StrCat(
              "range(", IntegerText(list.bounds[0]), ", ",
              IntegerText(list.bounds[1]),
              list.bounds[2] == 1 ? "" : ", " + IntegerText(list.bounds[2]),
              ")"),
          list.origin);
      return absl::OkStatus();
    }
    if (view) Add(kViews[list.kind - List::kKeys], list.origin);
    Add(list.IsTuple() ? "(" : "[", list.origin);
    for (size_t i = 0; i < list.items.size(); ++i) {
      if (i > 0) Add(", ", list.origin);
      RF_RETURN_IF_ERROR(Write(list.items[i], depth + 1));
    }
    if (list.IsTuple() && list.items.size() == 1) Add(",", list.origin);
    Add(list.IsTuple() ? ")" : "]", list.origin);
    if (view) Add(")", list.origin);
    return absl::OkStatus();
  }

  absl::Status WriteDict(const Dict& dict, int depth) {
    Add("{", dict.origin);
    for (size_t i = 0; i < dict.items.size(); ++i) {
      if (i > 0) Add(", ", dict.origin);
      RF_RETURN_IF_ERROR(Write(dict.items[i].first, depth + 1));
      Add(": ", dict.origin);
      RF_RETURN_IF_ERROR(Write(dict.items[i].second, depth + 1));
    }
    Add("}", dict.origin);
    return absl::OkStatus();
  }

  Context* const context_;
  Text out_;
};

}  // namespace

Text EscapeHtml(const Text& text) {
  static constexpr std::pair<char, absl::string_view> kEscapes[] = {
      {'&', "&amp;"},
      {'<', "&lt;"},
      {'>', "&gt;"},
      {'"', "&#34;"},
      {'\'', "&#39;"}};
  Text out;
  size_t begin = 0;  // Bytes from here stand for themselves.
  for (size_t at = 0; at < text.size(); ++at) {
    for (const auto& [character, escape] : kEscapes) {
      if (text.bytes()[at] != character) continue;
      out.Append(text, begin, at - begin);
      out.Append(escape, text.OriginAt(at));
      begin = at + 1;
    }
  }
  out.Append(text, begin, text.size() - begin);
  return out;
}

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

std::string IntegerText(Integer integer) {
  if (integer == 0) return "0";
  const bool negative = integer < 0;
  std::string text;
  while (integer != 0) {
    const int digit = static_cast<int>(integer % 10);
    text.push_back(static_cast<char>('0' + (digit < 0 ? -digit : digit)));
    integer /= 10;
  }
  if (negative) text.push_back('-');
  std::reverse(text.begin(), text.end());
  return text;
}

absl::StatusOr<Text> ToText(const Value& value, Context* context) {
  if (value.AsText()) return *value.AsText();
  const Origin origin = value.origin();
  if (value.AsBool()) return Text(*value.AsBool() ? "True" : "False", origin);
  if (value.AsInt()) return Text(IntegerText(*value.AsInt()), origin);
  if (value.AsDouble()) return Text(DoubleText(*value.AsDouble()), origin);
  if (value.IsNone()) return Text("None", origin);
  if (value.IsUndefined()) return Text();
  if (value.AsMacro()) {
    return Text(absl::StrCat("<Macro '", value.AsMacro()->name, "'>"),
                Origin::kTemplate);
  }
  if (const Loop* loop = value.AsLoop()) {
    return Text(absl::StrCat("<LoopContext ", loop->index0 + 1, "/",
                             loop->items.size(), ">"),
                Origin::kTemplate);
  }
  if (value.AsMethod() || value.AsFunction()) {
    return absl::InvalidArgumentError(
        absl::StrCat("a ", value.TypeName(), " cannot be printed"));
  }
  Printer printer(context);
  RF_RETURN_IF_ERROR(printer.Write(value, 0));
  return printer.Take();
}

}  // namespace ringfleet::coordinator::jinja
