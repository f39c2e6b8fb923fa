// SPDX-License-Identifier: Apache-2.0
// The syntax tree of a template.
#ifndef RINGFLEET_COORDINATOR_JINJA_AST_H_
#define RINGFLEET_COORDINATOR_JINJA_AST_H_

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/jinja/value.h"

namespace ringfleet::coordinator::jinja {

struct Expr;
using ExprPtr = std::unique_ptr<Expr>;

// An expression. The comment of each kind shows the fields that the kind uses.
// Invariant: depth <= kMaxDepth, so code may recurse over the tree.
struct Expr {
  enum Kind {
    kLiteral,    // literal
    kName,       // text
    kList,       // [args]
    kTuple,      // (args)
    kDict,       // args: key, value, key, value, ...
    kAttribute,  // args[0].text
    kIndex,      // args[0][args[1]]
    kSlice,      // args[0][args[1]:args[2]:args[3]]; args[1] to [3] may be null
    kCall,       // args[0](args[1], ..., *splat, keywords, **keyword_splat)
    kFilter,     // args[0] | text(...), arguments as of kCall; args[0] is null
                 // for the text of a filter block
    kTest,       // args[0] is text(...), arguments as of kCall
    kNot,        // not args[0]
    kMinus,      // -args[0]
    kPlus,       // +args[0]
    kBinary,     // args[0] text args[1]; text is an arithmetic operator
    kCompare,    // args[0] operators[0] args[1] operators[1] args[2] ...
    kAnd,        // args[0] and args[1]
    kOr,         // args[0] or args[1]
    kConditional,  // args[0] if args[1] else args[2], which may be null
  };
  Kind kind;
  int line;       // Counts from 1.
  int depth = 1;  // 1 + the largest depth of a child.
  std::string text;
  Value literal;
  std::vector<ExprPtr> args;
  std::vector<std::pair<std::string, ExprPtr>> keywords;
  ExprPtr splat, keyword_splat;
  std::vector<std::string> operators;
};

// The receiver of an assigned value.
struct Target {
  enum Kind {
    kName,       // name
    kAttribute,  // name.attribute, of a namespace
    kTuple,      // items
  };
  Kind kind = kName;
  std::string name, attribute;
  std::vector<Target> items;
};

struct Parameter {
  std::string name;
  ExprPtr fallback;  // Null: none.
};

// A statement. The comment of each kind shows the fields that the kind uses.
struct Stmt {
  struct Branch {
    ExprPtr condition;  // Null: the else branch.
    std::vector<Stmt> body;
  };
  enum Kind {
    kText,      // text
    kPrint,     // expr
    kIf,        // branches
    kFor,       // targets[0] in expr if filter: body; else: otherwise
    kSet,       // targets[0] = expr
    kSetBlock,  // targets[0] = body, with the filters of expr unless null
    kWith,      // targets[i] = values[i]: body
    kMacro,     // text(parameters): body
    kCall,      // expr, a kCall, with a macro caller(parameters): body
    kFilter,    // expr, filters, of body
    kScope,     // body
    kBreak,
    kContinue,
  };
  Kind kind;
  int line;  // Counts from 1.
  std::string text;
  std::vector<Target> targets;
  ExprPtr expr;
  ExprPtr filter;  // Null: no filter.
  bool recursive = false;
  std::vector<ExprPtr> values;
  std::vector<Parameter> parameters;
  // The body of a macro names these variables.
  bool uses_caller = false, uses_varargs = false, uses_kwargs = false;
  std::vector<Branch> branches;
  std::vector<Stmt> body, otherwise;
};

}  // namespace ringfleet::coordinator::jinja

#endif  // RINGFLEET_COORDINATOR_JINJA_AST_H_
