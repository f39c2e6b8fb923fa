// SPDX-License-Identifier: Apache-2.0
#include "coordinator/jinja/parser.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cluster/process/status_macros.h"
#include "coordinator/jinja/expression_parser.h"
#include "coordinator/jinja/lexer.h"

namespace ringfleet::coordinator::jinja {
namespace {

using Body = std::vector<Stmt>;

class StatementParser : private ExpressionParser {
 public:
  explicit StatementParser(std::vector<Token> tokens)
      : ExpressionParser(std::move(tokens)) {}

  absl::StatusOr<Body> Run() {
    std::string end;
    return ParseBody({}, &end);
  }

 private:
  absl::Status ExpectBlockEnd() {
    if (Peek().kind != Token::kBlockEnd) return Unexpected("\"%}\"");
    Next();
    return absl::OkStatus();
  }

  // Statements up to a block that begins with one of `ends`, whose name goes to
  // `end`, taken; without `ends`, up to the end of the template.
  absl::StatusOr<Body> ParseBody(const std::vector<std::string>& ends,
                                 std::string* end) {
    const Nesting nesting(this);
    RF_RETURN_IF_ERROR(nesting.Check());
    Body body;
    while (true) {
      const Token token = Peek();
      if (token.kind == Token::kEnd) {
        if (ends.empty()) return body;
        return Unexpected(
            absl::StrCat("{% ", absl::StrJoin(ends, " or "), " %}"));
      }
      Next();
      Stmt stmt;
      stmt.line = token.line;
      if (token.kind == Token::kText) {
        stmt.kind = Stmt::kText;
        stmt.text = token.text;
      } else if (token.kind == Token::kPrint) {
        stmt.kind = Stmt::kPrint;
        RF_ASSIGN_OR_RETURN(stmt.expr, ParseBareTuple(/*conditional=*/true));
        if (Peek().kind != Token::kPrintEnd) return Unexpected("\"}}\"");
        Next();
      } else {
        RF_ASSIGN_OR_RETURN(const std::string name, ExpectName());
        if (std::find(ends.begin(), ends.end(), name) != ends.end()) {
          *end = name;
          return body;
        }
        RF_RETURN_IF_ERROR(ParseBlock(name, &stmt));
      }
      body.push_back(std::move(stmt));
    }
  }

  // The body of `stmt` up to its end block, with the end of its first tag
  // before and that of its last tag behind.
  absl::Status ParseWholeBody(const char* end_name, Stmt* stmt) {
    RF_RETURN_IF_ERROR(ExpectBlockEnd());
    std::string end;
    RF_ASSIGN_OR_RETURN(stmt->body, ParseBody({end_name}, &end));
    return ExpectBlockEnd();
  }

  absl::Status ParseBlock(const std::string& name, Stmt* stmt) {
    using Rule = absl::Status (StatementParser::*)(Stmt*);
    static const auto* const kRules =
        new absl::flat_hash_map<absl::string_view, Rule>(
            {{"if", &StatementParser::ParseIf},
             {"for", &StatementParser::ParseFor},
             {"set", &StatementParser::ParseSet},
             {"with", &StatementParser::ParseWith},
             {"macro", &StatementParser::ParseMacro},
             {"call", &StatementParser::ParseCallBlock},
             {"filter", &StatementParser::ParseFilterBlock},
             {"generation", &StatementParser::ParseGeneration},
             {"print", &StatementParser::ParsePrint}});
    const auto rule = kRules->find(name);
    if (rule != kRules->end()) return (this->*rule->second)(stmt);
    if (name == "break" || name == "continue") {
      stmt->kind = name == "break" ? Stmt::kBreak : Stmt::kContinue;
      if (loops_ == 0) {
        return Error(stmt->line,
                     absl::StrCat("\"{% ", name, " %}\" outside of a loop"));
      }
      return ExpectBlockEnd();
    }
    return Error(stmt->line, absl::StrCat("block \"{% ", name,
                                          " %}\" is not supported here"));
  }

