// SPDX-License-Identifier: Apache-2.0
#include "coordinator/jinja/evaluator.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/types/optional.h"
#include "cluster/process/status_macros.h"
#include "coordinator/jinja/arguments.h"
#include "coordinator/jinja/compare.h"
#include "coordinator/jinja/expressions.h"
#include "coordinator/jinja/operators.h"
#include "coordinator/jinja/print.h"

namespace ringfleet::coordinator::jinja {
namespace {

class Evaluator : private ExpressionEvaluator {
 public:
  Evaluator(absl::flat_hash_map<std::string, Value> variables, Context* context)
      : ExpressionEvaluator(std::move(variables), context) {}

  absl::StatusOr<Text> Run(const std::vector<Stmt>& body) {
    const absl::Status status = Execute(body);
    if (!status.ok()) {
      return Annotate(status, absl::StrCat("chat template line ", line_));
    }
    return std::move(output_);
  }

 private:
  enum class Flow { kNext, kBreak, kContinue };

  // --- Statements.

  absl::Status Execute(const std::vector<Stmt>& body) {
    const Context::Nesting nesting(context_);
    RF_RETURN_IF_ERROR(nesting.Check());
    for (const Stmt& stmt : body) {
      line_ = stmt.line;
      RF_RETURN_IF_ERROR(context_->Step());
      RF_RETURN_IF_ERROR(ExecuteOne(stmt));
      if (flow_ != Flow::kNext) break;
    }
    return absl::OkStatus();
  }

  absl::Status ExecuteOne(const Stmt& stmt) {
    switch (stmt.kind) {
      case Stmt::kText:
        return Print(Text(stmt.text, Origin::kTemplate));
      case Stmt::kPrint:
        return ExecutePrint(stmt);
      case Stmt::kIf:
        return ExecuteIf(stmt);
      case Stmt::kFor:
        return ExecuteFor(stmt);
      case Stmt::kSet:
        return ExecuteSet(stmt);
      case Stmt::kSetBlock:
        return ExecuteSetBlock(stmt);
      case Stmt::kWith:
        return ExecuteWith(stmt);
      case Stmt::kMacro: {
        RF_ASSIGN_OR_RETURN(const Value macro, MakeMacro(stmt, stmt.text));
        scopes_.current()->variables[stmt.text] = macro;
        return absl::OkStatus();
      }
      case Stmt::kCall:
        return ExecuteCall(stmt);
      case Stmt::kFilter:
        return ExecuteFilter(stmt);
      case Stmt::kScope: {
        const Scopes::Inner inner(&scopes_);
        return Execute(stmt.body);
      }
      case Stmt::kBreak:
        flow_ = Flow::kBreak;
        return absl::OkStatus();
      case Stmt::kContinue:
        flow_ = Flow::kContinue;
        return absl::OkStatus();
    }
    return absl::InternalError("a statement of no kind");
  }

  absl::Status Print(const Text& text) {
    if (text.size() > kMaxOutputBytes - out_->size()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "the template prints more than ", kMaxOutputBytes, " bytes"));
    }
    // Text that goes into a variable or comes from a macro is a value, too.
    if (out_ != &output_) RF_RETURN_IF_ERROR(context_->Work(text.size()));
    out_->Append(text);
    return absl::OkStatus();
  }

  absl::Status PrintValue(const Value& value) {
    if (value.AsText()) return Print(*value.AsText());
    RF_ASSIGN_OR_RETURN(const Text text, ToText(value, context_));
    return Print(text);
  }

  absl::Status ExecutePrint(const Stmt& stmt) {
    RF_ASSIGN_OR_RETURN(const Value value, Evaluate(*stmt.expr));
    return PrintValue(value);
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
    return Iterate(stmt, sequence, /*depth0=*/0);
  }

  absl::Status Iterate(const Stmt& stmt, const Value& sequence,
                       int64_t depth0) {
    if (!sequence.AsList() && !sequence.AsDict() && !sequence.AsText() &&
        !sequence.IsUndefined()) {
      return absl::InvalidArgumentError(
          absl::StrCat("a loop over a value of type ", sequence.TypeName()));
    }
    RF_ASSIGN_OR_RETURN(std::vector<Value> items, ToItems(sequence, context_));
    if (stmt.filter != nullptr) {
      RF_RETURN_IF_ERROR(FilterItems(stmt, &items));
    }
    if (items.empty()) {
      const Scopes::Inner inner(&scopes_);
      return Execute(stmt.otherwise);
    }
    Loop* loop = context_->New(Loop());
    loop->items = std::move(items);
    loop->depth0 = depth0;
    if (stmt.recursive) {
      loop->recurse = &stmt;
      loop->scope = scopes_.Keep();
    }
    absl::optional<Scopes::Inner> inner;
    for (const Value& item : loop->items) {
      RF_RETURN_IF_ERROR(context_->Step());
      // Variables that the body sets last for one iteration. Macros may keep
      // the scope of an iteration, and the next one needs another then.
      if (!inner.has_value() || scopes_.current()->kept) {
        inner.reset();
        inner.emplace(&scopes_);
      }
      scopes_.current()->variables.clear();
      scopes_.current()->variables["loop"] = Value(loop);
      RF_RETURN_IF_ERROR(Assign(stmt.targets[0], item));
      RF_RETURN_IF_ERROR(Execute(stmt.body));
      const Flow flow = std::exchange(flow_, Flow::kNext);
      if (flow == Flow::kBreak) break;
      ++loop->index0;
    }
    return absl::OkStatus();
  }

