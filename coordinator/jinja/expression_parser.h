// SPDX-License-Identifier: Apache-2.0
// Parses expressions with the operator precedence of Jinja. Operators by
// precedence, lowest first:
//
//   conditional: x if c else y
//   or
//   and
//   not
//   comparison
//   + -
//   ~
//   * / // %
//   **
//   filters, tests and calls of their results
//   unary minus and plus
//   attributes, subscripts and calls
#ifndef RINGFLEET_COORDINATOR_JINJA_EXPRESSION_PARSER_H_
#define RINGFLEET_COORDINATOR_JINJA_EXPRESSION_PARSER_H_

#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "coordinator/jinja/ast.h"
#include "coordinator/jinja/lexer.h"

namespace ringfleet::coordinator::jinja {

using ExprOr = absl::StatusOr<ExprPtr>;

// Recursive descent over tokens. Every function that recurses holds a Nesting.
// Every node ends in Finish, which bounds its depth, as loops make deep trees
// too.
// Errors: INVALID_ARGUMENT names the malformed construct and its line.
class ExpressionParser {
 public:
  explicit ExpressionParser(std::vector<Token> tokens)
      : tokens_(std::move(tokens)) {}

 protected:
  class Nesting {
   public:
    explicit Nesting(ExpressionParser* parser) : parser_(parser) {
      ++parser_->nesting_;
    }
    ~Nesting() { --parser_->nesting_; }
    Nesting(const Nesting&) = delete;
    Nesting& operator=(const Nesting&) = delete;
    absl::Status Check() const;

   private:
    ExpressionParser* const parser_;
  };

  // The special variables that the body of a macro names.
  struct SpecialNames {
    bool caller = false, varargs = false, kwargs = false;
  };

  // --- Tokens.
  const Token& Peek(size_t ahead = 0) const;
  Token Next();
  bool PeekIs(Token::Kind kind, absl::string_view text, size_t ahead = 0) const;
  bool Take(Token::Kind kind, absl::string_view text);
  bool TakeOperator(absl::string_view text) {
    return Take(Token::kOperator, text);
  }
  bool TakeKeyword(absl::string_view text) { return Take(Token::kName, text); }
  absl::Status Error(int line, absl::string_view message) const;
  absl::Status Unexpected(absl::string_view want) const;
  absl::Status ExpectOperator(absl::string_view text);
  absl::StatusOr<std::string> ExpectName();

  // --- Expressions.
  static ExprPtr Make(Expr::Kind kind, int line);
  ExprOr ParseExpression(bool conditional = true);
  // Expressions without brackets, as of {% for x in a, b %}: a tuple if there
  // is a comma, which may be the last token.
  ExprOr ParseBareTuple(bool conditional);
  // The filters behind a "|" that is here. `input` may be null.
  ExprOr ParseFilters(ExprPtr input);
  // The name and the arguments of one filter, behind its "|", and the filters
  // that follow.
  ExprOr ParseFilterChain(ExprPtr input);

  std::vector<SpecialNames> open_macros_;  // Innermost last.

 private:
  ExprOr Finish(ExprPtr node) const;
  ExprOr Node(Expr::Kind kind, int line, std::string text, ExprPtr a,
              ExprPtr b = nullptr) const;
  template <typename Operand>
  ExprOr ParseBinary(std::initializer_list<const char*> operators,
                     Operand operand);
  bool AtTupleEnd() const;
  std::string TakeCompare();

  ExprOr ParseOr();
  ExprOr ParseAnd();
  ExprOr ParseNot();
  ExprOr ParseCompare();
  ExprOr ParseSum();
  ExprOr ParseConcat();
  ExprOr ParseProduct();
  ExprOr ParsePower();
  ExprOr ParseUnary(bool with_filters);
  ExprOr ParseFiltered(ExprPtr value);
  ExprOr ParseTest(ExprPtr value);
  ExprOr ParsePostfix(ExprPtr value);
  ExprOr ParseCall(ExprPtr callee);
  ExprOr ParseAttribute(ExprPtr value);
  ExprOr ParseSubscript(ExprPtr value);
  absl::Status ParseArguments(Expr* node);
  ExprOr ParsePrimary();
  ExprOr ParseName();
  ExprOr ParseNumber();
  ExprOr ParseParentheses();
  ExprOr ParseList();
  ExprOr ParseDict();

  const std::vector<Token> tokens_;
  size_t at_ = 0;
  int nesting_ = 0;
};

}  // namespace ringfleet::coordinator::jinja

#endif  // RINGFLEET_COORDINATOR_JINJA_EXPRESSION_PARSER_H_
