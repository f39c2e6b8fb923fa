// SPDX-License-Identifier: Apache-2.0
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "cluster/process/status_macros.h"
#include "coordinator/jinja/compare.h"
#include "coordinator/jinja/filters.h"
#include "coordinator/jinja/item_key.h"
#include "coordinator/jinja/tests.h"

namespace ringfleet::coordinator::jinja {
namespace {

// The arguments behind the first `count`.
Arguments After(const Arguments& arguments, size_t count) {
  return {{arguments.positional.begin() + count, arguments.positional.end()},
          arguments.keywords};
}

// The items of a filter's value. A value that is false has none.
absl::StatusOr<std::vector<Value>> ItemsOf(const FilterCall& call) {
  if (!call.value.IsTrue()) return std::vector<Value>();
  return ToItems(call.value, call.context);
}

// ItemAt, with `fallback` for undefined items unless it is none.
absl::StatusOr<Value> ItemOr(const Value& item, const Value& path,
                             const Value& fallback, Context* context) {
  if (fallback.IsNone()) return ItemAt(item, path, context);
  if (path.AsString() == nullptr) {
    RF_ASSIGN_OR_RETURN(Value value, ItemAt(item, path, context));
    return value.IsUndefined() ? fallback : value;
  }
  Value value = item;
  for (const absl::string_view part : absl::StrSplit(*path.AsString(), '.')) {
    RF_ASSIGN_OR_RETURN(value, ItemAt(value, Value::Literal(part), context));
    if (value.IsUndefined()) value = fallback;
  }
  return value;
}

// map(filter, arguments) or map(attribute=path, default=value).
absl::StatusOr<Value> FilterMap(const FilterCall& call) {
  RF_ASSIGN_OR_RETURN(const std::vector<Value> items, ItemsOf(call));
  const std::vector<Value>& names = call.arguments.positional;
  std::vector<Value> mapped;
  if (names.empty()) {
    RF_ASSIGN_OR_RETURN(const BoundArguments bound,
                        call.Bind({"attribute", "default"}, 1));
    for (const Value& item : items) {
      RF_ASSIGN_OR_RETURN(
          Value value,
          ItemOr(item, bound[0], bound.Or(1, Value()), call.context));
      mapped.push_back(std::move(value));
    }
  } else {
    if (names[0].AsString() == nullptr) {
      return CallError(
          "map", absl::StrCat("a filter's name of type ", names[0].TypeName()));
    }
    // Filters that apply filters hold the arguments of each level at once.
    RF_RETURN_IF_ERROR(call.context->WorkOnItems(names.size()));
    const Arguments arguments = After(call.arguments, 1);
    for (const Value& item : items) {
      RF_ASSIGN_OR_RETURN(Value value, ApplyFilter(*names[0].AsString(), item,
                                                   arguments, call.context));
      mapped.push_back(std::move(value));
    }
  }
  return call.context->NewList(std::move(mapped), List::kIterator);
}

// select, reject, selectattr and rejectattr, by a test or by truth.
absl::StatusOr<Value> FilterSelect(const FilterCall& call) {
  const bool by_attribute = absl::EndsWith(call.name, "attr");
  const bool rejects = absl::StartsWith(call.name, "reject");
  const std::vector<Value>& given = call.arguments.positional;
  if (by_attribute && given.empty()) {
    return CallError(call.name, "argument \"attribute\" is missing");
  }
  const size_t named = by_attribute ? 1 : 0;  // The index of the test's name.
  const bool tests = given.size() > named;
  if (tests && given[named].AsString() == nullptr) {
    return CallError(call.name, absl::StrCat("a test's name of type ",
                                             given[named].TypeName()));
  }
  const Arguments arguments =
      tests ? After(call.arguments, named + 1) : Arguments();
  RF_ASSIGN_OR_RETURN(const std::vector<Value> items, ItemsOf(call));
  std::vector<Value> selected;
  for (const Value& item : items) {
    RF_ASSIGN_OR_RETURN(
        const Value value,
        by_attribute ? ItemAt(item, given[0], call.context) : item);
    bool holds = value.IsTrue();
    if (tests) {
      RF_ASSIGN_OR_RETURN(holds, ApplyTest(*given[named].AsString(), value,
                                           arguments, call.context));
    }
    if (holds != rejects) selected.push_back(item);
  }
  return call.context->NewList(std::move(selected), List::kIterator);
}

absl::StatusOr<Value> FilterSort(const FilterCall& call) {
  RF_ASSIGN_OR_RETURN(const BoundArguments bound,
                      call.Bind({"reverse", "case_sensitive", "attribute"}));
  RF_ASSIGN_OR_RETURN(std::vector<Value> items,
                      ToItems(call.value, call.context));
  // Several attributes are separated by commas. The key is a list of them.
  std::vector<Value> paths = {bound.Or(2, Value())};
  if (const std::string* path = paths[0].AsString()) {
    const std::vector<std::string> parts = absl::StrSplit(*path, ',');
    paths.clear();
    for (const std::string& part : parts) {
      paths.push_back(Value::Literal(part));
    }
  }
  std::vector<Value> keys;
  for (const Value& item : items) {
    std::vector<Value> parts;
    for (const Value& path : paths) {
      RF_ASSIGN_OR_RETURN(
          Value key, KeyAt(item, path, bound.TruthOr(1, false), call.context));
      parts.push_back(std::move(key));
    }
    keys.push_back(call.context->NewList(std::move(parts)));
  }
  RF_RETURN_IF_ERROR(SortByKeys(std::move(keys), bound.TruthOr(0, false),
                                &items, call.context));
  return call.context->NewList(std::move(items));
}

absl::StatusOr<Value> FilterUnique(const FilterCall& call) {
  RF_ASSIGN_OR_RETURN(const BoundArguments bound,
                      call.Bind({"case_sensitive", "attribute"}));
  RF_ASSIGN_OR_RETURN(const std::vector<Value> items,
                      ToItems(call.value, call.context));
  absl::flat_hash_set<std::string> seen;
  std::vector<Value> unique;
  for (const Value& item : items) {
    RF_ASSIGN_OR_RETURN(const Value key,
                        KeyAt(item, bound.Or(1, Value()),
                              bound.TruthOr(0, false), call.context));
    RF_ASSIGN_OR_RETURN(std::string hash_key, HashKey(key, call.context));
    if (seen.insert(std::move(hash_key)).second) unique.push_back(item);
  }
  return call.context->NewList(std::move(unique), List::kIterator);
}

absl::StatusOr<Value> FilterGroupby(const FilterCall& call) {
  RF_ASSIGN_OR_RETURN(const BoundArguments bound,
                      call.Bind({"attribute", "default", "case_sensitive"}, 1));
  const bool case_sensitive = bound.TruthOr(2, false);
  RF_ASSIGN_OR_RETURN(std::vector<Value> items,
                      ToItems(call.value, call.context));
  // Pairs of an attribute and its item.
  std::vector<Value> pairs;
  for (const Value& item : items) {
    RF_ASSIGN_OR_RETURN(
        Value value,
        ItemOr(item, bound[0], bound.Or(1, Value()), call.context));
    pairs.push_back(call.context->NewPair(std::move(value), item));
  }
  const Value first = Value::Int(0);
  RF_ASSIGN_OR_RETURN(std::vector<Value> keys,
                      KeysAt(pairs, first, case_sensitive, call.context));
  RF_RETURN_IF_ERROR(
      SortByKeys(std::move(keys), /*reverse=*/false, &pairs, call.context));
  RF_ASSIGN_OR_RETURN(keys, KeysAt(pairs, first, case_sensitive, call.context));
  std::vector<Value> groups;
  for (size_t i = 0; i < pairs.size(); ++i) {
    const std::vector<Value>& pair = pairs[i].AsList()->items;
    bool same = false;
    if (i > 0) {
      RF_ASSIGN_OR_RETURN(same, Equal(keys[i - 1], keys[i], call.context));
    }
    if (!same) {
      groups.push_back(call.context->NewList(
          {pair[0], call.context->NewList({})}, List::kGroup));
    }
    groups.back().AsList()->items[1].AsList()->items.push_back(pair[1]);
  }
  return call.context->NewList(std::move(groups));
}

}  // namespace

const FilterTable& ItemFilters() {
  static const auto* const kFilters =
      new FilterTable({{"map", FilterMap},
                       {"select", FilterSelect},
                       {"reject", FilterSelect},
                       {"selectattr", FilterSelect},
                       {"rejectattr", FilterSelect},
                       {"sort", FilterSort},
                       {"unique", FilterUnique},
                       {"groupby", FilterGroupby}});
  return *kFilters;
}

}  // namespace ringfleet::coordinator::jinja
