// SPDX-License-Identifier: Apache-2.0
#include "coordinator/jinja/methods.h"

#include <algorithm>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cluster/process/status_macros.h"
#include "coordinator/jinja/arguments.h"
#include "coordinator/jinja/ast.h"
#include "coordinator/jinja/compare.h"
#include "coordinator/jinja/item_key.h"
#include "coordinator/jinja/string_methods.h"

namespace ringfleet::coordinator::jinja {
namespace {

bool IsOneOf(absl::string_view name,
             std::initializer_list<absl::string_view> names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

bool IsMethodOf(const Value& object, absl::string_view name) {
  if (object.AsText()) return IsStringMethod(name);
  if (object.AsDict()) {
    return IsOneOf(name, {"items", "keys", "values", "get", "copy", "update",
                          "pop", "popitem", "setdefault", "clear"});
  }
  if (object.AsLoop()) return IsOneOf(name, {"cycle", "changed"});
  if (const List* list = object.AsList()) {
    if (list->IsSequence() && IsOneOf(name, {"count", "index"})) return true;
    return list->kind == List::kList &&
           IsOneOf(name, {"append", "extend", "insert", "pop", "remove",
                          "clear", "reverse", "sort", "copy"});
  }
  if (const Function* function = object.AsFunction()) {
    return function->name == "cycler" && IsOneOf(name, {"next", "reset"});
  }
  return false;
}

absl::optional<Value> LoopAttribute(const Loop& loop, absl::string_view name) {
  const auto size = static_cast<int64_t>(loop.items.size());
  if (name == "index0") return Value::Int(loop.index0);
  if (name == "index") return Value::Int(loop.index0 + 1);
  if (name == "revindex0") return Value::Int(size - loop.index0 - 1);
  if (name == "revindex") return Value::Int(size - loop.index0);
  if (name == "first") return Value::Boolean(loop.index0 == 0);
  if (name == "last") return Value::Boolean(loop.index0 + 1 >= size);
  if (name == "length") return Value::Int(size);
  if (name == "depth0") return Value::Int(loop.depth0);
  if (name == "depth") return Value::Int(loop.depth0 + 1);
  if (name == "previtem") {
    return loop.index0 > 0 ? loop.items[loop.index0 - 1]
                           : Value::Undefined("there is no previous item");
  }
  if (name == "nextitem") {
    return loop.index0 + 1 < size ? loop.items[loop.index0 + 1]
                                  : Value::Undefined("there is no next item");
  }
  return absl::nullopt;
}

Value MacroAttribute(const Macro& macro, absl::string_view name,
                     Context* context) {
  if (name == "name") return Value::Literal(macro.name);
  if (name == "arguments") {
    std::vector<Value> names;
    for (const Parameter& parameter : macro.definition->parameters) {
      names.push_back(Value::Literal(parameter.name));
    }
    return context->NewList(std::move(names), List::kTuple);
  }
  if (name == "catch_kwargs") {
    return Value::Boolean(macro.definition->uses_kwargs);
  }
  if (name == "catch_varargs") {
    return Value::Boolean(macro.definition->uses_varargs);
  }
  return Value::Boolean(macro.definition->uses_caller);
}

absl::StatusOr<Value> CallDictMethod(const Method& method,
                                     const Arguments& arguments,
                                     Context* context) {
  const Dict& dict = *method.object.AsDict();
  if (method.name == "get") {
    RF_ASSIGN_OR_RETURN(
        const BoundArguments bound,
        BoundArguments::Bind("get", arguments, {"key", "default"}, 1));
    RF_ASSIGN_OR_RETURN(const std::string key, HashKey(bound[0], context));
    const auto found = dict.index.find(key);
    return found == dict.index.end() ? bound.Or(1, Value())
                                     : dict.items[found->second].second;
  }
  const bool items = method.name == "items";
  const bool keys = method.name == "keys";
  if (!items && !keys && !IsOneOf(method.name, {"values", "copy"})) {
    return CallError(method.name,
                     "access to a method that changes a dict is "
                     "not allowed");
  }
  RF_RETURN_IF_ERROR(BoundArguments::Bind(method.name, arguments, {}).status());
  RF_RETURN_IF_ERROR(context->WorkOnItems(2 * dict.items.size()));
  if (method.name == "copy") return Value(context->New(Dict(dict)));
  std::vector<Value> view;
  for (const auto& [key, value] : dict.items) {
    view.push_back(items ? context->NewPair(key, value) : keys ? key : value);
  }
  return context->NewList(std::move(view), items  ? List::kItems
                                           : keys ? List::kKeys
                                                  : List::kValues);
}

// index() and count() of lists, tuples and ranges.
absl::StatusOr<Value> CallSearch(const Method& method,
                                 const Arguments& arguments, Context* context) {
  RF_ASSIGN_OR_RETURN(
      const BoundArguments bound,
      BoundArguments::Bind(method.name, arguments, {"value"}, 1));
  const std::vector<Value>& items = method.object.AsList()->items;
  int64_t count = 0;
  for (size_t i = 0; i < items.size(); ++i) {
    RF_ASSIGN_OR_RETURN(const bool same, Equal(items[i], bound[0], context));
    if (same && method.name == "index") return Value::Int(i);
    count += same;
  }
  if (method.name == "index") {
    return CallError("index", "the value is not in the list");
  }
  return Value::Int(count);
}

absl::StatusOr<Value> CallPop(List* list, const Arguments& arguments,
                              Context* context) {
  RF_ASSIGN_OR_RETURN(const BoundArguments bound,
                      BoundArguments::Bind("pop", arguments, {"index"}));
  RF_ASSIGN_OR_RETURN(int64_t index, bound.IntegerOr(0, -1));
  const auto size = static_cast<int64_t>(list->items.size());
  if (index < 0) index += size;
  if (index < 0 || index >= size) {
    return CallError("pop", absl::StrCat("no item ", index, " in a list of ",
                                         size, " items"));
  }
  RF_RETURN_IF_ERROR(context->WorkOnItems(size - index));
  Value item = std::move(list->items[index]);
  list->items.erase(list->items.begin() + index);
  return item;
}

absl::StatusOr<Value> CallListMethod(const Method& method,
                                     const Arguments& arguments,
                                     Context* context) {
  List* list = method.object.AsList();
  std::vector<Value>& items = list->items;
  const std::string& name = method.name;
  if (IsOneOf(name, {"count", "index"})) {
    return CallSearch(method, arguments, context);
  }
  RF_RETURN_IF_ERROR(context->Work(sizeof(Value)));
  if (name == "pop") return CallPop(list, arguments, context);
  if (name == "sort") {
    RF_ASSIGN_OR_RETURN(const BoundArguments bound,
                        BoundArguments::Bind(name, arguments, {"reverse"}));
    RF_RETURN_IF_ERROR(
        SortByKeys(items, bound.TruthOr(0, false), &items, context));
    return Value();
  }
  const size_t wanted = IsOneOf(name, {"clear", "reverse", "copy"}) ? 0
                        : name == "insert"                          ? 2
                                                                    : 1;
  if (arguments.positional.size() != wanted || !arguments.keywords.empty()) {
    return CallError(name, absl::StrCat(arguments.positional.size(),
                                        " arguments, want ", wanted));
  }
  if (name == "copy") {
    RF_RETURN_IF_ERROR(context->WorkOnItems(items.size()));
    return context->NewList(items);
  }
  if (name == "clear") {
    items.clear();
  } else if (name == "reverse") {
    std::reverse(items.begin(), items.end());
  } else if (name == "append") {
    items.push_back(arguments.positional[0]);
  } else if (name == "extend") {
    RF_ASSIGN_OR_RETURN(const std::vector<Value> more,
                        ToItems(arguments.positional[0], context));
    items.insert(items.end(), more.begin(), more.end());
  } else if (name == "remove") {
    for (size_t i = 0; i < items.size(); ++i) {
      RF_ASSIGN_OR_RETURN(const bool same,
                          Equal(items[i], arguments.positional[0], context));
      if (!same) continue;
      RF_RETURN_IF_ERROR(context->WorkOnItems(items.size() - i));
      items.erase(items.begin() + i);
      return Value();
    }
    return CallError(name, "the value is not in the list");
  } else {  // insert
    RF_ASSIGN_OR_RETURN(
        const BoundArguments bound,
        BoundArguments::Bind(name, arguments, {"index", "item"}));
    RF_ASSIGN_OR_RETURN(int64_t index, bound.IntegerOr(0, 0));
    const auto size = static_cast<int64_t>(items.size());
    RF_RETURN_IF_ERROR(context->WorkOnItems(items.size()));
    if (index < 0) index = std::max<int64_t>(0, std::max(index, -size) + size);
    items.insert(items.begin() + std::min(index, size), bound[1]);
  }
  return Value();
}

absl::StatusOr<Value> CallLoopMethod(const Method& method,
                                     const Arguments& arguments,
                                     Context* context) {
  Loop& loop = *method.object.AsLoop();
  if (!arguments.keywords.empty()) {
    return CallError(method.name, "unexpected keyword argument");
  }
  if (method.name == "cycle") {
    if (arguments.positional.empty()) {
      return CallError("cycle", "no items to choose from");
    }
    return arguments.positional[loop.index0 % arguments.positional.size()];
  }
  Value shown = context->NewList(arguments.positional, List::kTuple);
  RF_ASSIGN_OR_RETURN(const bool same, Equal(shown, loop.changed, context));
  loop.changed = std::move(shown);
  return Value::Boolean(!same);
}

Value CallCyclerMethod(const Method& method) {
  Function& cycler = *method.object.AsFunction();
  if (method.name == "reset") {
    cycler.position = 0;
    return Value();
  }
  const Value item = cycler.items[cycler.position];
  cycler.position = (cycler.position + 1) % cycler.items.size();
  return item;
}

}  // namespace

absl::StatusOr<absl::optional<Value>> OwnAttribute(const Value& object,
                                                   absl::string_view name,
                                                   Context* context) {
  absl::optional<Value> found;
  if (IsMethodOf(object, name)) {
    RF_RETURN_IF_ERROR(context->Work(sizeof(Method)));
    found = Value(context->New(Method{object, std::string(name)}));
  } else if (const Namespace* space = object.AsNamespace()) {
    const Value* value = space->attributes.Find(name);
    if (value) found = *value;
  } else if (object.AsLoop()) {
    found = LoopAttribute(*object.AsLoop(), name);
  } else if (object.AsMacro() &&
             IsOneOf(name, {"name", "arguments", "catch_kwargs",
                            "catch_varargs", "caller"})) {
    found = MacroAttribute(*object.AsMacro(), name, context);
  } else if (object.AsList() && object.AsList()->kind == List::kGroup) {
    if (name == "grouper") found = object.AsList()->items[0];
    if (name == "list") found = object.AsList()->items[1];
  } else if (object.AsList() && object.AsList()->kind == List::kRange) {
    const Integer* bounds = object.AsList()->bounds;
    if (name == "start") found = Value::Int(bounds[0]);
    if (name == "stop") found = Value::Int(bounds[1]);
    if (name == "step") found = Value::Int(bounds[2]);
  } else if (const Function* function = object.AsFunction()) {
    if (function->name == "cycler" && name == "current") {
      found = function->items[function->position];
    }
  }
  return found;
}

absl::StatusOr<Value> CallMethod(const Method& method,
                                 const Arguments& arguments, Context* context) {
  if (method.object.AsText()) {
    return CallStringMethod(method.object, method.name, arguments, context);
  }
  if (method.object.AsDict()) {
    return CallDictMethod(method, arguments, context);
  }
  if (method.object.AsLoop()) return CallLoopMethod(method, arguments, context);
  if (method.object.AsFunction()) return CallCyclerMethod(method);
  return CallListMethod(method, arguments, context);
}

}  // namespace ringfleet::coordinator::jinja
