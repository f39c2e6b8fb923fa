// SPDX-License-Identifier: Apache-2.0
#include "coordinator/jinja/expression_parser.h"

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "cluster/process/status_macros.h"
#include "coordinator/jinja/context.h"
#include "coordinator/jinja/integer.h"

namespace ringfleet::coordinator::jinja {

absl::Status ExpressionParser::Nesting::Check() const {
  if (parser_->nesting_ <= kMaxDepth) return absl::OkStatus();
  return parser_->Error(parser_->Peek().line,
                        absl::StrCat("nesting deeper than ", kMaxDepth));
}

// --- Tokens.

const Token& ExpressionParser::Peek(size_t ahead) const {
  return tokens_[std::min(at_ + ahead, tokens_.size() - 1)];
}

Token ExpressionParser::Next() {
  Token token = Peek();
  if (at_ + 1 < tokens_.size()) ++at_;
  return token;
}

bool ExpressionParser::PeekIs(Token::Kind kind, absl::string_view text,
                              size_t ahead) const {
  return Peek(ahead).kind == kind && Peek(ahead).text == text;
}

bool ExpressionParser::Take(Token::Kind kind, absl::string_view text) {
  if (!PeekIs(kind, text)) return false;
  Next();
  return true;
}

absl::Status ExpressionParser::Error(int line,
                                     absl::string_view message) const {
  return absl::InvalidArgumentError(
      absl::StrCat("chat template line ", line, ": ", message));
}

absl::Status ExpressionParser::Unexpected(absl::string_view want) const {
  const Token& token = Peek();
  return Error(token.line,
               absl::StrCat(token.kind == Token::kEnd
                                ? std::string("end of the template")
                                : absl::StrCat("\"", token.text, "\""),
                            " where ", want, " is expected"));
}

absl::Status ExpressionParser::ExpectOperator(absl::string_view text) {
  if (TakeOperator(text)) return absl::OkStatus();
  return Unexpected(absl::StrCat("\"", text, "\""));
}

absl::StatusOr<std::string> ExpressionParser::ExpectName() {
  if (Peek().kind != Token::kName) return Unexpected("a name");
  return Next().text;
}

// --- Nodes.

ExprOr ExpressionParser::Finish(ExprPtr node) const {
  const auto deepen = [&](const ExprPtr& child) {
    if (child != nullptr) node->depth = std::max(node->depth, child->depth + 1);
  };
  for (const ExprPtr& arg : node->args) deepen(arg);
  for (const auto& keyword : node->keywords) deepen(keyword.second);
  deepen(node->splat);
  deepen(node->keyword_splat);
  if (node->depth > kMaxDepth) {
    return Error(Peek().line, absl::StrCat("nesting deeper than ", kMaxDepth));
  }
  return node;
}

ExprPtr ExpressionParser::Make(Expr::Kind kind, int line) {
  auto node = std::make_unique<Expr>();
  node->kind = kind;
  node->line = line;
  return node;
}

ExprOr ExpressionParser::Node(Expr::Kind kind, int line, std::string text,
                              ExprPtr a, ExprPtr b) const {
  ExprPtr node = Make(kind, line);
  node->text = std::move(text);
  node->args.push_back(std::move(a));
  if (b != nullptr) node->args.push_back(std::move(b));
  return Finish(std::move(node));
}

// --- Expressions, loosest first.

ExprOr ExpressionParser::ParseExpression(bool conditional) {
  const Nesting nesting(this);
  RF_RETURN_IF_ERROR(nesting.Check());
  RF_ASSIGN_OR_RETURN(ExprPtr value, ParseOr());
  while (conditional && PeekIs(Token::kName, "if")) {
    ExprPtr node = Make(Expr::kConditional, Next().line);
    RF_ASSIGN_OR_RETURN(ExprPtr condition, ParseOr());
    ExprPtr otherwise;
    if (TakeKeyword("else")) {
      RF_ASSIGN_OR_RETURN(otherwise, ParseExpression());
    }
    node->args.push_back(std::move(value));
    node->args.push_back(std::move(condition));
    node->args.push_back(std::move(otherwise));
    RF_ASSIGN_OR_RETURN(value, Finish(std::move(node)));
  }
  return value;
}

bool ExpressionParser::AtTupleEnd() const {
  const Token& token = Peek();
  return token.kind == Token::kPrintEnd || token.kind == Token::kBlockEnd ||
         PeekIs(Token::kOperator, ")") || PeekIs(Token::kName, "recursive");
}

ExprOr ExpressionParser::ParseBareTuple(bool conditional) {
  const int line = Peek().line;
  if (AtTupleEnd()) return Unexpected("an expression");
  RF_ASSIGN_OR_RETURN(ExprPtr first, ParseExpression(conditional));
  if (!PeekIs(Token::kOperator, ",")) return first;
  ExprPtr node = Make(Expr::kTuple, line);
  node->args.push_back(std::move(first));
  while (TakeOperator(",") && !AtTupleEnd()) {
    RF_ASSIGN_OR_RETURN(ExprPtr item, ParseExpression(conditional));
    node->args.push_back(std::move(item));
  }
  return Finish(std::move(node));
}

ExprOr ExpressionParser::ParseOr() {
  RF_ASSIGN_OR_RETURN(ExprPtr left, ParseAnd());
  while (PeekIs(Token::kName, "or")) {
    const int line = Next().line;
    RF_ASSIGN_OR_RETURN(ExprPtr right, ParseAnd());
    RF_ASSIGN_OR_RETURN(
        left, Node(Expr::kOr, line, "", std::move(left), std::move(right)));
  }
  return left;
}

ExprOr ExpressionParser::ParseAnd() {
  RF_ASSIGN_OR_RETURN(ExprPtr left, ParseNot());
  while (PeekIs(Token::kName, "and")) {
    const int line = Next().line;
    RF_ASSIGN_OR_RETURN(ExprPtr right, ParseNot());
    RF_ASSIGN_OR_RETURN(
        left, Node(Expr::kAnd, line, "", std::move(left), std::move(right)));
  }
  return left;
}

ExprOr ExpressionParser::ParseNot() {
  if (!PeekIs(Token::kName, "not")) return ParseCompare();
  const Nesting nesting(this);
  RF_RETURN_IF_ERROR(nesting.Check());
  const int line = Next().line;
  RF_ASSIGN_OR_RETURN(ExprPtr operand, ParseNot());
  return Node(Expr::kNot, line, "", std::move(operand));
}

// The comparison operator here, taken, or "".
std::string ExpressionParser::TakeCompare() {
  for (const char* text : {"==", "!=", "<=", ">=", "<", ">"}) {
    if (TakeOperator(text)) return text;
  }
  if (TakeKeyword("in")) return "in";
  if (PeekIs(Token::kName, "not") && PeekIs(Token::kName, "in", 1)) {
    Next();
    Next();
    return "not in";
  }
  return "";
}

ExprOr ExpressionParser::ParseCompare() {
  RF_ASSIGN_OR_RETURN(ExprPtr first, ParseSum());
  const int line = Peek().line;
  std::string text = TakeCompare();
  if (text.empty()) return first;
  ExprPtr node = Make(Expr::kCompare, line);
  node->args.push_back(std::move(first));
  for (; !text.empty(); text = TakeCompare()) {
    node->operators.push_back(text);
    RF_ASSIGN_OR_RETURN(ExprPtr operand, ParseSum());
    node->args.push_back(std::move(operand));
  }
  return Finish(std::move(node));
}

// Left-associative operators of one precedence.
template <typename Operand>
ExprOr ExpressionParser::ParseBinary(
    std::initializer_list<const char*> operators, Operand operand) {
  RF_ASSIGN_OR_RETURN(ExprPtr left, operand());
  while (true) {
    const auto found = std::find_if(
        operators.begin(), operators.end(),
        [&](const char* o) { return PeekIs(Token::kOperator, o); });
    if (found == operators.end()) return left;
    const int line = Next().line;
    RF_ASSIGN_OR_RETURN(ExprPtr right, operand());
    RF_ASSIGN_OR_RETURN(left, Node(Expr::kBinary, line, *found, std::move(left),
                                   std::move(right)));
  }
}

ExprOr ExpressionParser::ParseSum() {
  return ParseBinary({"+", "-"}, [this] { return ParseConcat(); });
}

ExprOr ExpressionParser::ParseConcat() {
  return ParseBinary({"~"}, [this] { return ParseProduct(); });
}

ExprOr ExpressionParser::ParseProduct() {
  return ParseBinary({"*", "/", "//", "%"}, [this] { return ParsePower(); });
}

ExprOr ExpressionParser::ParsePower() {
  return ParseBinary({"**"}, [this] { return ParseUnary(true); });
}

ExprOr ExpressionParser::ParseUnary(bool with_filters) {
  const Nesting nesting(this);
  RF_RETURN_IF_ERROR(nesting.Check());
  const int line = Peek().line;
  ExprPtr value;
  if (TakeOperator("-")) {
    RF_ASSIGN_OR_RETURN(ExprPtr operand, ParseUnary(false));
    RF_ASSIGN_OR_RETURN(value,
                        Node(Expr::kMinus, line, "", std::move(operand)));
  } else if (TakeOperator("+")) {
    RF_ASSIGN_OR_RETURN(ExprPtr operand, ParseUnary(false));
    RF_ASSIGN_OR_RETURN(value, Node(Expr::kPlus, line, "", std::move(operand)));
  } else {
    RF_ASSIGN_OR_RETURN(value, ParsePrimary());
  }
  RF_ASSIGN_OR_RETURN(value, ParsePostfix(std::move(value)));
  return with_filters ? ParseFiltered(std::move(value)) : std::move(value);
}

// Filters and tests of a value, and calls of their results.
ExprOr ExpressionParser::ParseFiltered(ExprPtr value) {
  while (true) {
    if (PeekIs(Token::kOperator, "|")) {
      RF_ASSIGN_OR_RETURN(value, ParseFilters(std::move(value)));
    } else if (PeekIs(Token::kName, "is")) {
      RF_ASSIGN_OR_RETURN(value, ParseTest(std::move(value)));
    } else if (PeekIs(Token::kOperator, "(")) {
      RF_ASSIGN_OR_RETURN(value, ParseCall(std::move(value)));
    } else {
      return value;
    }
  }
}

ExprOr ExpressionParser::ParseFilters(ExprPtr input) {
  if (!TakeOperator("|")) return input;
  return ParseFilterChain(std::move(input));
}

ExprOr ExpressionParser::ParseFilterChain(ExprPtr input) {
  do {
    ExprPtr node = Make(Expr::kFilter, Peek().line);
    RF_ASSIGN_OR_RETURN(node->text, ExpectName());
    node->args.push_back(std::move(input));
    if (PeekIs(Token::kOperator, "(")) {
      RF_RETURN_IF_ERROR(ParseArguments(node.get()));
    }
    RF_ASSIGN_OR_RETURN(input, Finish(std::move(node)));
  } while (TakeOperator("|"));
  return input;
}

ExprOr ExpressionParser::ParseTest(ExprPtr value) {
  const int line = Next().line;
  const bool negated = TakeKeyword("not");
  ExprPtr node = Make(Expr::kTest, line);
  RF_ASSIGN_OR_RETURN(node->text, ExpectName());
  node->args.push_back(std::move(value));
  const Token& token = Peek();
  const bool begins_value =
      token.kind == Token::kString || token.kind == Token::kInteger ||
      token.kind == Token::kFloat || PeekIs(Token::kOperator, "[") ||
      PeekIs(Token::kOperator, "{") ||
      (token.kind == Token::kName && token.text != "else" &&
       token.text != "or" && token.text != "and");
  if (PeekIs(Token::kOperator, "(")) {
    RF_RETURN_IF_ERROR(ParseArguments(node.get()));
  } else if (begins_value) {
    // One argument may stand without parentheses.
    if (token.text == "is" && token.kind == Token::kName) {
      return Error(line, "a test of a test needs parentheses");
    }
    RF_ASSIGN_OR_RETURN(ExprPtr argument, ParsePrimary());
    RF_ASSIGN_OR_RETURN(argument, ParsePostfix(std::move(argument)));
    node->args.push_back(std::move(argument));
  }
  RF_ASSIGN_OR_RETURN(node, Finish(std::move(node)));
  if (!negated) return node;
  return Node(Expr::kNot, line, "", std::move(node));
}

ExprOr ExpressionParser::ParsePostfix(ExprPtr value) {
  while (true) {
    if (PeekIs(Token::kOperator, ".")) {
      RF_ASSIGN_OR_RETURN(value, ParseAttribute(std::move(value)));
    } else if (PeekIs(Token::kOperator, "[")) {
      RF_ASSIGN_OR_RETURN(value, ParseSubscript(std::move(value)));
    } else if (PeekIs(Token::kOperator, "(")) {
      RF_ASSIGN_OR_RETURN(value, ParseCall(std::move(value)));
    } else {
      return value;
    }
  }
}

ExprOr ExpressionParser::ParseCall(ExprPtr callee) {
  ExprPtr node = Make(Expr::kCall, Peek().line);
  node->args.push_back(std::move(callee));
  RF_RETURN_IF_ERROR(ParseArguments(node.get()));
  return Finish(std::move(node));
}

ExprOr ExpressionParser::ParseAttribute(ExprPtr value) {
  const int line = Next().line;
  if (Peek().kind != Token::kInteger) {
    RF_ASSIGN_OR_RETURN(std::string name, ExpectName());
    return Node(Expr::kAttribute, line, std::move(name), std::move(value));
  }
  RF_ASSIGN_OR_RETURN(ExprPtr index, ParseNumber());
  return Node(Expr::kIndex, line, "", std::move(value), std::move(index));
}

ExprOr ExpressionParser::ParseSubscript(ExprPtr value) {
  const int line = Next().line;
  ExprPtr node = Make(Expr::kIndex, line);
  node->args.push_back(std::move(value));
  while (true) {
    ExprPtr part;
    if (!PeekIs(Token::kOperator, ":") && !PeekIs(Token::kOperator, "]")) {
      RF_ASSIGN_OR_RETURN(part, ParseExpression());
    }
    node->args.push_back(std::move(part));
    if (!TakeOperator(":")) break;
    node->kind = Expr::kSlice;
    if (node->args.size() == 4) return Unexpected("\"]\"");
  }
  RF_RETURN_IF_ERROR(ExpectOperator("]"));
  if (node->kind == Expr::kSlice) {
    node->args.resize(4);
  } else if (node->args[1] == nullptr) {
    return Error(line, "an empty subscript");
  }
  return Finish(std::move(node));
}

absl::Status ExpressionParser::ParseArguments(Expr* node) {
  RF_RETURN_IF_ERROR(ExpectOperator("("));
  while (!TakeOperator(")")) {
    if (node->keyword_splat != nullptr) return Unexpected("\")\"");
    if (TakeOperator("**")) {
      RF_ASSIGN_OR_RETURN(node->keyword_splat, ParseExpression());
    } else if (TakeOperator("*")) {
      if (node->splat != nullptr) return Unexpected("one argument *");
      RF_ASSIGN_OR_RETURN(node->splat, ParseExpression());
    } else if (Peek().kind == Token::kName &&
               PeekIs(Token::kOperator, "=", 1)) {
      std::string name = Next().text;
      Next();
      RF_ASSIGN_OR_RETURN(ExprPtr value, ParseExpression());
      node->keywords.emplace_back(std::move(name), std::move(value));
    } else {
      if (!node->keywords.empty() || node->splat != nullptr) {
        return Unexpected("a keyword argument");
      }
      RF_ASSIGN_OR_RETURN(ExprPtr value, ParseExpression());
      node->args.push_back(std::move(value));
    }
    if (!PeekIs(Token::kOperator, ")")) {
      RF_RETURN_IF_ERROR(ExpectOperator(","));
    }
  }
  return absl::OkStatus();
}

ExprOr ExpressionParser::ParsePrimary() {
  const int line = Peek().line;
  switch (Peek().kind) {
    case Token::kName:
      return ParseName();
    case Token::kString: {
      std::string text = Next().text;
      while (Peek().kind == Token::kString) text += Next().text;
      ExprPtr node = Make(Expr::kLiteral, line);
      node->literal = Value::Literal(text);
      return node;
    }
    case Token::kInteger:
    case Token::kFloat:
      return ParseNumber();
    default:
      break;
  }
  if (PeekIs(Token::kOperator, "(")) return ParseParentheses();
  if (PeekIs(Token::kOperator, "[")) return ParseList();
  if (PeekIs(Token::kOperator, "{")) return ParseDict();
  return Unexpected("an expression");
}

ExprOr ExpressionParser::ParseNumber() {
  const Token token = Next();
  ExprPtr node = Make(Expr::kLiteral, token.line);
  if (token.kind == Token::kInteger) {
    const absl::StatusOr<Integer> integer = ParseInteger(token.text, 0);
    if (!integer.ok()) return Error(token.line, integer.status().message());
    node->literal = Value::Int(*integer);
    return node;
  }
  double number;
  if (!absl::SimpleAtod(absl::StrReplaceAll(token.text, {{"_", ""}}),
                        &number)) {
    return Error(token.line, absl::StrCat("\"", token.text, "\" is no number"));
  }
  node->literal = Value::Float(number);
  return node;
}

ExprOr ExpressionParser::ParseName() {
  const Token token = Next();
  ExprPtr literal = Make(Expr::kLiteral, token.line);
  if (token.text == "true" || token.text == "True") {
    literal->literal = Value::Boolean(true);
    return literal;
  }
  if (token.text == "false" || token.text == "False") {
    literal->literal = Value::Boolean(false);
    return literal;
  }
  if (token.text == "none" || token.text == "None") return literal;
  for (const char* word : {"if", "else", "and", "or", "not", "in", "is"}) {
    if (token.text == word) {
      return Error(token.line, absl::StrCat("\"", word,
                                            "\" where an expression is "
                                            "expected"));
    }
  }
  for (SpecialNames& names : open_macros_) {
    names.caller = names.caller || token.text == "caller";
    names.varargs = names.varargs || token.text == "varargs";
    names.kwargs = names.kwargs || token.text == "kwargs";
  }
  ExprPtr node = Make(Expr::kName, token.line);
  node->text = token.text;
  return node;
}

// A tuple, or one expression, which is itself.
ExprOr ExpressionParser::ParseParentheses() {
  const int line = Next().line;
  if (TakeOperator(")")) return Make(Expr::kTuple, line);
  RF_ASSIGN_OR_RETURN(ExprPtr value, ParseBareTuple(/*conditional=*/true));
  RF_RETURN_IF_ERROR(ExpectOperator(")"));
  return value;
}

ExprOr ExpressionParser::ParseList() {
  ExprPtr node = Make(Expr::kList, Next().line);
  while (!TakeOperator("]")) {
    RF_ASSIGN_OR_RETURN(ExprPtr item, ParseExpression());
    node->args.push_back(std::move(item));
    if (!PeekIs(Token::kOperator, "]")) {
      RF_RETURN_IF_ERROR(ExpectOperator(","));
    }
  }
  return Finish(std::move(node));
}

ExprOr ExpressionParser::ParseDict() {
  ExprPtr node = Make(Expr::kDict, Next().line);
  while (!TakeOperator("}")) {
    RF_ASSIGN_OR_RETURN(ExprPtr key, ParseExpression());
    RF_RETURN_IF_ERROR(ExpectOperator(":"));
    RF_ASSIGN_OR_RETURN(ExprPtr value, ParseExpression());
    node->args.push_back(std::move(key));
    node->args.push_back(std::move(value));
    if (!PeekIs(Token::kOperator, "}")) {
      RF_RETURN_IF_ERROR(ExpectOperator(","));
    }
  }
  return Finish(std::move(node));
}

}  // namespace ringfleet::coordinator::jinja
