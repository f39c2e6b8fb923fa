// SPDX-License-Identifier: Apache-2.0
#include "coordinator/jinja/string_methods.h"

#include <algorithm>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "cluster/process/status_macros.h"
#include "coordinator/jinja/arguments.h"
#include "coordinator/jinja/characters.h"
#include "coordinator/jinja/compare.h"
#include "coordinator/jinja/format.h"
#include "coordinator/jinja/print.h"
#include "coordinator/jinja/split.h"
#include "coordinator/tokenizer/utf8.h"

namespace ringfleet::coordinator::jinja {
namespace {

// A method called: its object, its name, its arguments.
struct StringCall {
  const Text& text;
  absl::string_view name;
  const Arguments& arguments;
  Context* context;

  absl::StatusOr<BoundArguments> Bind(
      std::initializer_list<absl::string_view> parameters,
      size_t required = 0) const {
    return BoundArguments::Bind(name, arguments, parameters, required);
  }
  const std::string& bytes() const { return text.bytes(); }
};

using Result = absl::StatusOr<Value>;

Value AsTexts(std::vector<Text> parts, Context* context) {
  std::vector<Value> items;
  items.reserve(parts.size());
  for (Text& part : parts) items.push_back(Value::String(std::move(part)));
  return context->NewList(std::move(items));
}

Result CallSplit(const StringCall& call) {
  RF_ASSIGN_OR_RETURN(const BoundArguments bound,
                      call.Bind({"sep", "maxsplit"}));
  RF_ASSIGN_OR_RETURN(const int64_t most, bound.IntegerOr(1, -1));
  RF_RETURN_IF_ERROR(call.context->Work(call.text.size()));
  const bool from_right = call.name == "rsplit";
  std::vector<Text> parts;
  if (bound.AbsentOrNone(0)) {
    parts = SplitAtSpace(call.text, most, from_right);
  } else {
    RF_ASSIGN_OR_RETURN(const Text separator, bound.TextOr(0, ""));
    if (separator.empty()) return CallError(call.name, "an empty separator");
    parts = SplitAt(call.text, separator.bytes(), most, from_right);
  }
  RF_RETURN_IF_ERROR(
      call.context->Work(parts.size() * (sizeof(Value) + sizeof(Text))));
  return AsTexts(std::move(parts), call.context);
}

Result CallSplitLines(const StringCall& call) {
  RF_ASSIGN_OR_RETURN(const BoundArguments bound, call.Bind({"keepends"}));
  RF_RETURN_IF_ERROR(call.context->Work(call.text.size()));
  return AsTexts(SplitLines(call.text, bound.TruthOr(0, false)), call.context);
}

Result CallStrip(const StringCall& call) {
  RF_ASSIGN_OR_RETURN(const BoundArguments bound, call.Bind({"chars"}));
  RF_RETURN_IF_ERROR(call.context->Work(call.text.size()));
  RF_ASSIGN_OR_RETURN(const Text set,
                      bound.AbsentOrNone(0) ? Text() : bound.TextOr(0, ""));
  return Value::String(Strip(call.text,
                             bound.AbsentOrNone(0) ? nullptr : &set.bytes(),
                             call.name != "rstrip", call.name != "lstrip"));
}

// The bytes of characters [start, end) of Python's optional bounds, and the
// number of characters before.
struct Region {
  bool valid;  // False: start is beyond the end of the text, or of the region.
  absl::string_view bytes;
  int64_t skipped;
};
absl::StatusOr<Region> RegionOf(const StringCall& call,
                                const BoundArguments& bound) {
  if (bound.AbsentOrNone(1) && bound.AbsentOrNone(2)) {
    return Region{true, call.bytes(), 0};
  }
  const auto characters = Characters(call.bytes());
  const auto size = static_cast<int64_t>(characters.size());
  int64_t bounds[2] = {0, size};
  for (size_t i = 0; i < 2; ++i) {
    if (bound.AbsentOrNone(i + 1)) continue;
    RF_ASSIGN_OR_RETURN(bounds[i], bound.IntegerOr(i + 1, 0));
    if (bounds[i] < 0) bounds[i] = std::max<int64_t>(0, bounds[i] + size);
  }
  bounds[1] = std::min(bounds[1], size);
  if (bounds[0] > bounds[1]) return Region{false, "", 0};
  const auto byte_at = [&](int64_t character) {
    return character == size
               ? call.bytes().size()
               : characters[character].data() - call.bytes().data();
  };
  const size_t begin = byte_at(bounds[0]);
  return Region{
      true,
      absl::string_view(call.bytes()).substr(begin, byte_at(bounds[1]) - begin),
      bounds[0]};
}

// startswith and endswith.
Result CallAffix(const StringCall& call) {
  RF_ASSIGN_OR_RETURN(const BoundArguments bound,
                      call.Bind({"prefix", "start", "end"}, 1));
  RF_ASSIGN_OR_RETURN(const Region region, RegionOf(call, bound));
  std::vector<Value> candidates = {bound[0]};
  if (bound[0].AsList() && bound[0].AsList()->IsTuple()) {
    candidates = bound[0].AsList()->items;
  }
  for (const Value& candidate : candidates) {
    if (candidate.AsString() == nullptr) {
      return CallError(
          call.name,
          candidate.IsUndefined()
              ? *candidate.AsUndefined()
              : absl::StrCat("an argument of type ", candidate.TypeName(),
                             ", want a string or a tuple"));
    }
    const std::string& affix = *candidate.AsString();
    RF_RETURN_IF_ERROR(call.context->Work(affix.size()));
    if (region.valid &&
        (call.name == "startswith" ? absl::StartsWith(region.bytes, affix)
                                   : absl::EndsWith(region.bytes, affix))) {
      return Value::Boolean(true);
    }
  }
  return Value::Boolean(false);
}

Result CallReplace(const StringCall& call) {
  RF_ASSIGN_OR_RETURN(const BoundArguments bound,
                      call.Bind({"old", "new", "count"}, 2));
  RF_ASSIGN_OR_RETURN(const Text old, bound.TextOr(0, ""));
  RF_ASSIGN_OR_RETURN(const Text by, bound.TextOr(1, ""));
  RF_ASSIGN_OR_RETURN(const int64_t count, bound.IntegerOr(2, -1));
  RF_ASSIGN_OR_RETURN(Text replaced,
                      Replace(call.text, old.bytes(), by, count, call.context));
  return Value::String(std::move(replaced));
}

// find, rfind, index, rindex and count.
Result CallFind(const StringCall& call) {
  RF_ASSIGN_OR_RETURN(const BoundArguments bound,
                      call.Bind({"sub", "start", "end"}, 1));
  RF_ASSIGN_OR_RETURN(const Text sub, bound.TextOr(0, ""));
  RF_RETURN_IF_ERROR(call.context->Work(call.text.size()));
  RF_ASSIGN_OR_RETURN(const Region region, RegionOf(call, bound));
  if (call.name == "count") {
    if (!region.valid) return Value::Int(0);
    if (sub.empty()) return Value::Int(CountCharacters(region.bytes) + 1);
    int64_t count = 0;
    for (size_t at = region.bytes.find(sub.bytes());
         at != absl::string_view::npos;
         at = region.bytes.find(sub.bytes(), at + sub.size())) {
      ++count;
    }
    return Value::Int(count);
  }
  const size_t found = !region.valid         ? absl::string_view::npos
                       : call.name[0] == 'r' ? region.bytes.rfind(sub.bytes())
                                             : region.bytes.find(sub.bytes());
  if (found == absl::string_view::npos) {
    if (absl::EndsWith(call.name, "index")) {
      return CallError(call.name, "the substring is not in the string");
    }
    return Value::Int(-1);
  }
  return Value::Int(region.skipped +
                    CountCharacters(region.bytes.substr(0, found)));
}

Result CallCase(const StringCall& call) {
  static const auto* const kCases =
      new absl::flat_hash_map<absl::string_view, LetterCase>(
          {{"upper", LetterCase::kUpper},
           {"lower", LetterCase::kLower},
           {"casefold", LetterCase::kLower},
           {"title", LetterCase::kTitle},
           {"capitalize", LetterCase::kCapitalize},
           {"swapcase", LetterCase::kSwap}});
  RF_RETURN_IF_ERROR(call.Bind({}).status());
  RF_RETURN_IF_ERROR(call.context->Work(call.text.size()));
  return Value::String(ChangeCase(call.text, kCases->at(call.name)));
}

// isdigit and its kin: each character has the property, and there is one.
Result CallIs(const StringCall& call) {
  RF_RETURN_IF_ERROR(call.Bind({}).status());
  RF_RETURN_IF_ERROR(call.context->Work(call.text.size()));
  bool cased = false;
  bool holds = !call.text.empty();
  for (const absl::string_view character : Characters(call.bytes())) {
    const uint32_t c = CodePoint(character);
    if (call.name == "isspace") {
      holds = holds && IsPythonSpace(c);
    } else if (call.name == "isalpha") {
      holds = holds && IsAlpha(c);
    } else if (call.name == "isalnum") {
      holds = holds && (IsAlpha(c) || IsDecimal(c));
    } else if (call.name == "isascii") {
      holds = holds && c < 0x80;
    } else if (call.name == "isupper" || call.name == "islower") {
      const bool upper = call.name == "isupper";
      cased = cased || (upper ? IsUpper(c) : IsLower(c));
      holds = holds && !(upper ? IsLower(c) : IsUpper(c));
    } else {  // isdigit, isdecimal, isnumeric
      holds = holds && IsDecimal(c);
    }
  }
  if (call.name == "isascii" && call.text.empty()) holds = true;
  if (call.name == "isupper" || call.name == "islower") holds = holds && cased;
  return Value::Boolean(holds);
}

Result CallJoin(const StringCall& call) {
  RF_ASSIGN_OR_RETURN(const BoundArguments bound, call.Bind({"iterable"}, 1));
  if (bound[0].IsUndefined()) return Value::Literal("");
  RF_ASSIGN_OR_RETURN(const std::vector<Value> items,
                      ToItems(bound[0], call.context));
  Text joined;
  for (size_t i = 0; i < items.size(); ++i) {
    if (items[i].AsText() == nullptr) {
      return CallError(
          call.name, absl::StrCat("item ", i, " of type ", items[i].TypeName(),
                                  ", want a string"));
    }
    RF_RETURN_IF_ERROR(
        call.context->Work(items[i].AsText()->size() + call.text.size()));
    if (i > 0) joined.Append(call.text);
    joined.Append(*items[i].AsText());
  }
  return Value::String(std::move(joined));
}

Result CallRemoveAffix(const StringCall& call) {
  RF_ASSIGN_OR_RETURN(const BoundArguments bound, call.Bind({"affix"}, 1));
  RF_ASSIGN_OR_RETURN(const Text affix, bound.TextOr(0, ""));
  RF_RETURN_IF_ERROR(call.context->Work(call.text.size()));
  if (call.name == "removeprefix" &&
      absl::StartsWith(call.bytes(), affix.bytes())) {
    return Value::String(call.text.Part(affix.size()));
  }
  if (call.name == "removesuffix" &&
      absl::EndsWith(call.bytes(), affix.bytes())) {
    return Value::String(call.text.Part(0, call.text.size() - affix.size()));
  }
  return Value::String(call.text);
}

// ljust, rjust, center and zfill.
Result CallPad(const StringCall& call) {
  RF_ASSIGN_OR_RETURN(const BoundArguments bound,
                      call.Bind({"width", "fillchar"}, 1));
  RF_ASSIGN_OR_RETURN(const int64_t width, bound.IntegerOr(0, 0));
  RF_ASSIGN_OR_RETURN(const Text fill,
                      bound.TextOr(1, call.name == "zfill" ? "0" : " "));
  if (CountCharacters(fill.bytes()) != 1) {
    return CallError(call.name, "a fillchar that is not one character");
  }
  const int64_t pad =
      width - static_cast<int64_t>(CountCharacters(call.bytes()));
  if (pad <= 0) return Value::String(call.text);
  RF_RETURN_IF_ERROR(
      call.context->Work(std::min<size_t>(pad, kMaxWorkBytes) * 5));
  int64_t left = call.name == "ljust" ? 0 : pad;
  // Python puts the odd one to the left of an odd width.
  if (call.name == "center") left = pad / 2 + (pad & width & 1);
  const size_t sign = call.name == "zfill" && !call.text.empty() &&
                              (call.bytes()[0] == '+' || call.bytes()[0] == '-')
                          ? 1
                          : 0;
  Text out = call.text.Part(0, sign);
  for (int64_t i = 0; i < left; ++i) out.Append(fill);
  out.Append(call.text.Part(sign));
  for (int64_t i = left; i < pad; ++i) out.Append(fill);
  return Value::String(std::move(out));
}

Result CallPartition(const StringCall& call) {
  RF_ASSIGN_OR_RETURN(const BoundArguments bound, call.Bind({"sep"}, 1));
  RF_ASSIGN_OR_RETURN(const Text separator, bound.TextOr(0, ""));
  if (separator.empty()) return CallError(call.name, "an empty separator");
  RF_RETURN_IF_ERROR(call.context->Work(call.text.size()));
  const bool right = call.name == "rpartition";
  const size_t at = right ? call.bytes().rfind(separator.bytes())
                          : call.bytes().find(separator.bytes());
  std::vector<Value> parts(3, Value::Literal(""));
  if (at == std::string::npos) {
    parts[right ? 2 : 0] = Value::String(call.text);
  } else {
    parts[0] = Value::String(call.text.Part(0, at));
    parts[1] = Value::String(call.text.Part(at, separator.size()));
    parts[2] = Value::String(call.text.Part(at + separator.size()));
  }
  return call.context->NewList(std::move(parts), List::kTuple);
}

Result CallFormat(const StringCall& call) {
  return FormatBraces(call.text, call.arguments, call.context);
}

using StringMethod = Result (*)(const StringCall&);

const absl::flat_hash_map<absl::string_view, StringMethod>& StringMethods() {
  static const auto* const kMethods =
      new absl::flat_hash_map<absl::string_view, StringMethod>(
          {{"split", CallSplit},
           {"rsplit", CallSplit},
           {"splitlines", CallSplitLines},
           {"strip", CallStrip},
           {"lstrip", CallStrip},
           {"rstrip", CallStrip},
           {"startswith", CallAffix},
           {"endswith", CallAffix},
           {"replace", CallReplace},
           {"find", CallFind},
           {"rfind", CallFind},
           {"index", CallFind},
           {"rindex", CallFind},
           {"count", CallFind},
           {"upper", CallCase},
           {"lower", CallCase},
           {"casefold", CallCase},
           {"title", CallCase},
           {"capitalize", CallCase},
           {"swapcase", CallCase},
           {"isspace", CallIs},
           {"isalpha", CallIs},
           {"isalnum", CallIs},
           {"isascii", CallIs},
           {"isupper", CallIs},
           {"islower", CallIs},
           {"isdigit", CallIs},
           {"isdecimal", CallIs},
           {"isnumeric", CallIs},
           {"join", CallJoin},
           {"removeprefix", CallRemoveAffix},
           {"removesuffix", CallRemoveAffix},
           {"ljust", CallPad},
           {"rjust", CallPad},
           {"center", CallPad},
           {"zfill", CallPad},
           {"partition", CallPartition},
           {"rpartition", CallPartition},
           {"format", CallFormat}});
  return *kMethods;
}

// Markup's methods give Markup, and escape the strings that they insert.
Value AsMarkup(const Value& value, Context* context) {
  if (value.AsText()) return Value::Markup(*value.AsText());
  const List* list = value.AsList();
  if (list == nullptr) return value;
  std::vector<Value> items;
  for (const Value& item : list->items) {
    items.push_back(AsMarkup(item, context));
  }
  return context->NewList(std::move(items), list->kind);
}

absl::StatusOr<Arguments> EscapedArguments(absl::string_view name,
                                           Arguments arguments,
                                           Context* context) {
  const auto escape = [](Value* value) {
    if (value->AsText() && !value->IsMarkup()) {
      *value = Value::Markup(EscapeHtml(*value->AsText()));
    }
  };
  if (name == "replace" && arguments.positional.size() > 1) {
    escape(&arguments.positional[1]);
  } else if (name == "format") {
    for (Value& value : arguments.positional) escape(&value);
    for (auto& keyword : arguments.keywords) escape(&keyword.second);
  } else if (name == "join" && arguments.positional.size() == 1) {
    RF_ASSIGN_OR_RETURN(std::vector<Value> items,
                        ToItems(arguments.positional[0], context));
    for (Value& value : items) escape(&value);
    arguments.positional[0] = context->NewList(std::move(items));
  }
  return arguments;
}

}  // namespace

bool IsStringMethod(absl::string_view name) {
  return StringMethods().contains(name);
}

absl::StatusOr<Value> CallStringMethod(const Value& text,
                                       absl::string_view name,
                                       const Arguments& arguments,
                                       Context* context) {
  const StringMethod method = StringMethods().at(name);
  if (!text.IsMarkup()) {
    return method({*text.AsText(), name, arguments, context});
  }
  RF_ASSIGN_OR_RETURN(const Arguments escaped,
                      EscapedArguments(name, arguments, context));
  RF_ASSIGN_OR_RETURN(const Value result,
                      method({*text.AsText(), name, escaped, context}));
  return AsMarkup(result, context);
}

}  // namespace ringfleet::coordinator::jinja