  absl::Status ParseIf(Stmt* stmt) {
    stmt->kind = Stmt::kIf;
    std::string end = "elif";
    while (end != "endif") {
      Stmt::Branch branch;
      const bool last = end == "else";
      if (!last) {
        RF_ASSIGN_OR_RETURN(branch.condition,
                            ParseBareTuple(/*conditional=*/false));
      }
      RF_RETURN_IF_ERROR(ExpectBlockEnd());
      std::vector<std::string> ends = {"endif"};
      if (!last) ends = {"elif", "else", "endif"};
      RF_ASSIGN_OR_RETURN(branch.body, ParseBody(ends, &end));
      stmt->branches.push_back(std::move(branch));
    }
    return ExpectBlockEnd();
  }

  absl::Status ParseFor(Stmt* stmt) {
    stmt->kind = Stmt::kFor;
    RF_RETURN_IF_ERROR(ParseTarget(/*attributes=*/false, stmt));
    if (!TakeKeyword("in")) return Unexpected("\"in\"");
    // "if" begins the filter here.
    RF_ASSIGN_OR_RETURN(stmt->expr, ParseBareTuple(/*conditional=*/false));
    if (TakeKeyword("if")) {
      RF_ASSIGN_OR_RETURN(stmt->filter, ParseExpression());
    }
    stmt->recursive = TakeKeyword("recursive");
    RF_RETURN_IF_ERROR(ExpectBlockEnd());
    std::string end;
    ++loops_;
    absl::StatusOr<Body> body = ParseBody({"else", "endfor"}, &end);
    --loops_;
    if (!body.ok()) return body.status();
    stmt->body = *std::move(body);
    if (end == "else") {
      RF_RETURN_IF_ERROR(ExpectBlockEnd());
      RF_ASSIGN_OR_RETURN(stmt->otherwise, ParseBody({"endfor"}, &end));
    }
    return ExpectBlockEnd();
  }

  // Names, or tuples of names. With `attributes`, attributes of namespaces.
  absl::Status ParseTarget(bool attributes, Stmt* stmt) {
    RF_ASSIGN_OR_RETURN(Target target, ParseTargetTuple(attributes));
    stmt->targets.push_back(std::move(target));
    return absl::OkStatus();
  }

  absl::StatusOr<Target> ParseTargetTuple(bool attributes) {
    const Nesting nesting(this);
    RF_RETURN_IF_ERROR(nesting.Check());
    RF_ASSIGN_OR_RETURN(Target first, ParseTargetItem(attributes));
    if (!PeekIs(Token::kOperator, ",")) return first;
    Target tuple;
    tuple.kind = Target::kTuple;
    tuple.items.push_back(std::move(first));
    while (TakeOperator(",")) {
      const bool more = (Peek().kind == Token::kName && Peek().text != "in") ||
                        PeekIs(Token::kOperator, "(");
      if (!more) break;
      RF_ASSIGN_OR_RETURN(Target item, ParseTargetItem(attributes));
      tuple.items.push_back(std::move(item));
    }
    return tuple;
  }

  absl::StatusOr<Target> ParseTargetItem(bool attributes) {
    if (TakeOperator("(")) {
      RF_ASSIGN_OR_RETURN(Target inner, ParseTargetTuple(attributes));
      RF_RETURN_IF_ERROR(ExpectOperator(")"));
      return inner;
    }
    Target target;
    RF_ASSIGN_OR_RETURN(target.name, ExpectName());
    for (const char* word :
         {"true", "false", "none", "True", "False", "None"}) {
      if (target.name == word) {
        return Error(Peek().line,
                     absl::StrCat("\"", word, "\" cannot be assigned to"));
      }
    }
    if (attributes && TakeOperator(".")) {
      target.kind = Target::kAttribute;
      RF_ASSIGN_OR_RETURN(target.attribute, ExpectName());
    }
    return target;
  }

  absl::Status ParseSet(Stmt* stmt) {
    RF_RETURN_IF_ERROR(ParseTarget(/*attributes=*/true, stmt));
    if (TakeOperator("=")) {
      stmt->kind = Stmt::kSet;
      RF_ASSIGN_OR_RETURN(stmt->expr, ParseBareTuple(/*conditional=*/true));
      return ExpectBlockEnd();
    }
    stmt->kind = Stmt::kSetBlock;
    RF_ASSIGN_OR_RETURN(stmt->expr, ParseFilters(nullptr));
    return ParseWholeBody("endset", stmt);
  }

