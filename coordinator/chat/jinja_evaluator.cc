// SPDX-License-Identifier: Apache-2.0
#include "coordinator/chat/jinja_evaluator.h"

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cluster/process/status_macros.h"
#include "coordinator/chat/jinja_builtins.h"
#include "coordinator/chat/jinja_operators.h"

namespace ringfleet::coordinator::jinja {
namespace {

using Scope = absl::flat_hash_map<std::string, Value>;

class Evaluator {
 public:
  explicit Evaluator(Scope variables) {
    scopes_.push_back(std::move(variables));
  }

  absl::StatusOr<std::string> Run(const std::vector<Stmt>& body) {
    const absl::Status status = Execute(body);
    if (!status.ok()) {
      return Annotate(status, absl::StrCat("chat template line ", line_));
    }
    return std::move(output_);
  }

 private:
  // --- Statements.

  absl::Status Execute(const std::vector<Stmt>& body) {
    for (const Stmt& stmt : body) {
      line_ = stmt.line;
      RF_RETURN_IF_ERROR(budget_.Step());
      switch (stmt.kind) {
        case Stmt::kText:
          RF_RETURN_IF_ERROR(Print(stmt.text));
          break;
        case Stmt::kPrint: {
          RF_ASSIGN_OR_RETURN(const Value value, Evaluate(*stmt.expr));
          RF_ASSIGN_OR_RETURN(const std::string text, value.ToText());
          RF_RETURN_IF_ERROR(Print(text));
          break;
        }
        case Stmt::kIf:
          RF_RETURN_IF_ERROR(ExecuteIf(stmt));
          break;
        case Stmt::kFor:
          RF_RETURN_IF_ERROR(ExecuteFor(stmt));
          break;
        case Stmt::kSet:
          RF_RETURN_IF_ERROR(ExecuteSet(stmt));
          break;
      }
    }
    return absl::OkStatus();
  }

  absl::Status Print(const std::string& text) {
    if (text.size() > kMaxOutputBytes - output_.size()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "the template prints more than ", kMaxOutputBytes, " bytes"));
    }
    output_ += text;
    return absl::OkStatus();
  }

  absl::Status ExecuteIf(const Stmt& stmt) {
    for (const Stmt::Branch& branch : stmt.branches) {
      if (branch.condition != nullptr) {
        RF_ASSIGN_OR_RETURN(const Value value, Evaluate(*branch.condition));
        if (!value.IsTrue()) continue;
      }
      return Execute(branch.body);
    }
    return absl::OkStatus();
  }

  absl::Status ExecuteFor(const Stmt& stmt) {
    RF_ASSIGN_OR_RETURN(const Value sequence, Evaluate(*stmt.expr));
    RF_ASSIGN_OR_RETURN(std::vector<Value> items, sequence.ToItems(&budget_));
    if (stmt.filter != nullptr) {
      std::vector<Value> kept;
      for (Value& item : items) {
        scopes_.emplace_back();
        RF_RETURN_IF_ERROR(Unpack(stmt, item));
        RF_ASSIGN_OR_RETURN(const Value keep, Evaluate(*stmt.filter));
        scopes_.pop_back();
        if (keep.IsTrue()) kept.push_back(std::move(item));
      }
      items = std::move(kept);
    }
    if (items.empty()) return Execute(stmt.branches[1].body);
    // Variables that the body sets last for one iteration.
    for (size_t i = 0; i < items.size(); ++i) {
      RF_RETURN_IF_ERROR(budget_.Step());
      scopes_.emplace_back();
      RF_RETURN_IF_ERROR(Unpack(stmt, items[i]));
      scopes_.back()["loop"] = Value(
          Loop{static_cast<int64_t>(i), static_cast<int64_t>(items.size())});
      RF_RETURN_IF_ERROR(Execute(stmt.branches[0].body));
      scopes_.pop_back();
    }
    return absl::OkStatus();
  }

