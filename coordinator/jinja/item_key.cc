// SPDX-License-Identifier: Apache-2.0
#include "coordinator/jinja/item_key.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_split.h"
#include "cluster/process/status_macros.h"
#include "coordinator/jinja/compare.h"
#include "coordinator/jinja/integer.h"
#include "coordinator/jinja/operators.h"
#include "coordinator/jinja/split.h"

namespace ringfleet::coordinator::jinja {

absl::StatusOr<Value> ItemAt(const Value& item, const Value& path,
                             Context* context) {
  if (path.IsNone()) return item;
  const std::string* text = path.AsString();
  if (text == nullptr) return Subscript(item, path, context);
  RF_RETURN_IF_ERROR(context->Work(text->size()));
  Value value = item;
  for (const absl::string_view part : absl::StrSplit(*text, '.')) {
    const bool index =
        !part.empty() && std::all_of(part.begin(), part.end(), [](char c) {
          return absl::ascii_isdigit(c);
        });
    Value key = Value::Literal(part);
    if (index) {
      RF_ASSIGN_OR_RETURN(const Integer integer, ParseInteger(part, 10));
      key = Value::Int(integer);
    }
    RF_ASSIGN_OR_RETURN(value, Subscript(value, key, context));
  }
  return value;
}

absl::StatusOr<Value> KeyAt(const Value& item, const Value& path,
                            bool case_sensitive, Context* context) {
  RF_ASSIGN_OR_RETURN(Value key, ItemAt(item, path, context));
  if (case_sensitive || !key.AsText()) return key;
  RF_RETURN_IF_ERROR(context->Work(key.AsText()->size()));
  return Value::String(ChangeCase(*key.AsText(), LetterCase::kLower));
}

absl::StatusOr<std::vector<Value>> KeysAt(const std::vector<Value>& items,
                                          const Value& path,
                                          bool case_sensitive,
                                          Context* context) {
  std::vector<Value> keys;
  keys.reserve(items.size());
  for (const Value& item : items) {
    RF_ASSIGN_OR_RETURN(Value key, KeyAt(item, path, case_sensitive, context));
    keys.push_back(std::move(key));
  }
  return keys;
}

absl::Status SortByKeys(std::vector<Value> keys, bool reverse,
                        std::vector<Value>* items, Context* context) {
  RF_RETURN_IF_ERROR(context->WorkOnItems(2 * keys.size()));
  std::vector<size_t> order(keys.size());
  std::iota(order.begin(), order.end(), 0);
  absl::Status status;
  // A merge sort stays within its bounds when the order is inconsistent, as it
  // is after an error.
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    if (!status.ok()) return false;
    if (reverse) std::swap(a, b);
    const auto less = Less(keys[a], keys[b], context);
    if (!less.ok()) status = less.status();
    return less.ok() && *less;
  });
  RF_RETURN_IF_ERROR(status);
  std::vector<Value> sorted;
  sorted.reserve(items->size());
  for (const size_t i : order) sorted.push_back((*items)[i]);
  *items = std::move(sorted);
  return absl::OkStatus();
}

}  // namespace ringfleet::coordinator::jinja
