// SPDX-License-Identifier: Apache-2.0
#include "coordinator/jinja/tests.h"

#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "cluster/process/status_macros.h"
#include "coordinator/jinja/arguments.h"
#include "coordinator/jinja/compare.h"
#include "coordinator/jinja/filters.h"
#include "coordinator/jinja/operators.h"
#include "coordinator/jinja/print.h"
#include "coordinator/jinja/string_methods.h"

namespace ringfleet::coordinator::jinja {
namespace {

using PlainTest = bool (*)(const Value&);

bool IsCallable(const Value& value) {
  return value.AsMacro() || value.AsMethod() || value.IsUndefined() ||
         value.AsLoop() ||
         (value.AsFunction() && value.AsFunction()->name != "cycler");
}

bool IsIterable(const Value& value) {
  return value.AsText() || value.AsList() || value.AsDict() ||
         value.IsUndefined() || value.AsLoop();
}

bool IsSequence(const Value& value) {
  return value.AsText() || value.AsDict() || value.IsUndefined() ||
         (value.AsList() && value.AsList()->IsSequence());
}

// The tests that need the value alone.
const absl::flat_hash_map<absl::string_view, PlainTest>& PlainTests() {
  static const auto* const kTests =
      new absl::flat_hash_map<absl::string_view, PlainTest>(
          {{"defined", [](const Value& v) { return !v.IsUndefined(); }},
           {"undefined", [](const Value& v) { return v.IsUndefined(); }},
           {"none", [](const Value& v) { return v.IsNone(); }},
           {"boolean", [](const Value& v) { return v.AsBool() != nullptr; }},
           {"true", [](const Value& v) { return v.AsBool() && *v.AsBool(); }},
           {"false", [](const Value& v) { return v.AsBool() && !*v.AsBool(); }},
           {"integer", [](const Value& v) { return v.AsInt() != nullptr; }},
           {"float", [](const Value& v) { return v.AsDouble() != nullptr; }},
           {"number",
            [](const Value& v) {
              double number;
              return v.ToNumber(&number);
            }},
           {"string", [](const Value& v) { return v.AsText() != nullptr; }},
           {"mapping", [](const Value& v) { return v.AsDict() != nullptr; }},
           {"sequence", IsSequence},
           {"iterable", IsIterable},
           {"callable", IsCallable},
           {"escaped", [](const Value& v) { return v.IsMarkup(); }}});
  return *kTests;
}

// The operators by the names of their tests.
const absl::flat_hash_map<absl::string_view, absl::string_view>&
ComparisonTests() {
  static const auto* const kTests =
      new absl::flat_hash_map<absl::string_view, absl::string_view>(
          {{"eq", "=="},
           {"equalto", "=="},
           {"==", "=="},
           {"ne", "!="},
           {"!=", "!="},
           {"lt", "<"},
           {"lessthan", "<"},
           {"<", "<"},
           {"le", "<="},
           {"<=", "<="},
           {"gt", ">"},
           {"greaterthan", ">"},
           {">", ">"},
           {"ge", ">="},
           {">=", ">="},
           {"in", "in"}});
  return *kTests;
}

bool IsOther(absl::string_view name) {
  for (const char* other : {"odd", "even", "divisibleby", "lower", "upper",
                            "sameas", "filter", "test"}) {
    if (name == other) return true;
  }
  return false;
}

// Returns whether the two are one object, as far as values show it.
absl::StatusOr<bool> SameAs(const Value& a, const Value& b, Context* context) {
  if (a.AsList() || b.AsList()) return a.AsList() == b.AsList();
  if (a.AsDict() || b.AsDict()) return a.AsDict() == b.AsDict();
  if (std::string(a.TypeName()) != b.TypeName()) return false;
  return Equal(a, b, context);
}

absl::StatusOr<bool> RemainderIs(const Value& value, const Value& divisor,
                                 int64_t want, Context* context) {
  RF_ASSIGN_OR_RETURN(const Value remainder,
                      Arithmetic("%", value, divisor, context));
  return Equal(remainder, Value::Int(want), context);
}

}  // namespace

bool IsTest(absl::string_view name) {
  return PlainTests().contains(name) || ComparisonTests().contains(name) ||
         IsOther(name);
}

absl::StatusOr<bool> ApplyTest(absl::string_view name, const Value& value,
                               const Arguments& arguments, Context* context) {
  RF_RETURN_IF_ERROR(context->Step());
  const auto plain = PlainTests().find(name);
  const bool wants_none = plain != PlainTests().end() || name == "odd" ||
                          name == "even" || name == "lower" ||
                          name == "upper" || name == "filter" || name == "test";
  if (!IsTest(name)) {
    return absl::InvalidArgumentError(
        absl::StrCat("test \"", name, "\" does not exist"));
  }
  const size_t wanted = wants_none ? 0 : 1;
  if (arguments.positional.size() + arguments.keywords.size() != wanted) {
    return absl::InvalidArgumentError(
        absl::StrCat("test \"", name, "\" with ",
                     arguments.positional.size() + arguments.keywords.size(),
                     " arguments, want ", wanted));
  }
  if (plain != PlainTests().end()) return plain->second(value);
  const Value argument = wants_none ? Value()
                         : arguments.positional.empty()
                             ? arguments.keywords[0].second
                             : arguments.positional[0];
  const auto comparison = ComparisonTests().find(name);
  if (comparison != ComparisonTests().end()) {
    return Compare(comparison->second, value, argument, context);
  }
  if (name == "odd" || name == "even") {
    return RemainderIs(value, Value::Int(2), name == "odd", context);
  }
  if (name == "divisibleby") return RemainderIs(value, argument, 0, context);
  if (name == "sameas") return SameAs(value, argument, context);
  if (name == "lower" || name == "upper") {
    RF_ASSIGN_OR_RETURN(Text text, ToText(value, context));
    RF_ASSIGN_OR_RETURN(
        const Value holds,
        CallStringMethod(Value::String(std::move(text)),
                         absl::StrCat("is", name), {}, context));
    return holds.IsTrue();
  }
  const std::string* tested = value.AsString();
  if (tested == nullptr) return false;
  return name == "filter" ? IsFilter(*tested) : IsTest(*tested);
}

}  // namespace ringfleet::coordinator::jinja