  absl::Status FilterItems(const Stmt& stmt, std::vector<Value>* items) {
    std::vector<Value> kept;
    for (Value& item : *items) {
      const Scopes::Inner inner(&scopes_);
      RF_RETURN_IF_ERROR(Assign(stmt.targets[0], item));
      RF_ASSIGN_OR_RETURN(const Value keep, Evaluate(*stmt.filter));
      if (keep.IsTrue()) kept.push_back(std::move(item));
    }
    *items = std::move(kept);
    return absl::OkStatus();
  }

  absl::Status Assign(const Target& target, const Value& value) {
    if (target.kind == Target::kName) {
      scopes_.current()->variables[target.name] = value;
      return absl::OkStatus();
    }
    if (target.kind == Target::kAttribute) {
      const Value* found = scopes_.current()->Find(target.name);
      Namespace* space = found ? found->AsNamespace() : nullptr;
      if (space == nullptr) {
        return absl::InvalidArgumentError(absl::StrCat(
            "set of an attribute: \"", target.name, "\" is not a namespace"));
      }
      RF_RETURN_IF_ERROR(context_->WorkOnItems(2));
      space->attributes.Set(target.attribute, value);
      return absl::OkStatus();
    }
    RF_ASSIGN_OR_RETURN(const std::vector<Value> items,
                        ToItems(value, context_));
    if (value.IsUndefined() || items.size() != target.items.size()) {
      return UndefinedOr(
          value, absl::StrCat("an item of ", items.size(), " values, want ",
                              target.items.size()));
    }
    for (size_t i = 0; i < items.size(); ++i) {
      RF_RETURN_IF_ERROR(Assign(target.items[i], items[i]));
    }
    return absl::OkStatus();
  }

  absl::Status ExecuteSet(const Stmt& stmt) {
    RF_ASSIGN_OR_RETURN(const Value value, Evaluate(*stmt.expr));
    return Assign(stmt.targets[0], value);
  }

  // Runs a body in a scope of its own, and gives what it prints.
  absl::StatusOr<Value> Capture(const std::vector<Stmt>& body) {
    Text captured;
    Text* const before = std::exchange(out_, &captured);
    absl::Status status;
    {
      const Scopes::Inner inner(&scopes_);
      status = Execute(body);
    }
    out_ = before;
    RF_RETURN_IF_ERROR(status);
    return Value::String(std::move(captured));
  }

  absl::Status ExecuteSetBlock(const Stmt& stmt) {
    RF_ASSIGN_OR_RETURN(Value value, Capture(stmt.body));
    if (flow_ != Flow::kNext) return absl::OkStatus();
    if (stmt.expr != nullptr) {
      RF_ASSIGN_OR_RETURN(value, EvaluateFilters(*stmt.expr, value));
    }
    return Assign(stmt.targets[0], value);
  }

  absl::Status ExecuteWith(const Stmt& stmt) {
    std::vector<Value> values;
    for (const ExprPtr& expr : stmt.values) {
      RF_ASSIGN_OR_RETURN(Value value, Evaluate(*expr));
      values.push_back(std::move(value));
    }
    const Scopes::Inner inner(&scopes_);
    for (size_t i = 0; i < values.size(); ++i) {
      RF_RETURN_IF_ERROR(Assign(stmt.targets[i], values[i]));
    }
    return Execute(stmt.body);
  }

  absl::Status ExecuteFilter(const Stmt& stmt) {
    RF_ASSIGN_OR_RETURN(const Value text, Capture(stmt.body));
    if (flow_ != Flow::kNext) return absl::OkStatus();
    RF_ASSIGN_OR_RETURN(const Value value, EvaluateFilters(*stmt.expr, text));
    return PrintValue(value);
  }

  absl::Status ExecuteCall(const Stmt& stmt) {
    const Expr& call = *stmt.expr;
    RF_ASSIGN_OR_RETURN(const Value callee, Evaluate(*call.args[0]));
    RF_ASSIGN_OR_RETURN(Arguments arguments, EvaluateArguments(call));
    RF_ASSIGN_OR_RETURN(Value caller, MakeMacro(stmt, "caller"));
    arguments.keywords.emplace_back("caller", std::move(caller));
    RF_ASSIGN_OR_RETURN(const Value value, Call(callee, arguments));
    return PrintValue(value);
  }