  absl::Status ParseWith(Stmt* stmt) {
    stmt->kind = Stmt::kWith;
    while (Peek().kind != Token::kBlockEnd) {
      if (!stmt->targets.empty()) RF_RETURN_IF_ERROR(ExpectOperator(","));
      RF_ASSIGN_OR_RETURN(Target target, ParseTargetItem(/*attributes=*/false));
      stmt->targets.push_back(std::move(target));
      RF_RETURN_IF_ERROR(ExpectOperator("="));
      RF_ASSIGN_OR_RETURN(ExprPtr value, ParseExpression());
      stmt->values.push_back(std::move(value));
    }
    return ParseWholeBody("endwith", stmt);
  }

  absl::Status ParseMacro(Stmt* stmt) {
    stmt->kind = Stmt::kMacro;
    RF_ASSIGN_OR_RETURN(stmt->text, ExpectName());
    RF_RETURN_IF_ERROR(ParseParameters(stmt));
    return ParseMacroBody("endmacro", stmt);
  }

  absl::Status ParseCallBlock(Stmt* stmt) {
    stmt->kind = Stmt::kCall;
    if (PeekIs(Token::kOperator, "(")) {
      RF_RETURN_IF_ERROR(ParseParameters(stmt));
    }
    RF_ASSIGN_OR_RETURN(stmt->expr, ParseExpression());
    if (stmt->expr->kind != Expr::kCall) {
      return Error(stmt->line, "\"{% call %}\" wants a call");
    }
    return ParseMacroBody("endcall", stmt);
  }

  absl::Status ParseParameters(Stmt* stmt) {
    RF_RETURN_IF_ERROR(ExpectOperator("("));
    while (!TakeOperator(")")) {
      Parameter parameter;
      RF_ASSIGN_OR_RETURN(parameter.name, ExpectName());
      if (TakeOperator("=")) {
        RF_ASSIGN_OR_RETURN(parameter.fallback, ParseExpression());
      } else if (!stmt->parameters.empty() &&
                 stmt->parameters.back().fallback != nullptr) {
        return Unexpected("a default");
      }
      stmt->parameters.push_back(std::move(parameter));
      if (!PeekIs(Token::kOperator, ")")) {
        RF_RETURN_IF_ERROR(ExpectOperator(","));
      }
    }
    return absl::OkStatus();
  }

  // A macro's body is no part of the loops around it.
  absl::Status ParseMacroBody(const char* end_name, Stmt* stmt) {
    const int loops = std::exchange(loops_, 0);
    open_macros_.emplace_back();
    const absl::Status status = ParseWholeBody(end_name, stmt);
    stmt->uses_caller = open_macros_.back().caller;
    stmt->uses_varargs = open_macros_.back().varargs;
    stmt->uses_kwargs = open_macros_.back().kwargs;
    open_macros_.pop_back();
    loops_ = loops;
    return status;
  }

  absl::Status ParseFilterBlock(Stmt* stmt) {
    stmt->kind = Stmt::kFilter;
    RF_ASSIGN_OR_RETURN(stmt->expr, ParseFilterChain(nullptr));
    return ParseWholeBody("endfilter", stmt);
  }

  // Marks what an assistant said, which training wants to know.
  absl::Status ParseGeneration(Stmt* stmt) {
    stmt->kind = Stmt::kScope;
    return ParseWholeBody("endgeneration", stmt);
  }

  absl::Status ParsePrint(Stmt* stmt) {
    stmt->kind = Stmt::kPrint;
    RF_ASSIGN_OR_RETURN(stmt->expr, ParseBareTuple(/*conditional=*/true));
    return ExpectBlockEnd();
  }

  int loops_ = 0;  // Loops around the statement, in its macro.
};

}  // namespace

absl::StatusOr<std::vector<Stmt>> ParseTemplate(absl::string_view source) {
  RF_ASSIGN_OR_RETURN(std::vector<Token> tokens, Tokenize(source));
  return StatementParser(std::move(tokens)).Run();
}

}  // namespace ringfleet::coordinator::jinja
