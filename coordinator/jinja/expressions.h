// SPDX-License-Identifier: Apache-2.0
// Evaluates expressions in the scopes of a rendering.
#ifndef RINGFLEET_COORDINATOR_JINJA_EXPRESSIONS_H_
#define RINGFLEET_COORDINATOR_JINJA_EXPRESSIONS_H_

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "coordinator/jinja/ast.h"
#include "coordinator/jinja/context.h"
#include "coordinator/jinja/value.h"

namespace ringfleet::coordinator::jinja {

// The variables that a statement sets. A macro sees the scope that it is
// defined in, and the scopes around that.
struct Scope {
  explicit Scope(Scope* around) : outer(around) {}

  // Returns null if no scope has the variable.
  const Value* Find(const std::string& name) const {
    for (const Scope* scope = this; scope != nullptr; scope = scope->outer) {
      const auto found = scope->variables.find(name);
      if (found != scope->variables.end()) return &found->second;
    }
    return nullptr;
  }

  Scope* const outer;  // Null: none.
  bool kept = false;   // A macro or a loop refers to the scope.
  absl::flat_hash_map<std::string, Value> variables;
};

// Owns the scopes of a rendering. Scopes that macros refer to live until its
// end.
class Scopes {
 public:
  explicit Scopes(absl::flat_hash_map<std::string, Value> variables)
      : root_(nullptr), current_(&root_) {
    root_.variables = std::move(variables);
  }
  Scopes(const Scopes&) = delete;
  Scopes& operator=(const Scopes&) = delete;

  Scope* current() const { return current_; }
  // Keeps the current scope and those around it.
  Scope* Keep() {
    for (Scope* scope = current_; scope && !scope->kept; scope = scope->outer) {
      scope->kept = true;
    }
    return current_;
  }

  // Makes a new scope inside `around` the current one, and the scope before
  // current again at its end.
  class Inner {
   public:
    Inner(Scopes* scopes, Scope* around)
        : scopes_(scopes),
          before_(scopes->current_),
          scope_(std::make_unique<Scope>(around)) {
      scopes_->current_ = scope_.get();
    }
    explicit Inner(Scopes* scopes) : Inner(scopes, scopes->current_) {}
    ~Inner() {
      scopes_->current_ = before_;
      if (scope_->kept) scopes_->kept_.push_back(std::move(scope_));
    }
    Inner(const Inner&) = delete;
    Inner& operator=(const Inner&) = delete;

   private:
    Scopes* const scopes_;
    Scope* const before_;
    std::unique_ptr<Scope> scope_;
  };

 private:
  Scope root_;
  Scope* current_;
  std::vector<std::unique_ptr<Scope>> kept_;
};

// The part of a rendering that evaluates expressions. Each kind of expression
// has a function of its own, which keeps the stack of the recursion small.
class ExpressionEvaluator {
 public:
  ExpressionEvaluator(absl::flat_hash_map<std::string, Value> variables,
                      Context* context)
      : scopes_(std::move(variables)), context_(context) {}
  virtual ~ExpressionEvaluator() = default;

 protected:
  // Errors: INVALID_ARGUMENT: the expression fails, or a limit is exceeded.
  absl::StatusOr<Value> Evaluate(const Expr& expr);
  // Evaluates the arguments of a call, a filter or a test.
  absl::StatusOr<Arguments> EvaluateArguments(const Expr& expr);
  absl::StatusOr<Value> Call(const Value& callee, const Arguments& arguments);
  // Applies filters to `input`, the value that the first filter of a block has.
  absl::StatusOr<Value> EvaluateFilters(const Expr& expr, const Value& input);

  // Render a macro's body, or the body of a recursive loop over `items`.
  virtual absl::StatusOr<Value> CallMacro(const Macro& macro,
                                          const Arguments& arguments) = 0;
  virtual absl::StatusOr<Value> CallLoop(const Loop& loop,
                                         const Value& items) = 0;

  Scopes scopes_;
  Context* const context_;
  int line_ = 1;  // Line being evaluated.

 private:
  absl::StatusOr<Value> Dispatch(const Expr& expr);
  absl::StatusOr<Value> Binary(const Expr& expr);
  absl::StatusOr<Value> Junction(const Expr& expr);
  absl::StatusOr<Value> Conditional(const Expr& expr);
  absl::StatusOr<Value> Comparison(const Expr& expr);
  absl::StatusOr<Value> Test(const Expr& expr);
  absl::StatusOr<Value> Unary(const Expr& expr);
  absl::StatusOr<Value> AttributeOrIndex(const Expr& expr);
  absl::StatusOr<Value> SliceOf(const Expr& expr);
  absl::StatusOr<Value> Items(const Expr& expr);
  absl::StatusOr<Value> Mapping(const Expr& expr);
  absl::StatusOr<Value> CallExpression(const Expr& expr);
};

}  // namespace ringfleet::coordinator::jinja

#endif  // RINGFLEET_COORDINATOR_JINJA_EXPRESSIONS_H_