  // --- Macros and recursive loops.

  absl::StatusOr<Value> MakeMacro(const Stmt& stmt, const std::string& name) {
    RF_RETURN_IF_ERROR(context_->Work(sizeof(Macro)));
    return Value(context_->New(Macro{name, &stmt, scopes_.Keep()}));
  }

  absl::StatusOr<Value> CallMacro(const Macro& macro,
                                  const Arguments& arguments) override {
    const Context::Nesting nesting(context_);
    RF_RETURN_IF_ERROR(nesting.Check());
    const Scopes::Inner inner(&scopes_, macro.scope);
    RF_RETURN_IF_ERROR(BindParameters(macro, arguments));
    return Capture(macro.definition->body);
  }

  // Sets the parameters of a macro in the current scope, and caller, varargs
  // and kwargs if the body names them.
  absl::Status BindParameters(const Macro& macro, const Arguments& arguments) {
    const Stmt& definition = *macro.definition;
    const std::vector<Parameter>& parameters = definition.parameters;
    auto& variables = scopes_.current()->variables;
    std::vector<bool> used(arguments.keywords.size(), false);
    const size_t positional =
        std::min(arguments.positional.size(), parameters.size());
    for (size_t i = 0; i < parameters.size(); ++i) {
      const std::string& name = parameters[i].name;
      if (i < positional) {
        variables[name] = arguments.positional[i];
        continue;
      }
      const Value* given = TakeKeyword(arguments, name, &used);
      if (given != nullptr) {
        variables[name] = *given;
      } else if (parameters[i].fallback != nullptr) {
        RF_ASSIGN_OR_RETURN(variables[name], Evaluate(*parameters[i].fallback));
      } else {
        variables[name] = Value::Undefined(
            absl::StrCat("parameter \"", name, "\" was not provided"));
      }
    }
    const bool names_caller = std::any_of(
        parameters.begin(), parameters.end(),
        [](const Parameter& parameter) { return parameter.name == "caller"; });
    if (definition.uses_caller && !names_caller) {
      const Value* caller = TakeKeyword(arguments, "caller", &used);
      variables["caller"] = caller && !caller->IsNone()
                                ? *caller
                                : Value::Undefined("no caller is defined");
    }
    Dict rest;
    for (size_t i = 0; i < used.size(); ++i) {
      if (used[i]) continue;
      if (!definition.uses_kwargs) {
        return CallError(macro.name,
                         absl::StrCat("unexpected argument \"",
                                      arguments.keywords[i].first, "\""));
      }
      rest.Set(arguments.keywords[i].first, arguments.keywords[i].second);
    }
    if (definition.uses_kwargs) {
      variables["kwargs"] = Value(context_->New(std::move(rest)));
    }
    std::vector<Value> more(arguments.positional.begin() + positional,
                            arguments.positional.end());
    if (definition.uses_varargs) {
      variables["varargs"] = context_->NewList(std::move(more), List::kTuple);
    } else if (!more.empty()) {
      return CallError(macro.name, absl::StrCat(arguments.positional.size(),
                                                " arguments, want at most ",
                                                parameters.size()));
    }
    return absl::OkStatus();
  }

  // Null: the keyword is not given.
  static const Value* TakeKeyword(const Arguments& arguments,
                                  const std::string& name,
                                  std::vector<bool>* used) {
    for (size_t i = 0; i < arguments.keywords.size(); ++i) {
      if (arguments.keywords[i].first != name || (*used)[i]) continue;
      (*used)[i] = true;
      return &arguments.keywords[i].second;
    }
    return nullptr;
  }

  absl::StatusOr<Value> CallLoop(const Loop& loop,
                                 const Value& items) override {
    if (loop.recurse == nullptr) {
      return CallError("loop", "the loop is not recursive");
    }
    const Context::Nesting nesting(context_);
    RF_RETURN_IF_ERROR(nesting.Check());
    Text captured;
    Text* const before = std::exchange(out_, &captured);
    absl::Status status;
    {
      const Scopes::Inner inner(&scopes_, loop.scope);
      status = Iterate(*loop.recurse, items, loop.depth0 + 1);
    }
    out_ = before;
    RF_RETURN_IF_ERROR(status);
    return Value::String(std::move(captured));
  }

  Flow flow_ = Flow::kNext;
  Text output_;
  Text* out_ = &output_;  // Where statements print to.
};

}  // namespace

absl::StatusOr<Text> Render(const std::vector<Stmt>& body,
                            absl::flat_hash_map<std::string, Value> variables,
                            Context* context) {
  return Evaluator(std::move(variables), context).Run(body);
}

}  // namespace ringfleet::coordinator::jinja
