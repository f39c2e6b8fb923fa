// SPDX-License-Identifier: Apache-2.0
#include "coordinator/jinja/compare.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "cluster/process/status_macros.h"
#include "coordinator/jinja/characters.h"
#include "coordinator/jinja/print.h"
#include "coordinator/tokenizer/utf8.h"

namespace ringfleet::coordinator::jinja {
namespace {

absl::StatusOr<bool> EqualAt(const Value& a, const Value& b, int depth,
                             Context* context);

absl::StatusOr<bool> EqualLists(const List& a, const List& b, int depth,
                                Context* context) {
  const bool comparable = (a.IsTuple() && b.IsTuple()) ||
                          (a.kind == b.kind && a.kind != List::kIterator);
  if (&a == &b) return true;
  if (!comparable || a.items.size() != b.items.size()) return false;
  for (size_t i = 0; i < a.items.size(); ++i) {
    RF_ASSIGN_OR_RETURN(const bool same,
                        EqualAt(a.items[i], b.items[i], depth + 1, context));
    if (!same) return false;
  }
  return true;
}

absl::StatusOr<bool> EqualDicts(const Dict& a, const Dict& b, int depth,
                                Context* context) {
  if (a.items.size() != b.items.size()) return false;
  RF_RETURN_IF_ERROR(context->WorkOnItems(a.items.size()));
  for (const auto& [hash_key, position] : a.index) {
    const auto other = b.index.find(hash_key);
    if (other == b.index.end()) return false;
    RF_ASSIGN_OR_RETURN(const bool same, EqualAt(a.items[position].second,
                                                 b.items[other->second].second,
                                                 depth + 1, context));
    if (!same) return false;
  }
  return true;
}

absl::StatusOr<bool> EqualAt(const Value& a, const Value& b, int depth,
                             Context* context) {
  RF_RETURN_IF_ERROR(context->Step());
  if (depth > kMaxDepth) return TooDeep();
  double x, y;
  if (a.AsInt() && b.AsInt()) return *a.AsInt() == *b.AsInt();
  if (a.ToNumber(&x) && b.ToNumber(&y)) return x == y;
  if (a.AsString() && b.AsString()) {
    if (a.AsString()->size() != b.AsString()->size()) return false;
    RF_RETURN_IF_ERROR(context->Work(a.AsString()->size()));
    return *a.AsString() == *b.AsString();
  }
  if (a.AsList() && b.AsList()) {
    return EqualLists(*a.AsList(), *b.AsList(), depth, context);
  }
  if (a.AsDict() && b.AsDict()) {
    return EqualDicts(*a.AsDict(), *b.AsDict(), depth, context);
  }
  if (a.AsNamespace()) return a.AsNamespace() == b.AsNamespace();
  if (a.AsLoop()) return a.AsLoop() == b.AsLoop();
  if (a.AsMacro()) return a.AsMacro() == b.AsMacro();
  if (a.AsFunction()) return a.AsFunction() == b.AsFunction();
  return (a.IsNone() && b.IsNone()) || (a.IsUndefined() && b.IsUndefined());
}

absl::StatusOr<bool> LessAt(const Value& a, const Value& b, int depth,
                            Context* context) {
  RF_RETURN_IF_ERROR(context->Step());
  if (depth > kMaxDepth) return TooDeep();
  double x, y;
  if (a.AsInt() && b.AsInt()) return *a.AsInt() < *b.AsInt();
  if (a.ToNumber(&x) && b.ToNumber(&y)) return x < y;
  // Bytes of UTF-8 are in the order of code points.
  if (a.AsString() && b.AsString()) {
    RF_RETURN_IF_ERROR(
        context->Work(std::min(a.AsString()->size(), b.AsString()->size())));
    return *a.AsString() < *b.AsString();
  }
  const List* left = a.AsList();
  const List* right = b.AsList();
  if (left && right &&
      ((left->IsTuple() && right->IsTuple()) ||
       (left->kind == List::kList && right->kind == List::kList))) {
    const size_t common = std::min(left->items.size(), right->items.size());
    for (size_t i = 0; i < common; ++i) {
      RF_ASSIGN_OR_RETURN(
          const bool same,
          EqualAt(left->items[i], right->items[i], depth + 1, context));
      if (!same) {
        return LessAt(left->items[i], right->items[i], depth + 1, context);
      }
    }
    return left->items.size() < right->items.size();
  }
  for (const Value* value : {&a, &b}) {
    if (value->IsUndefined()) {
      return absl::InvalidArgumentError(*value->AsUndefined());
    }
  }
  return absl::InvalidArgumentError(
      absl::StrCat("a comparison of ", a.TypeName(), " with ", b.TypeName()));
}

absl::StatusOr<std::string> HashKeyAt(const Value& value, int depth,
                                      Context* context) {
  RF_RETURN_IF_ERROR(context->Step());
  if (depth > kMaxDepth) return TooDeep();
  double number;
  Integer integer;
  if (value.AsString()) {
    RF_RETURN_IF_ERROR(context->Work(value.AsString()->size()));
    return Dict::StringKey(*value.AsString());
  }
  if (value.ToInteger(&integer)) return absl::StrCat("n", IntegerText(integer));
  if (value.ToNumber(&number)) {
    const bool whole = std::abs(number) < 1e15 && number == std::floor(number);
    return absl::StrCat("n", whole ? IntegerText(static_cast<Integer>(number))
                                   : DoubleText(number));
  }
  if (value.IsNone()) return std::string("none");
  if (value.IsUndefined()) return std::string("undefined");
  if (value.AsList() && value.AsList()->IsTuple()) {
    std::string key = "(";
    for (const Value& item : value.AsList()->items) {
      RF_ASSIGN_OR_RETURN(const std::string part,
                          HashKeyAt(item, depth + 1, context));
      absl::StrAppend(&key, part.size(), ":", part);
    }
    return key;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("a ", value.TypeName(), " cannot be a key"));
}

absl::Status NoItems(const Value& value) {
  return absl::InvalidArgumentError(
      absl::StrCat("a value of type ", value.TypeName(), " has no items"));
}

}  // namespace

absl::StatusOr<bool> Equal(const Value& a, const Value& b, Context* context) {
  return EqualAt(a, b, 0, context);
}

absl::StatusOr<bool> Less(const Value& a, const Value& b, Context* context) {
  return LessAt(a, b, 0, context);
}

absl::StatusOr<bool> Compare(absl::string_view op, const Value& a,
                             const Value& b, Context* context) {
  absl::StatusOr<bool> holds;
  bool negated = false;
  if (op == "==" || op == "!=") {
    holds = Equal(a, b, context);
    negated = op == "!=";
  } else if (op == "in" || op == "not in") {
    holds = Contains(b, a, context);
    negated = op == "not in";
  } else {
    holds = op[0] == '<' ? Less(a, b, context) : Less(b, a, context);
    if (holds.ok() && !*holds && op.size() == 2) holds = Equal(a, b, context);
  }
  if (!holds.ok()) return holds;
  return *holds != negated;
}

absl::StatusOr<bool> Contains(const Value& container, const Value& item,
                              Context* context) {
  if (container.AsString()) {
    if (item.AsString() == nullptr) {
      return absl::InvalidArgumentError(absl::StrCat(
          "\"in\" a string needs a string, not ", item.TypeName()));
    }
    RF_RETURN_IF_ERROR(context->Work(container.AsString()->size()));
    return absl::StrContains(*container.AsString(), *item.AsString());
  }
  if (container.AsDict()) {
    RF_ASSIGN_OR_RETURN(const std::string key, HashKey(item, context));
    return container.AsDict()->index.contains(key);
  }
  if (container.AsList() && container.AsList()->kind != List::kIterator) {
    const std::vector<Value>& items = container.AsList()->items;
    for (size_t i = 0; i < items.size(); ++i) {
      RF_ASSIGN_OR_RETURN(const bool same, Equal(items[i], item, context));
      if (same) return true;
    }
    return false;
  }
  RF_ASSIGN_OR_RETURN(const std::vector<Value> items,
                      ToItems(container, context));
  for (const Value& candidate : items) {
    RF_ASSIGN_OR_RETURN(const bool same, Equal(candidate, item, context));
    if (same) return true;
  }
  return false;
}

absl::StatusOr<std::string> HashKey(const Value& value, Context* context) {
  return HashKeyAt(value, 0, context);
}

absl::StatusOr<std::vector<Value>> ToItems(const Value& value,
                                           Context* context) {
  std::vector<Value> items;
  if (List* list = value.AsList()) {
    if (list->kind == List::kIterator) {
      items.swap(list->items);
    } else {
      RF_RETURN_IF_ERROR(context->WorkOnItems(list->items.size()));
      items = list->items;
    }
  } else if (value.AsDict()) {
    RF_RETURN_IF_ERROR(context->WorkOnItems(value.AsDict()->items.size()));
    for (const auto& item : value.AsDict()->items) items.push_back(item.first);
  } else if (value.AsText()) {
    const Text& text = *value.AsText();
    RF_RETURN_IF_ERROR(
        context->Work(text.size() * (sizeof(Value) + sizeof(Text))));
    size_t at = 0;
    for (const absl::string_view character : Characters(text.bytes())) {
      items.push_back(Value::String(text.Part(at, character.size())));
      at += character.size();
    }
  } else if (!value.IsUndefined()) {
    return NoItems(value);
  }
  return items;
}

absl::StatusOr<int64_t> Length(const Value& value, Context* context) {
  if (value.AsString()) {
    RF_RETURN_IF_ERROR(context->Work(value.AsString()->size()));
    return static_cast<int64_t>(CountCharacters(*value.AsString()));
  }
  if (value.AsDict()) return value.AsDict()->items.size();
  if (value.AsLoop()) return value.AsLoop()->items.size();
  if (value.AsList() && value.AsList()->kind != List::kIterator) {
    return value.AsList()->items.size();
  }
  if (value.IsUndefined()) return 0;
  return absl::InvalidArgumentError(
      absl::StrCat("a value of type ", value.TypeName(), " has no length"));
}

}  // namespace ringfleet::coordinator::jinja
