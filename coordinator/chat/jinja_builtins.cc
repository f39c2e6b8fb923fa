// SPDX-License-Identifier: Apache-2.0
#include "coordinator/chat/jinja_builtins.h"

#include <algorithm>
#include <initializer_list>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "cluster/process/status_macros.h"
#include "coordinator/tokenizer/utf8.h"

namespace ringfleet::coordinator::jinja {
namespace {

constexpr int64_t kMaxIndent = 16;

absl::Status Invalid(absl::string_view what, absl::string_view message) {
  return absl::InvalidArgumentError(absl::StrCat(what, "(): ", message));
}

Value Text(absl::string_view text) {
  return Value::String(std::string(text.data(), text.size()));
}

// The arguments in the order of the parameters; absent ones are undefined.
absl::StatusOr<std::vector<Value>> Bind(
    absl::string_view what, const Arguments& arguments,
    std::initializer_list<absl::string_view> parameters, size_t required = 0) {
  if (arguments.positional.size() > parameters.size()) {
    return Invalid(
        what, absl::StrCat(arguments.positional.size(),
                           " arguments, want at most ", parameters.size()));
  }
  std::vector<Value> bound = arguments.positional;
  bound.resize(parameters.size(), Value::Missing("argument"));
  for (const auto& [name, value] : arguments.keywords) {
    const auto found = std::find(parameters.begin(), parameters.end(), name);
    const size_t index = found - parameters.begin();
    if (found == parameters.end() || index < arguments.positional.size()) {
      return Invalid(what, absl::StrCat("unexpected argument \"", name, "\""));
    }
    bound[index] = value;
  }
  for (size_t i = 0; i < required; ++i) {
    if (bound[i].IsUndefined()) {
      return Invalid(what,
                     absl::StrCat("argument \"", *(parameters.begin() + i),
                                  "\" is missing or undefined"));
    }
  }
  return bound;
}

absl::StatusOr<std::string> StringArgument(absl::string_view what,
                                           const Value& value) {
  if (value.AsString()) return *value.AsString();
  return Invalid(what, absl::StrCat("an argument that is ", value.TypeName(),
                                    ", want a string"));
}

// -1, for no limit, when undefined.
absl::StatusOr<int64_t> CountArgument(absl::string_view what,
                                      const Value& value) {
  if (value.IsUndefined()) return -1;
  if (value.AsInt()) return *value.AsInt();
  return Invalid(what, absl::StrCat("a count that is ", value.TypeName()));
}

absl::StatusOr<Value> Split(absl::string_view text, const Arguments& arguments,
                            Budget* budget) {
  RF_ASSIGN_OR_RETURN(const std::vector<Value> bound,
                      Bind("split", arguments, {"sep", "maxsplit"}));
  RF_ASSIGN_OR_RETURN(int64_t left, CountArgument("split", bound[1]));
  std::vector<Value> parts;
  const auto add = [&](absl::string_view part) {
    parts.push_back(Text(part));
    return budget->Work(part.size() + sizeof(Value));
  };
  if (bound[0].IsUndefined() || bound[0].IsNone()) {
    // Runs of white space; those at the ends give no empty parts.
    text.remove_prefix(LeadingWhitespace(text));
    for (; !text.empty() && left != 0; --left) {
      size_t end = 0;
      while (end < text.size() && LeadingWhitespace(text.substr(end)) == 0) {
        end += NextUtf8(text.substr(end)).size;
      }
      RF_RETURN_IF_ERROR(add(text.substr(0, end)));
      text.remove_prefix(end);
      text.remove_prefix(LeadingWhitespace(text));
    }
    if (!text.empty()) RF_RETURN_IF_ERROR(add(text));
    return Value::MakeList(std::move(parts));
  }
  RF_ASSIGN_OR_RETURN(const std::string separator,
                      StringArgument("split", bound[0]));
  if (separator.empty()) return Invalid("split", "an empty separator");
  for (; left != 0; --left) {
    const size_t end = text.find(separator);
    if (end == absl::string_view::npos) break;
    RF_RETURN_IF_ERROR(add(text.substr(0, end)));
    text.remove_prefix(end + separator.size());
  }
  RF_RETURN_IF_ERROR(add(text));
  return Value::MakeList(std::move(parts));
}

// strip, lstrip and rstrip: of white space, or of the characters given.
absl::StatusOr<Value> Strip(absl::string_view name, absl::string_view text,
                            const Arguments& arguments, Budget* budget) {
  RF_ASSIGN_OR_RETURN(const std::vector<Value> bound,
                      Bind(name, arguments, {"chars"}));
  RF_RETURN_IF_ERROR(budget->Work(text.size()));
  const bool left = name != "rstrip";
  const bool right = name != "lstrip";
  if (bound[0].IsUndefined() || bound[0].IsNone()) {
    if (left) text.remove_prefix(LeadingWhitespace(text));
    if (right) text.remove_suffix(TrailingWhitespace(text));
    return Text(text);
  }
  RF_ASSIGN_OR_RETURN(const std::string chars, StringArgument(name, bound[0]));
  RF_RETURN_IF_ERROR(
      budget->Work((chars.size() + text.size()) * sizeof(absl::string_view)));
  const std::vector<absl::string_view> set = Characters(chars);
  const std::vector<absl::string_view> characters = Characters(text);
  const auto stripped = [&](absl::string_view character) {
    return std::find(set.begin(), set.end(), character) != set.end();
  };
  size_t begin = 0;
  size_t end = characters.size();
  for (; left && begin < end && stripped(characters[begin]); ++begin) {
    RF_RETURN_IF_ERROR(budget->Work(set.size()));
    text.remove_prefix(characters[begin].size());
  }
  for (; right && end > begin && stripped(characters[end - 1]); --end) {
    RF_RETURN_IF_ERROR(budget->Work(set.size()));
    text.remove_suffix(characters[end - 1].size());
  }
  return Text(text);
}

// startswith and endswith, of one string or any of a list.
absl::StatusOr<Value> HasAffix(absl::string_view name, absl::string_view text,
                               const Arguments& arguments) {
  RF_ASSIGN_OR_RETURN(const std::vector<Value> bound,
                      Bind(name, arguments, {"affix"}, 1));
  std::vector<Value> candidates = {bound[0]};
  if (bound[0].AsList()) candidates = bound[0].AsList()->items;
  for (const Value& candidate : candidates) {
    RF_ASSIGN_OR_RETURN(const std::string affix,
                        StringArgument(name, candidate));
    if (name == "startswith" ? absl::StartsWith(text, affix)
                             : absl::EndsWith(text, affix)) {
      return Value(true);
    }
  }
  return Value(false);
}

absl::StatusOr<Value> Replace(absl::string_view text,
                              const Arguments& arguments, Budget* budget) {
  RF_ASSIGN_OR_RETURN(const std::vector<Value> bound,
                      Bind("replace", arguments, {"old", "new", "count"}, 2));
  RF_ASSIGN_OR_RETURN(const std::string from,
                      StringArgument("replace", bound[0]));
  RF_ASSIGN_OR_RETURN(const std::string to,
                      StringArgument("replace", bound[1]));
  RF_ASSIGN_OR_RETURN(int64_t left, CountArgument("replace", bound[2]));
  if (from.empty()) return Invalid("replace", "an empty string to replace");
  std::string out;
  for (; left != 0; --left) {
    const size_t found = text.find(from);
    if (found == absl::string_view::npos) break;
    RF_RETURN_IF_ERROR(budget->Work(found + to.size()));
    absl::StrAppend(&out, text.substr(0, found), to);
    text.remove_prefix(found + from.size());
  }
  RF_RETURN_IF_ERROR(budget->Work(text.size()));
  absl::StrAppend(&out, text);
  return Value::String(std::move(out));
}

absl::StatusOr<Value> ChangeCase(absl::string_view name, absl::string_view text,
                                 const Arguments& arguments, Budget* budget) {
  RF_RETURN_IF_ERROR(Bind(name, arguments, {}).status());
  RF_RETURN_IF_ERROR(budget->Work(text.size()));
  for (const char c : text) {
    if (!absl::ascii_isascii(c)) {
      return Invalid(name, "characters outside ASCII are not supported");
    }
  }
  return Value::String(name == "upper" ? absl::AsciiStrToUpper(text)
                                       : absl::AsciiStrToLower(text));
}

absl::StatusOr<Value> CallStringMethod(absl::string_view text,
                                       absl::string_view name,
                                       const Arguments& arguments,
                                       Budget* budget) {
  if (name == "split") return Split(text, arguments, budget);
  if (name == "strip" || name == "lstrip" || name == "rstrip") {
    return Strip(name, text, arguments, budget);
  }
  if (name == "startswith" || name == "endswith") {
    return HasAffix(name, text, arguments);
  }
  if (name == "replace") return Replace(text, arguments, budget);
  if (name == "upper" || name == "lower") {
    return ChangeCase(name, text, arguments, budget);
  }
  return Invalid(name, "no such method of a string is supported");
}

absl::StatusOr<Value> CallDictMethod(const Dict& dict, absl::string_view name,
                                     const Arguments& arguments,
                                     Budget* budget) {
  if (name == "get") {
    RF_ASSIGN_OR_RETURN(std::vector<Value> bound,
                        Bind(name, arguments, {"key", "default"}, 1));
    const Value* found =
        bound[0].AsString() ? dict.Find(*bound[0].AsString()) : nullptr;
    if (found != nullptr) return *found;
    return bound[1].IsUndefined() ? Value() : bound[1];
  }
  if (name != "items" && name != "keys" && name != "values") {
    return Invalid(name, "no such method of a mapping is supported");
  }
  RF_RETURN_IF_ERROR(Bind(name, arguments, {}).status());
  std::vector<Value> out;
  for (const auto& [key, value] : dict.items) {
    RF_RETURN_IF_ERROR(budget->Work(3 * sizeof(Value) + key.size()));
    if (name == "values") {
      out.push_back(value);
    } else if (name == "keys") {
      out.push_back(Text(key));
    } else {
      RF_ASSIGN_OR_RETURN(Value pair, Value::MakeList({Text(key), value}));
      out.push_back(std::move(pair));
    }
  }
  return Value::MakeList(std::move(out));
}

absl::StatusOr<Value> ToJson(const Value& value, const Arguments& arguments,
                             Budget* budget) {
  RF_ASSIGN_OR_RETURN(const std::vector<Value> bound,
                      Bind("tojson", arguments, {"ensure_ascii", "indent"}));
  if (bound[0].IsTrue()) {
    return Invalid("tojson", "ensure_ascii=true is not supported");
  }
  int64_t indent = -1;
  if (!bound[1].IsUndefined() && !bound[1].IsNone()) {
    if (!bound[1].AsInt() || *bound[1].AsInt() < 0 ||
        *bound[1].AsInt() > kMaxIndent) {
      return Invalid(
          "tojson",
          absl::StrCat("indent is not an integer from 0 to ", kMaxIndent));
    }
    indent = *bound[1].AsInt();
  }
  RF_ASSIGN_OR_RETURN(std::string text, value.ToJson(indent, budget));
  return Value::String(std::move(text));
}

absl::StatusOr<Value> Length(const Value& value, const Arguments& arguments,
                             Budget* budget) {
  RF_RETURN_IF_ERROR(Bind("length", arguments, {}).status());
  size_t size = 0;
  if (value.AsString()) {
    RF_RETURN_IF_ERROR(
        budget->Work(value.AsString()->size() * sizeof(absl::string_view)));
    size = Characters(*value.AsString()).size();
  } else if (value.AsList()) {
    size = value.AsList()->items.size();
  } else if (value.AsDict()) {
    size = value.AsDict()->items.size();
  } else if (!value.IsUndefined()) {
    return Invalid("length", absl::StrCat("a value that is ", value.TypeName(),
                                          " has none"));
  }
  return Value(static_cast<int64_t>(size));
}

absl::StatusOr<Value> Join(const Value& value, const Arguments& arguments,
                           Budget* budget) {
  RF_ASSIGN_OR_RETURN(const std::vector<Value> bound,
                      Bind("join", arguments, {"d"}));
  RF_ASSIGN_OR_RETURN(const std::string separator, bound[0].ToText());
  RF_ASSIGN_OR_RETURN(const std::vector<Value> items, value.ToItems(budget));
  std::string out;
  for (size_t i = 0; i < items.size(); ++i) {
    RF_ASSIGN_OR_RETURN(const std::string text, items[i].ToText());
    RF_RETURN_IF_ERROR(budget->Work(separator.size() + text.size()));
    absl::StrAppend(&out, i == 0 ? "" : separator, text);
  }
  return Value::String(std::move(out));
}

absl::StatusOr<Value> Default(const Value& value, const Arguments& arguments) {
  RF_ASSIGN_OR_RETURN(const std::vector<Value> bound,
                      Bind("default", arguments, {"default_value", "boolean"}));
  if (value.IsUndefined() || (bound[1].IsTrue() && !value.IsTrue())) {
    return bound[0].IsUndefined() ? Value::String("") : bound[0];
  }
  return value;
}

}  // namespace

absl::StatusOr<Value> CallMethod(const Value& object, absl::string_view name,
                                 const Arguments& arguments, Budget* budget) {
  if (object.AsString()) {
    return CallStringMethod(*object.AsString(), name, arguments, budget);
  }
  if (object.AsDict()) {
    return CallDictMethod(*object.AsDict(), name, arguments, budget);
  }
  if (object.AsUndefined()) {
    return Invalid(name, absl::StrCat("\"", object.AsUndefined()->name,
                                      "\" is undefined"));
  }
  return Invalid(name, absl::StrCat("a value that is ", object.TypeName(),
                                    " has no methods"));
}

absl::StatusOr<Value> ApplyFilter(absl::string_view name, const Value& value,
                                  const Arguments& arguments, Budget* budget) {
  if (name == "tojson") return ToJson(value, arguments, budget);
  if (name == "length" || name == "count")
    return Length(value, arguments, budget);
  if (name == "join") return Join(value, arguments, budget);
  if (name == "default" || name == "d") return Default(value, arguments);
  if (name == "first" || name == "last") {
    RF_RETURN_IF_ERROR(Bind(name, arguments, {}).status());
    RF_ASSIGN_OR_RETURN(const std::vector<Value> items, value.ToItems(budget));
    if (items.empty()) return Value::Missing(name);
    return name == "first" ? items.front() : items.back();
  }
  if (name == "list") {
    RF_RETURN_IF_ERROR(Bind(name, arguments, {}).status());
    RF_ASSIGN_OR_RETURN(std::vector<Value> items, value.ToItems(budget));
    return Value::MakeList(std::move(items));
  }
  if (name == "items") {
    if (value.AsDict()) {
      return CallDictMethod(*value.AsDict(), name, arguments, budget);
    }
    return Invalid(name, absl::StrCat("a value that is ", value.TypeName()));
  }
  const bool is_trim = name == "trim";
  if (is_trim || name == "string" || name == "upper" || name == "lower" ||
      name == "replace") {
    RF_ASSIGN_OR_RETURN(const std::string text, value.ToText());
    RF_RETURN_IF_ERROR(budget->Work(text.size()));
    if (name == "string") {
      RF_RETURN_IF_ERROR(Bind(name, arguments, {}).status());
      return Value::String(text);
    }
    return CallStringMethod(text, is_trim ? "strip" : name, arguments, budget);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("filter \"", name, "\" is not supported"));
}

absl::StatusOr<bool> ApplyTest(absl::string_view name, const Value& value) {
  const bool is_boolean = value.AsBool() != nullptr;
  if (name == "defined") return !value.IsUndefined();
  if (name == "undefined") return value.IsUndefined();
  if (name == "none") return value.IsNone();
  if (name == "string") return value.AsString() != nullptr;
  if (name == "mapping") return value.AsDict() != nullptr;
  if (name == "boolean") return is_boolean;
  if (name == "true") return is_boolean && *value.AsBool();
  if (name == "false") return is_boolean && !*value.AsBool();
  if (name == "number") {
    double number;
    return value.ToNumber(&number);
  }
  if (name == "iterable" || name == "sequence") {
    return value.AsString() || value.AsList() || value.AsDict() ||
           value.IsUndefined();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("test \"", name, "\" is not supported"));
}

}  // namespace ringfleet::coordinator::jinja
