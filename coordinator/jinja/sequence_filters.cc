// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cluster/process/status_macros.h"
#include "coordinator/jinja/compare.h"
#include "coordinator/jinja/filters.h"
#include "coordinator/jinja/item_key.h"
#include "coordinator/jinja/methods.h"
#include "coordinator/jinja/operators.h"
#include "coordinator/jinja/print.h"

namespace ringfleet::coordinator::jinja {
namespace {

absl::StatusOr<Value> FilterLength(const FilterCall& call) {
  RF_RETURN_IF_ERROR(call.Bind({}).status());
  RF_ASSIGN_OR_RETURN(const int64_t length, Length(call.value, call.context));
  return Value::Int(length);
}

absl::StatusOr<Value> FilterFirst(const FilterCall& call) {
  RF_RETURN_IF_ERROR(call.Bind({}).status());
  List* list = call.value.AsList();
  if (list && list->kind == List::kIterator && !list->items.empty()) {
    RF_RETURN_IF_ERROR(call.context->WorkOnItems(list->items.size()));
    const Value first = list->items[0];
    list->items.erase(list->items.begin());
    return first;
  }
  RF_ASSIGN_OR_RETURN(const std::vector<Value> items,
                      ToItems(call.value, call.context));
  if (items.empty()) return Value::Undefined("there is no first item");
  return items[0];
}

absl::StatusOr<Value> FilterLast(const FilterCall& call) {
  RF_RETURN_IF_ERROR(call.Bind({}).status());
  if (call.value.AsList() && call.value.AsList()->kind == List::kIterator) {
    return CallError("last",
                     "an iterator has no last item, want the filter "
                     "list before");
  }
  RF_ASSIGN_OR_RETURN(const std::vector<Value> items,
                      ToItems(call.value, call.context));
  if (items.empty()) return Value::Undefined("there is no last item");
  return items.back();
}

absl::StatusOr<Value> FilterList(const FilterCall& call) {
  RF_RETURN_IF_ERROR(call.Bind({}).status());
  RF_ASSIGN_OR_RETURN(std::vector<Value> items,
                      ToItems(call.value, call.context));
  return call.context->NewList(std::move(items));
}

absl::StatusOr<Value> FilterJoin(const FilterCall& call) {
  RF_ASSIGN_OR_RETURN(const BoundArguments bound,
                      call.Bind({"d", "attribute"}));
  RF_ASSIGN_OR_RETURN(const Text separator,
                      ToText(bound.Or(0, Value::Literal("")), call.context));
  RF_ASSIGN_OR_RETURN(const std::vector<Value> items,
                      ToItems(call.value, call.context));
  Text joined;
  for (size_t i = 0; i < items.size(); ++i) {
    RF_ASSIGN_OR_RETURN(const Value item,
                        ItemAt(items[i], bound.Or(1, Value()), call.context));
    RF_ASSIGN_OR_RETURN(const Text text, ToText(item, call.context));
    RF_RETURN_IF_ERROR(call.context->Work(separator.size() + text.size()));
    if (i > 0) joined.Append(separator);
    joined.Append(text);
  }
  return Value::String(std::move(joined));
}

absl::StatusOr<Value> FilterReverse(const FilterCall& call) {
  RF_RETURN_IF_ERROR(call.Bind({}).status());
  if (call.value.AsText()) {
    return Slice(call.value, Value(), Value(), Value::Int(-1), call.context);
  }
  RF_ASSIGN_OR_RETURN(std::vector<Value> items,
                      ToItems(call.value, call.context));
  std::reverse(items.begin(), items.end());
  const bool iterator =
      call.value.AsList() && call.value.AsList()->kind == List::kIterator;
  return call.context->NewList(std::move(items),
                               iterator ? List::kList : List::kIterator);
}

absl::StatusOr<Value> FilterItems(const FilterCall& call) {
  RF_RETURN_IF_ERROR(call.Bind({}).status());
  const Dict* dict = call.value.AsDict();
  if (!dict && !call.value.IsUndefined()) {
    return CallError("items",
                     absl::StrCat("a value of type ", call.value.TypeName(),
                                  ", want a mapping"));
  }
  std::vector<Value> pairs;
  if (dict) {
    RF_RETURN_IF_ERROR(call.context->WorkOnItems(3 * dict->items.size()));
    for (const auto& [key, value] : dict->items) {
      pairs.push_back(call.context->NewPair(key, value));
    }
  }
  return call.context->NewList(std::move(pairs), List::kIterator);
}

absl::StatusOr<Value> FilterDictsort(const FilterCall& call) {
  RF_ASSIGN_OR_RETURN(const BoundArguments bound,
                      call.Bind({"case_sensitive", "by", "reverse"}));
  RF_ASSIGN_OR_RETURN(const Text by, bound.TextOr(1, "key"));
  const Dict* dict = call.value.AsDict();
  if (!dict || (by.bytes() != "key" && by.bytes() != "value")) {
    return UndefinedOr(
        call.value,
        absl::StrCat("dictsort() of a ", call.value.TypeName(), " by \"",
                     by.bytes(), "\", want a mapping by key or value"));
  }
  RF_RETURN_IF_ERROR(call.context->WorkOnItems(3 * dict->items.size()));
  std::vector<Value> pairs;
  for (const auto& [key, value] : dict->items) {
    pairs.push_back(call.context->NewPair(key, value));
  }
  RF_ASSIGN_OR_RETURN(std::vector<Value> keys,
                      KeysAt(pairs, Value::Int(by.bytes() == "key" ? 0 : 1),
                             bound.TruthOr(0, false), call.context));
  RF_RETURN_IF_ERROR(SortByKeys(std::move(keys), bound.TruthOr(2, false),
                                &pairs, call.context));
  return call.context->NewList(std::move(pairs));
}

// min and max: the first item of the least or the largest key.
absl::StatusOr<Value> FilterExtreme(const FilterCall& call) {
  RF_ASSIGN_OR_RETURN(const BoundArguments bound,
                      call.Bind({"case_sensitive", "attribute"}));
  RF_ASSIGN_OR_RETURN(const std::vector<Value> items,
                      ToItems(call.value, call.context));
  if (items.empty()) return Value::Undefined("the sequence is empty");
  RF_ASSIGN_OR_RETURN(const std::vector<Value> keys,
                      KeysAt(items, bound.Or(1, Value()),
                             bound.TruthOr(0, false), call.context));
  size_t best = 0;
  for (size_t i = 1; i < keys.size(); ++i) {
    RF_ASSIGN_OR_RETURN(const bool better,
                        call.name == "min"
                            ? Less(keys[i], keys[best], call.context)
                            : Less(keys[best], keys[i], call.context));
    if (better) best = i;
  }
  return items[best];
}

absl::StatusOr<Value> FilterSum(const FilterCall& call) {
  RF_ASSIGN_OR_RETURN(const BoundArguments bound,
                      call.Bind({"attribute", "start"}));
  RF_ASSIGN_OR_RETURN(const std::vector<Value> items,
                      ToItems(call.value, call.context));
  Value sum = bound.Or(1, Value::Int(0));
  if (sum.AsText()) return CallError("sum", "strings, want the filter join");
  for (const Value& item : items) {
    RF_ASSIGN_OR_RETURN(const Value term,
                        ItemAt(item, bound.Or(0, Value()), call.context));
    RF_ASSIGN_OR_RETURN(sum, Arithmetic("+", sum, term, call.context));
  }
  return sum;
}

absl::StatusOr<Value> FilterDefault(const FilterCall& call) {
  RF_ASSIGN_OR_RETURN(const BoundArguments bound,
                      call.Bind({"default_value", "boolean"}));
  const bool keep = !call.value.IsUndefined() &&
                    !(bound.TruthOr(1, false) && !call.value.IsTrue());
  return keep ? call.value : bound.Or(0, Value::Literal(""));
}

absl::StatusOr<Value> FilterAttr(const FilterCall& call) {
  RF_ASSIGN_OR_RETURN(const BoundArguments bound, call.Bind({"name"}, 1));
  RF_ASSIGN_OR_RETURN(const Text name, bound.TextOr(0, ""));
  RF_ASSIGN_OR_RETURN(const auto found,
                      OwnAttribute(call.value, name.bytes(), call.context));
  if (found.has_value()) return *found;
  return Value::Undefined(absl::StrCat(
      "a ", call.value.TypeName(), " has no attribute \"", name.bytes(), "\""));
}

// A list of lists of `size` items each, the last one filled up.
absl::StatusOr<Value> FilterBatch(const FilterCall& call) {
  RF_ASSIGN_OR_RETURN(const BoundArguments bound,
                      call.Bind({"linecount", "fill_with"}, 1));
  RF_ASSIGN_OR_RETURN(const int64_t size, bound.IntegerOr(0, 0));
  RF_ASSIGN_OR_RETURN(const std::vector<Value> items,
                      ToItems(call.value, call.context));
  std::vector<Value> batches;
  std::vector<Value> batch;
  const auto close = [&] {
    batches.push_back(call.context->NewList(std::move(batch)));
    batch.clear();
  };
  for (const Value& item : items) {
    RF_RETURN_IF_ERROR(call.context->WorkOnItems(3));
    if (static_cast<int64_t>(batch.size()) == size) close();
    batch.push_back(item);
  }
  if (!batch.empty()) {
    if (!bound.AbsentOrNone(1) && size > static_cast<int64_t>(batch.size())) {
      RF_RETURN_IF_ERROR(call.context->WorkOnItems(size));
      batch.resize(size, bound[1]);
    }
    close();
  }
  return call.context->NewList(std::move(batches), List::kIterator);
}

// `slices` lists, the longer ones first.
absl::StatusOr<Value> FilterSlice(const FilterCall& call) {
  RF_ASSIGN_OR_RETURN(const BoundArguments bound,
                      call.Bind({"slices", "fill_with"}, 1));
  RF_ASSIGN_OR_RETURN(const int64_t count, bound.IntegerOr(0, 0));
  if (count < 1 || count > kMaxRange) {
    return CallError("slice",
                     absl::StrCat(count, " slices, want 1 to ", kMaxRange));
  }
  RF_ASSIGN_OR_RETURN(const std::vector<Value> items,
                      ToItems(call.value, call.context));
  RF_RETURN_IF_ERROR(call.context->WorkOnItems(3 * count + items.size()));
  const auto longer = static_cast<int64_t>(items.size() % count);
  std::vector<Value> slices;
  auto next = items.begin();
  for (int64_t i = 0; i < count; ++i) {
    const auto end = next + items.size() / count + (i < longer ? 1 : 0);
    std::vector<Value> slice(next, end);
    next = end;
    if (!bound.AbsentOrNone(1) && i >= longer) slice.push_back(bound[1]);
    slices.push_back(call.context->NewList(std::move(slice)));
  }
  return call.context->NewList(std::move(slices), List::kIterator);
}

}  // namespace

const FilterTable& SequenceFilters() {
  static const auto* const kFilters =
      new FilterTable({{"length", FilterLength},
                       {"count", FilterLength},
                       {"first", FilterFirst},
                       {"last", FilterLast},
                       {"list", FilterList},
                       {"join", FilterJoin},
                       {"reverse", FilterReverse},
                       {"items", FilterItems},
                       {"dictsort", FilterDictsort},
                       {"min", FilterExtreme},
                       {"max", FilterExtreme},
                       {"sum", FilterSum},
                       {"default", FilterDefault},
                       {"d", FilterDefault},
                       {"attr", FilterAttr},
                       {"batch", FilterBatch},
                       {"slice", FilterSlice}});
  return *kFilters;
}

}  // namespace ringfleet::coordinator::jinja
