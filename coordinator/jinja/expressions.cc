// SPDX-License-Identifier: Apache-2.0
#include "coordinator/jinja/expressions.h"

#include "absl/strings/str_cat.h"
#include "cluster/process/status_macros.h"
#include "coordinator/jinja/compare.h"
#include "coordinator/jinja/filters.h"
#include "coordinator/jinja/functions.h"
#include "coordinator/jinja/methods.h"
#include "coordinator/jinja/operators.h"
#include "coordinator/jinja/tests.h"

namespace ringfleet::coordinator::jinja {

absl::StatusOr<Value> ExpressionEvaluator::Evaluate(const Expr& expr) {
  line_ = expr.line;
  RF_RETURN_IF_ERROR(context_->Step());
  const Context::Nesting nesting(context_);
  RF_RETURN_IF_ERROR(nesting.Check());
  absl::StatusOr<Value> value = Dispatch(expr);
  if (value.ok()) line_ = expr.line;
  return value;
}

absl::StatusOr<Value> ExpressionEvaluator::Dispatch(const Expr& expr) {
  switch (expr.kind) {
    case Expr::kLiteral:
      return expr.literal;
    case Expr::kName: {
      const Value* found = scopes_.current()->Find(expr.text);
      return found ? *found : Value::MissingVariable(expr.text);
    }
    case Expr::kList:
    case Expr::kTuple:
      return Items(expr);
    case Expr::kDict:
      return Mapping(expr);
    case Expr::kAttribute:
    case Expr::kIndex:
      return AttributeOrIndex(expr);
    case Expr::kSlice:
      return SliceOf(expr);
    case Expr::kCall:
      return CallExpression(expr);
    case Expr::kFilter:
      return EvaluateFilters(expr, Value());
    case Expr::kTest:
      return Test(expr);
    case Expr::kNot:
    case Expr::kMinus:
    case Expr::kPlus:
      return Unary(expr);
    case Expr::kBinary:
      return Binary(expr);
    case Expr::kCompare:
      return Comparison(expr);
    case Expr::kAnd:
    case Expr::kOr:
      return Junction(expr);
    case Expr::kConditional:
      return Conditional(expr);
  }
  return absl::InternalError("an expression of no kind");
}

absl::StatusOr<Value> ExpressionEvaluator::Binary(const Expr& expr) {
  RF_ASSIGN_OR_RETURN(const Value left, Evaluate(*expr.args[0]));
  RF_ASSIGN_OR_RETURN(const Value right, Evaluate(*expr.args[1]));
  return Arithmetic(expr.text, left, right, context_);
}

absl::StatusOr<Value> ExpressionEvaluator::Junction(const Expr& expr) {
  RF_ASSIGN_OR_RETURN(Value left, Evaluate(*expr.args[0]));
  if (left.IsTrue() == (expr.kind == Expr::kOr)) return left;
  return Evaluate(*expr.args[1]);
}

absl::StatusOr<Value> ExpressionEvaluator::Conditional(const Expr& expr) {
  RF_ASSIGN_OR_RETURN(const Value condition, Evaluate(*expr.args[1]));
  if (condition.IsTrue()) return Evaluate(*expr.args[0]);
  if (expr.args[2] != nullptr) return Evaluate(*expr.args[2]);
  return Value::Undefined("the \"if\" without \"else\" is false");
}

absl::StatusOr<Value> ExpressionEvaluator::Comparison(const Expr& expr) {
  RF_ASSIGN_OR_RETURN(Value left, Evaluate(*expr.args[0]));
  for (size_t i = 0; i < expr.operators.size(); ++i) {
    RF_ASSIGN_OR_RETURN(Value right, Evaluate(*expr.args[i + 1]));
    RF_ASSIGN_OR_RETURN(const bool holds,
                        Compare(expr.operators[i], left, right, context_));
    if (!holds) return Value::Boolean(false);
    left = std::move(right);
  }
  return Value::Boolean(true);
}

absl::StatusOr<Value> ExpressionEvaluator::Test(const Expr& expr) {
  RF_ASSIGN_OR_RETURN(const Value value, Evaluate(*expr.args[0]));
  RF_ASSIGN_OR_RETURN(const Arguments arguments, EvaluateArguments(expr));
  RF_ASSIGN_OR_RETURN(const bool holds,
                      ApplyTest(expr.text, value, arguments, context_));
  return Value::Boolean(holds);
}

absl::StatusOr<Value> ExpressionEvaluator::Unary(const Expr& expr) {
  RF_ASSIGN_OR_RETURN(const Value value, Evaluate(*expr.args[0]));
  if (expr.kind == Expr::kMinus) return Negative(value);
  if (expr.kind == Expr::kPlus) return Positive(value);
  return Value::Boolean(!value.IsTrue());
}

absl::StatusOr<Value> ExpressionEvaluator::AttributeOrIndex(const Expr& expr) {
  RF_ASSIGN_OR_RETURN(const Value object, Evaluate(*expr.args[0]));
  if (expr.kind == Expr::kAttribute) {
    return Attribute(object, expr.text, context_);
  }
  RF_ASSIGN_OR_RETURN(const Value key, Evaluate(*expr.args[1]));
  return Subscript(object, key, context_);
}

absl::StatusOr<Value> ExpressionEvaluator::SliceOf(const Expr& expr) {
  RF_ASSIGN_OR_RETURN(const Value object, Evaluate(*expr.args[0]));
  Value bounds[3];
  for (size_t i = 0; i < 3; ++i) {
    if (expr.args[i + 1] == nullptr) continue;
    RF_ASSIGN_OR_RETURN(bounds[i], Evaluate(*expr.args[i + 1]));
  }
  return Slice(object, bounds[0], bounds[1], bounds[2], context_);
}

absl::StatusOr<Value> ExpressionEvaluator::Items(const Expr& expr) {
  std::vector<Value> items;
  RF_RETURN_IF_ERROR(context_->WorkOnItems(expr.args.size()));
  items.reserve(expr.args.size());
  for (const ExprPtr& arg : expr.args) {
    RF_ASSIGN_OR_RETURN(Value value, Evaluate(*arg));
    items.push_back(std::move(value));
  }
  return context_->NewList(
      std::move(items), expr.kind == Expr::kList ? List::kList : List::kTuple);
}

absl::StatusOr<Value> ExpressionEvaluator::Mapping(const Expr& expr) {
  Dict dict;
  RF_RETURN_IF_ERROR(context_->WorkOnItems(expr.args.size() + 2));
  for (size_t i = 0; i < expr.args.size(); i += 2) {
    RF_ASSIGN_OR_RETURN(Value key, Evaluate(*expr.args[i]));
    RF_ASSIGN_OR_RETURN(Value value, Evaluate(*expr.args[i + 1]));
    RF_ASSIGN_OR_RETURN(std::string hash_key, HashKey(key, context_));
    dict.Set(std::move(hash_key), std::move(key), std::move(value));
  }
  return Value(context_->New(std::move(dict)));
}

absl::StatusOr<Value> ExpressionEvaluator::EvaluateFilters(const Expr& expr,
                                                           const Value& input) {
  absl::StatusOr<Value> value = input;
  if (expr.args[0] != nullptr) {
    // The first filter of a block has no operand but the block's text.
    value = expr.args[0]->kind == Expr::kFilter
                ? EvaluateFilters(*expr.args[0], input)
                : Evaluate(*expr.args[0]);
  }
  if (!value.ok()) return value;
  RF_ASSIGN_OR_RETURN(const Arguments arguments, EvaluateArguments(expr));
  return ApplyFilter(expr.text, *value, arguments, context_);
}

absl::StatusOr<Arguments> ExpressionEvaluator::EvaluateArguments(
    const Expr& expr) {
  Arguments arguments;
  for (size_t i = 1; i < expr.args.size(); ++i) {
    RF_ASSIGN_OR_RETURN(Value value, Evaluate(*expr.args[i]));
    arguments.positional.push_back(std::move(value));
  }
  for (const auto& [name, keyword] : expr.keywords) {
    RF_ASSIGN_OR_RETURN(Value value, Evaluate(*keyword));
    arguments.keywords.emplace_back(name, std::move(value));
  }
  if (expr.splat != nullptr) {
    RF_ASSIGN_OR_RETURN(const Value more, Evaluate(*expr.splat));
    RF_ASSIGN_OR_RETURN(const std::vector<Value> items,
                        ToItems(more, context_));
    arguments.positional.insert(arguments.positional.end(), items.begin(),
                                items.end());
  }
  if (expr.keyword_splat != nullptr) {
    RF_ASSIGN_OR_RETURN(const Value more, Evaluate(*expr.keyword_splat));
    if (more.AsDict() == nullptr) {
      return UndefinedOr(
          more, absl::StrCat("arguments ** of type ", more.TypeName()));
    }
    RF_RETURN_IF_ERROR(context_->WorkOnItems(more.AsDict()->items.size()));
    for (const auto& [key, value] : more.AsDict()->items) {
      if (key.AsString() == nullptr) {
        return absl::InvalidArgumentError("arguments ** want names as keys");
      }
      arguments.keywords.emplace_back(*key.AsString(), value);
    }
  }
  return arguments;
}

absl::StatusOr<Value> ExpressionEvaluator::CallExpression(const Expr& expr) {
  RF_ASSIGN_OR_RETURN(const Value callee, Evaluate(*expr.args[0]));
  RF_ASSIGN_OR_RETURN(const Arguments arguments, EvaluateArguments(expr));
  line_ = expr.line;
  return Call(callee, arguments);
}

absl::StatusOr<Value> ExpressionEvaluator::Call(const Value& callee,
                                                const Arguments& arguments) {
  if (callee.AsMacro()) return CallMacro(*callee.AsMacro(), arguments);
  if (callee.AsMethod()) {
    return CallMethod(*callee.AsMethod(), arguments, context_);
  }
  if (callee.AsFunction()) {
    return CallFunction(callee.AsFunction(), arguments, context_);
  }
  if (callee.AsLoop() && arguments.positional.size() == 1 &&
      arguments.keywords.empty()) {
    return CallLoop(*callee.AsLoop(), arguments.positional[0]);
  }
  return UndefinedOr(callee, absl::StrCat("a value of type ", callee.TypeName(),
                                          " cannot be called"));
}

}  // namespace ringfleet::coordinator::jinja
