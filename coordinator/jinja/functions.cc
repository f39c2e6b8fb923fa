// SPDX-License-Identifier: Apache-2.0
#include "coordinator/jinja/functions.h"

#include <ctime>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/time/time.h"
#include "cluster/process/status_macros.h"
#include "coordinator/jinja/arguments.h"
#include "coordinator/jinja/compare.h"
#include "coordinator/jinja/operators.h"
#include "coordinator/jinja/print.h"

namespace ringfleet::coordinator::jinja {
namespace {

constexpr size_t kMaxTimeFormat = 1000;
constexpr size_t kMaxTimeText = 64 << 10;

absl::StatusOr<Value> CallRange(const Arguments& arguments, Context* context) {
  const std::vector<Value>& given = arguments.positional;
  Integer bounds[3] = {0, 0, 1};
  if (given.empty() || given.size() > 3 || !arguments.keywords.empty()) {
    return CallError("range",
                     absl::StrCat(given.size(), " arguments, want 1 to 3"));
  }
  for (size_t i = 0; i < given.size(); ++i) {
    // One argument alone is the end.
    if (!given[i].ToInteger(&bounds[given.size() == 1 ? 1 : i])) {
      return UndefinedOr(given[i],
                         absl::StrCat("range() of a ", given[i].TypeName()));
    }
  }
  return MakeRange(bounds[0], bounds[1], bounds[2], context);
}

// namespace() and dict(), of a mapping or of pairs, and keywords.
absl::StatusOr<Dict> CallDict(const std::string& name,
                              const Arguments& arguments, Context* context) {
  Dict dict;
  if (arguments.positional.size() > 1) {
    return CallError(name, absl::StrCat(arguments.positional.size(),
                                        " arguments, want at most 1"));
  }
  if (!arguments.positional.empty()) {
    const Value& source = arguments.positional[0];
    if (source.AsDict()) {
      RF_RETURN_IF_ERROR(
          context->WorkOnItems(2 * source.AsDict()->items.size()));
      dict = *source.AsDict();
    } else {
      RF_ASSIGN_OR_RETURN(const std::vector<Value> pairs,
                          ToItems(source, context));
      for (const Value& pair : pairs) {
        RF_ASSIGN_OR_RETURN(const std::vector<Value> items,
                            ToItems(pair, context));
        if (items.size() != 2)
          return CallError(name, "items that are no pairs");
        RF_ASSIGN_OR_RETURN(std::string key, HashKey(items[0], context));
        dict.Set(std::move(key), items[0], items[1]);
      }
    }
  }
  for (const auto& [key, value] : arguments.keywords) {
    RF_RETURN_IF_ERROR(context->WorkOnItems(2));
    dict.Set(key, value);
  }
  return dict;
}

absl::StatusOr<Value> CallTime(const Arguments& arguments, Context* context) {
  RF_ASSIGN_OR_RETURN(
      const BoundArguments bound,
      BoundArguments::Bind("strftime_now", arguments, {"format"}, 1));
  RF_ASSIGN_OR_RETURN(const Text format, bound.TextOr(0, ""));
  if (format.size() > kMaxTimeFormat) {
    return CallError("strftime_now",
                     absl::StrCat("a format of ", format.size(),
                                  " bytes, want at most ", kMaxTimeFormat));
  }
  if (format.empty()) return Value::Literal("");
  const absl::CivilSecond now = context->now();
  std::tm time = {};
  time.tm_year = static_cast<int>(now.year() - 1900);
  time.tm_mon = now.month() - 1;
  time.tm_mday = now.day();
  time.tm_hour = now.hour();
  time.tm_min = now.minute();
  time.tm_sec = now.second();
  time.tm_yday = absl::GetYearDay(absl::CivilDay(now)) - 1;
  time.tm_wday =
      (static_cast<int>(absl::GetWeekday(absl::CivilDay(now))) + 1) % 7;
  time.tm_isdst = -1;
  // The time has no zone and no fraction. A blank keeps the text from being
  // empty, which strftime reports as it reports a short buffer.
  const std::string pattern =
      absl::StrReplaceAll(
          format.bytes(),
          {{"%%", "%%"}, {"%f", "000000"}, {"%z", ""}, {"%Z", ""}}) +
      " ";
  std::string text(kMaxTimeText, '\0');
  text.resize(std::strftime(text.data(), text.size(), pattern.c_str(), &time));
  if (text.empty()) return CallError("strftime_now", "the text is too long");
  text.pop_back();
  RF_RETURN_IF_ERROR(context->Work(text.size()));
  return Value::String(Text(text, format.origin()));
}

absl::StatusOr<Value> CallJoiner(Function* joiner, const Arguments& arguments) {
  if (!arguments.positional.empty() || !arguments.keywords.empty()) {
    return CallError("joiner", "arguments, want none");
  }
  return joiner->position++ == 0 ? Value::Literal("") : joiner->items[0];
}

}  // namespace

absl::flat_hash_map<std::string, Value> Functions(Context* context) {
  absl::flat_hash_map<std::string, Value> functions;
  for (const char* name : {"range", "namespace", "dict", "cycler", "joiner",
                           "raise_exception", "strftime_now"}) {
    functions[name] = Value(context->New(Function{name, {}, 0}));
  }
  return functions;
}

absl::StatusOr<Value> CallFunction(Function* function,
                                   const Arguments& arguments,
                                   Context* context) {
  const std::string& name = function->name;
  // Only objects of cycler() and joiner() hold items.
  if (!function->items.empty()) {
    if (name == "joiner") return CallJoiner(function, arguments);
    return CallError(name, "the object is not callable, want next()");
  }
  RF_RETURN_IF_ERROR(context->Work(sizeof(Namespace)));
  if (name == "range") return CallRange(arguments, context);
  if (name == "strftime_now") return CallTime(arguments, context);
  if (name == "dict") {
    RF_ASSIGN_OR_RETURN(Dict dict, CallDict(name, arguments, context));
    return Value(context->New(std::move(dict)));
  }
  if (name == "namespace") {
    RF_ASSIGN_OR_RETURN(Dict dict, CallDict(name, arguments, context));
    return Value(context->New(Namespace{std::move(dict)}));
  }
  if (name == "raise_exception") {
    RF_ASSIGN_OR_RETURN(const BoundArguments bound,
                        BoundArguments::Bind(name, arguments, {"message"}, 1));
    RF_ASSIGN_OR_RETURN(const Text message, ToText(bound[0], context));
    return absl::InvalidArgumentError(message.bytes());
  }
  std::vector<Value> items = arguments.positional;
  if (name == "joiner" && items.empty()) items = {Value::Literal(", ")};
  if (items.empty() || (name == "joiner" && items.size() > 1)) {
    return CallError(name, absl::StrCat(items.size(), " arguments"));
  }
  return Value(context->New(Function{name, std::move(items), 0}));
}

}  // namespace ringfleet::coordinator::jinja
