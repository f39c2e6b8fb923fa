// SPDX-License-Identifier: Apache-2.0
// The syntax tree of a template.
#ifndef RINGFLEET_COORDINATOR_CHAT_JINJA_AST_H_
#define RINGFLEET_COORDINATOR_CHAT_JINJA_AST_H_

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/chat/jinja_value.h"

namespace ringfleet::coordinator::jinja {

struct Expr;
using ExprPtr = std::unique_ptr<Expr>;

// An expression. The comment of each kind shows the fields that the kind uses.
// Invariant: depth <= kMaxDepth, so code may recurse over the tree.
struct Expr {
  enum Kind {
    kLiteral,    // literal
    kName,       // text
    kList,       // args
    kDict,       // args: key, value, key, value, ...
    kAttribute,  // args[0].text
    kIndex,      // args[0][args[1]]
    kSlice,    // args[0][args[1]:args[2]:args[3]]; args[1] to [3] may be null.
    kCall,     // args[0](args[1], ..., keywords)
    kFilter,   // args[0] | text(args[1], ..., keywords)
    kTest,     // args[0] is text. If negated: args[0] is not text.
    kNot,      // not args[0]
    kMinus,    // -args[0]
    kBinary,   // args[0] text args[1]; text is an arithmetic operator.
    kCompare,  // args[0] operators[0] args[1] operators[1] args[2] ...
    kAnd,      // args[0] and args[1]
    kOr,       // args[0] or args[1]
    kConditional,  // args[0] if args[1] else args[2], which may be null.
  };
  Kind kind;
  int line;       // Counts from 1.
  int depth = 1;  // 1 + the largest depth of a child.
  std::string text;
  bool negated = false;
  Value literal;
  std::vector<ExprPtr> args;
  std::vector<std::pair<std::string, ExprPtr>> keywords;
  std::vector<std::string> operators;
};

// A statement. The comment of each kind shows the fields that the kind uses.
struct Stmt {
  struct Branch {
    ExprPtr condition;  // Null: the else branch.
    std::vector<Stmt> body;
  };
  enum Kind {
    kText,   // text
    kPrint,  // expr
    kIf,     // branches
    kFor,    // names in expr if filter: branches[0]; else: branches[1]
    kSet,    // names[0] = expr, or names[0].names[1] = expr
  };
  Kind kind;
  int line;  // Counts from 1.
  std::string text;
  std::vector<std::string> names;
  ExprPtr expr;
  ExprPtr filter;  // Null: no filter.
  std::vector<Branch> branches;
};

}  // namespace ringfleet::coordinator::jinja

#endif  // RINGFLEET_COORDINATOR_CHAT_JINJA_AST_H_