  // Sets the names of a loop in the innermost scope.
  absl::Status Unpack(const Stmt& stmt, const Value& item) {
    if (stmt.names.size() == 1) {
      scopes_.back()[stmt.names[0]] = item;
      return absl::OkStatus();
    }
    const List* list = item.AsList();
    if (list == nullptr || list->items.size() != stmt.names.size()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "an item that is not a list of ", stmt.names.size(), " values"));
    }
    for (size_t i = 0; i < stmt.names.size(); ++i) {
      scopes_.back()[stmt.names[i]] = list->items[i];
    }
    return absl::OkStatus();
  }

  absl::Status ExecuteSet(const Stmt& stmt) {
    RF_ASSIGN_OR_RETURN(Value value, Evaluate(*stmt.expr));
    if (stmt.names.size() == 1) {
      scopes_.back()[stmt.names[0]] = std::move(value);
      return absl::OkStatus();
    }
    Namespace* space = Lookup(stmt.names[0]).AsNamespace();
    if (space == nullptr) {
      return absl::InvalidArgumentError(absl::StrCat(
          "set of an attribute: \"", stmt.names[0], "\" is not a namespace"));
    }
    space->attributes[stmt.names[1]] = std::move(value);
    return absl::OkStatus();
  }

  // --- Expressions.

  Value Lookup(const std::string& name) const {
    for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope) {
      const auto found = scope->find(name);
      if (found != scope->end()) return found->second;
    }
    return Value::Missing(name);
  }

  absl::StatusOr<Value> Evaluate(const Expr& expr) {
    line_ = expr.line;
    RF_RETURN_IF_ERROR(budget_.Step());
    switch (expr.kind) {
      case Expr::kLiteral:
        return expr.literal;
      case Expr::kName:
        return Lookup(expr.text);
      case Expr::kCall:
        return Call(expr);
      case Expr::kAnd:
      case Expr::kOr: {
        RF_ASSIGN_OR_RETURN(Value left, Evaluate(*expr.args[0]));
        if (left.IsTrue() == (expr.kind == Expr::kOr)) return left;
        return Evaluate(*expr.args[1]);
      }
      case Expr::kConditional: {
        RF_ASSIGN_OR_RETURN(const Value condition, Evaluate(*expr.args[1]));
        if (condition.IsTrue()) return Evaluate(*expr.args[0]);
        if (expr.args[2] != nullptr) return Evaluate(*expr.args[2]);
        return Value::Missing("if without else");
      }
      case Expr::kCompare:
        return Compare(expr);
      case Expr::kFilter: {
        RF_ASSIGN_OR_RETURN(const Value value, Evaluate(*expr.args[0]));
        RF_ASSIGN_OR_RETURN(const Arguments arguments, EvaluateArguments(expr));
        return ApplyFilter(expr.text, value, arguments, &budget_);
      }
      default:
        return Apply(expr);
    }
  }

  // The kinds that need no more than the values of their operands.
  absl::StatusOr<Value> Apply(const Expr& expr) {
    std::vector<Value> args;
    args.reserve(expr.args.size());
    for (const ExprPtr& arg : expr.args) {
      if (arg == nullptr) {
        args.emplace_back();
        continue;
      }
      RF_ASSIGN_OR_RETURN(Value value, Evaluate(*arg));
      args.push_back(std::move(value));
    }
    switch (expr.kind) {
      case Expr::kAttribute:
        return Subscript(args[0], Value::String(expr.text), &budget_);
      case Expr::kIndex:
        return Subscript(args[0], args[1], &budget_);
      case Expr::kSlice:
        return Slice(args[0], args[1], args[2], args[3], &budget_);
      case Expr::kNot:
        return Value(!args[0].IsTrue());
      case Expr::kMinus:
        return Negative(args[0]);
      case Expr::kBinary:
        return Arithmetic(expr.text, args[0], args[1], &budget_);
      case Expr::kTest: {
        RF_ASSIGN_OR_RETURN(const bool holds, ApplyTest(expr.text, args[0]));
        return Value(holds != expr.negated);
      }
      case Expr::kDict: {
        std::vector<std::pair<std::string, Value>> items;
        for (size_t i = 0; i < args.size(); i += 2) {
          if (!args[i].AsString()) {
            return absl::InvalidArgumentError(absl::StrCat(
                "a key that is ", args[i].TypeName(), ", want a string"));
          }
          items.emplace_back(*args[i].AsString(), args[i + 1]);
        }
        return Value::MakeDict(std::move(items));
      }
      default:  // kList, the only kind left.
        return Value::MakeList(std::move(args));
    }
  }

  absl::StatusOr<Value> Compare(const Expr& expr) {
    RF_ASSIGN_OR_RETURN(Value left, Evaluate(*expr.args[0]));
    for (size_t i = 0; i < expr.operators.size(); ++i) {
      RF_ASSIGN_OR_RETURN(Value right, Evaluate(*expr.args[i + 1]));
      RF_ASSIGN_OR_RETURN(const bool holds,
                          Compare(expr.operators[i], left, right));
      if (!holds) return Value(false);
      left = std::move(right);
    }
    return Value(true);
  }

  absl::StatusOr<bool> Compare(const std::string& op, const Value& left,
                               const Value& right) {
    absl::StatusOr<bool> holds;
    bool negated = false;
    if (op == "==" || op == "!=") {
      holds = Equal(left, right, &budget_);
      negated = op == "!=";
    } else if (op == "in" || op == "not in") {
      holds = Contains(right, left, &budget_);
      negated = op == "not in";
    } else if (op == "<" || op == ">=") {
      holds = Less(left, right, &budget_);
      negated = op == ">=";
    } else {
      holds = Less(right, left, &budget_);
      negated = op == "<=";
    }
    if (!holds.ok()) return holds;
    return *holds != negated;
  }

  // args[0] is what is called or filtered.
  absl::StatusOr<Arguments> EvaluateArguments(const Expr& expr) {
    Arguments arguments;
    for (size_t i = 1; i < expr.args.size(); ++i) {
      RF_ASSIGN_OR_RETURN(Value value, Evaluate(*expr.args[i]));
      arguments.positional.push_back(std::move(value));
    }
    for (const auto& [name, keyword] : expr.keywords) {
      RF_ASSIGN_OR_RETURN(Value value, Evaluate(*keyword));
      arguments.keywords.emplace_back(name, std::move(value));
    }
    return arguments;
  }

  absl::StatusOr<Value> Call(const Expr& expr) {
    const Expr& callee = *expr.args[0];
    if (callee.kind == Expr::kAttribute) {
      RF_ASSIGN_OR_RETURN(const Value object, Evaluate(*callee.args[0]));
      RF_ASSIGN_OR_RETURN(const Arguments arguments, EvaluateArguments(expr));
      return CallMethod(object, callee.text, arguments, &budget_);
    }
    RF_ASSIGN_OR_RETURN(const Arguments arguments, EvaluateArguments(expr));
    const std::string name = callee.kind == Expr::kName ? callee.text : "";
    if (name == "namespace" && arguments.positional.empty()) {
      RF_RETURN_IF_ERROR(budget_.Work(sizeof(Namespace)));
      namespaces_.push_back(std::make_unique<Namespace>());
      for (const auto& [key, value] : arguments.keywords) {
        namespaces_.back()->attributes[key] = value;
      }
      return Value(namespaces_.back().get());
    }
    if (name == "raise_exception" && arguments.positional.size() == 1) {
      RF_ASSIGN_OR_RETURN(const std::string message,
                          arguments.positional[0].ToText());
      return absl::InvalidArgumentError(message);
    }
    return absl::InvalidArgumentError(absl::StrCat(
        "a call of \"", name, "\" with ", arguments.positional.size(),
        " positional arguments is not supported"));
  }

  std::vector<Scope> scopes_;  // Innermost last.
  std::vector<std::unique_ptr<Namespace>> namespaces_;
  Budget budget_;
  std::string output_;
  int line_ = 1;  // Line being evaluated.
};

}  // namespace

absl::StatusOr<std::string> Render(const std::vector<Stmt>& body,
                                   Scope variables) {
  return Evaluator(std::move(variables)).Run(body);
}

}  // namespace ringfleet::coordinator::jinja
