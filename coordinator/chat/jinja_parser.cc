// SPDX-License-Identifier: Apache-2.0
#include "coordinator/chat/jinja_parser.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cluster/process/status_macros.h"
#include "coordinator/chat/jinja_lexer.h"

namespace ringfleet::coordinator::jinja {
namespace {

using ExprOr = absl::StatusOr<ExprPtr>;
using Body = std::vector<Stmt>;

// Recursive descent. Every function that recurses holds a Nesting, and every
// node is made by Node, which bounds its depth: loops make deep trees too.
class Parser {
 public:
  explicit Parser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  absl::StatusOr<Body> Run() {
    std::string end;
    return ParseBody({}, &end);
  }

 private:
  class Nesting {
   public:
    explicit Nesting(Parser* parser) : parser_(parser) { ++parser_->nesting_; }
    ~Nesting() { --parser_->nesting_; }
    bool TooDeep() const { return parser_->nesting_ > kMaxDepth; }

   private:
    Parser* parser_;
  };

  // --- Tokens.

  const Token& Peek(size_t ahead = 0) const {
    return tokens_[std::min(at_ + ahead, tokens_.size() - 1)];
  }
  Token Next() {
    Token token = Peek();
    if (at_ + 1 < tokens_.size()) ++at_;
    return token;
  }
  bool PeekIs(Token::Kind kind, absl::string_view text,
              size_t ahead = 0) const {
    return Peek(ahead).kind == kind && Peek(ahead).text == text;
  }
  bool Take(Token::Kind kind, absl::string_view text) {
    if (!PeekIs(kind, text)) return false;
    Next();
    return true;
  }
  bool TakeOperator(absl::string_view text) {
    return Take(Token::kOperator, text);
  }
  bool TakeKeyword(absl::string_view text) { return Take(Token::kName, text); }

  absl::Status Error(int line, absl::string_view message) const {
    return absl::InvalidArgumentError(
        absl::StrCat("chat template line ", line, ": ", message));
  }
  absl::Status Unexpected(absl::string_view want) const {
    const Token& token = Peek();
    return Error(token.line,
                 absl::StrCat(token.kind == Token::kEnd
                                  ? std::string("end of the template")
                                  : absl::StrCat("\"", token.text, "\""),
                              " where ", want, " is expected"));
  }
  absl::Status DeepError() const {
    return Error(Peek().line, absl::StrCat("nesting deeper than ", kMaxDepth));
  }
  absl::Status ExpectOperator(absl::string_view text) {
    if (TakeOperator(text)) return absl::OkStatus();
    return Unexpected(absl::StrCat("\"", text, "\""));
  }
  absl::StatusOr<std::string> ExpectName() {
    if (Peek().kind != Token::kName) return Unexpected("a name");
    return Next().text;
  }
  absl::Status ExpectBlockEnd() {
    if (Peek().kind != Token::kBlockEnd) return Unexpected("\"%}\"");
    Next();
    return absl::OkStatus();
  }

  // --- Nodes.

  ExprOr Finish(ExprPtr node) const {
    for (const ExprPtr& arg : node->args) {
      if (arg != nullptr) node->depth = std::max(node->depth, arg->depth + 1);
    }
    for (const auto& keyword : node->keywords) {
      node->depth = std::max(node->depth, keyword.second->depth + 1);
    }
    if (node->depth > kMaxDepth) return DeepError();
    return node;
  }
  static ExprPtr Make(Expr::Kind kind, int line) {
    auto node = std::make_unique<Expr>();
    node->kind = kind;
    node->line = line;
    return node;
  }
  ExprOr Node(Expr::Kind kind, int line, std::string text, ExprPtr a,
              ExprPtr b = nullptr) const {
    ExprPtr node = Make(kind, line);
    node->text = std::move(text);
    node->args.push_back(std::move(a));
    if (b != nullptr) node->args.push_back(std::move(b));
    return Finish(std::move(node));
  }
  static ExprPtr Literal(Value value, int line) {
    ExprPtr node = Make(Expr::kLiteral, line);
    node->literal = std::move(value);
    return node;
  }

  // --- Expressions, loosest first.

  ExprOr ParseExpression() {
    const Nesting nesting(this);
    if (nesting.TooDeep()) return DeepError();
    RF_ASSIGN_OR_RETURN(ExprPtr value, ParseOr());
    while (PeekIs(Token::kName, "if")) {
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

  ExprOr ParseOr() {
    RF_ASSIGN_OR_RETURN(ExprPtr left, ParseAnd());
    while (PeekIs(Token::kName, "or")) {
      const int line = Next().line;
      RF_ASSIGN_OR_RETURN(ExprPtr right, ParseAnd());
      RF_ASSIGN_OR_RETURN(
          left, Node(Expr::kOr, line, "", std::move(left), std::move(right)));
    }
    return left;
  }

  ExprOr ParseAnd() {
    RF_ASSIGN_OR_RETURN(ExprPtr left, ParseNot());
    while (PeekIs(Token::kName, "and")) {
      const int line = Next().line;
      RF_ASSIGN_OR_RETURN(ExprPtr right, ParseNot());
      RF_ASSIGN_OR_RETURN(
          left, Node(Expr::kAnd, line, "", std::move(left), std::move(right)));
    }
    return left;
  }

  ExprOr ParseNot() {
    if (!PeekIs(Token::kName, "not")) return ParseCompare();
    const Nesting nesting(this);
    if (nesting.TooDeep()) return DeepError();
    const int line = Next().line;
    RF_ASSIGN_OR_RETURN(ExprPtr operand, ParseNot());
    return Node(Expr::kNot, line, "", std::move(operand));
  }

  // The comparison operator here, taken, or "".
  std::string TakeCompare() {
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

  ExprOr ParseCompare() {
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
  ExprOr ParseBinary(std::initializer_list<const char*> operators,
                     Operand operand) {
    RF_ASSIGN_OR_RETURN(ExprPtr left, operand());
    while (true) {
      const auto found = std::find_if(
          operators.begin(), operators.end(),
          [&](const char* o) { return PeekIs(Token::kOperator, o); });
      if (found == operators.end()) return left;
      const int line = Next().line;
      RF_ASSIGN_OR_RETURN(ExprPtr right, operand());
      RF_ASSIGN_OR_RETURN(left, Node(Expr::kBinary, line, *found,
                                     std::move(left), std::move(right)));
    }
  }
  ExprOr ParseSum() {
    return ParseBinary({"+", "-"}, [this] { return ParseConcat(); });
  }
  ExprOr ParseConcat() {
    return ParseBinary({"~"}, [this] { return ParseProduct(); });
  }
  ExprOr ParseProduct() {
    return ParseBinary({"*", "/", "//", "%"},
                       [this] { return ParseFiltered(); });
  }

  // A unary expression and the filters and tests that apply to it.
  ExprOr ParseFiltered() {
    RF_ASSIGN_OR_RETURN(ExprPtr value, ParseUnary());
    while (true) {
      const int line = Peek().line;
      if (TakeOperator("|")) {
        ExprPtr node = Make(Expr::kFilter, line);
        RF_ASSIGN_OR_RETURN(node->text, ExpectName());
        node->args.push_back(std::move(value));
        if (TakeOperator("(")) {
          RF_RETURN_IF_ERROR(ParseArguments(node.get()));
        }
        RF_ASSIGN_OR_RETURN(value, Finish(std::move(node)));
      } else if (TakeKeyword("is")) {
        ExprPtr node = Make(Expr::kTest, line);
        node->negated = TakeKeyword("not");
        RF_ASSIGN_OR_RETURN(node->text, ExpectName());
        if (PeekIs(Token::kOperator, "(")) {
          return Error(line,
                       absl::StrCat("test \"", node->text,
                                    "\" with arguments is not supported"));
        }
        node->args.push_back(std::move(value));
        RF_ASSIGN_OR_RETURN(value, Finish(std::move(node)));
      } else if (PeekIs(Token::kOperator, "**")) {
        return Error(line, "operator \"**\" is not supported");
      } else {
        return value;
      }
    }
  }

  ExprOr ParseUnary() {
    if (!PeekIs(Token::kOperator, "-")) return ParsePostfix();
    const Nesting nesting(this);
    if (nesting.TooDeep()) return DeepError();
    const int line = Next().line;
    RF_ASSIGN_OR_RETURN(ExprPtr operand, ParseUnary());
    return Node(Expr::kMinus, line, "", std::move(operand));
  }

  ExprOr ParsePostfix() {
    RF_ASSIGN_OR_RETURN(ExprPtr value, ParsePrimary());
    while (true) {
      const int line = Peek().line;
      if (TakeOperator(".")) {
        RF_ASSIGN_OR_RETURN(std::string name, ExpectName());
        RF_ASSIGN_OR_RETURN(value, Node(Expr::kAttribute, line, std::move(name),
                                        std::move(value)));
      } else if (TakeOperator("[")) {
        RF_ASSIGN_OR_RETURN(value, ParseSubscript(std::move(value), line));
      } else if (TakeOperator("(")) {
        ExprPtr node = Make(Expr::kCall, line);
        node->args.push_back(std::move(value));
        RF_RETURN_IF_ERROR(ParseArguments(node.get()));
        RF_ASSIGN_OR_RETURN(value, Finish(std::move(node)));
      } else {
        return value;
      }
    }
  }

  // After "[".
  ExprOr ParseSubscript(ExprPtr value, int line) {
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

  // After "(", through ")".
  absl::Status ParseArguments(Expr* node) {
    while (!TakeOperator(")")) {
      if (Peek().kind == Token::kName && PeekIs(Token::kOperator, "=", 1)) {
        std::string name = Next().text;
        Next();
        RF_ASSIGN_OR_RETURN(ExprPtr value, ParseExpression());
        node->keywords.emplace_back(std::move(name), std::move(value));
      } else {
        if (!node->keywords.empty()) return Unexpected("a keyword argument");
        RF_ASSIGN_OR_RETURN(ExprPtr value, ParseExpression());
        node->args.push_back(std::move(value));
      }
      if (!PeekIs(Token::kOperator, ")"))
        RF_RETURN_IF_ERROR(ExpectOperator(","));
    }
    return absl::OkStatus();
  }

  ExprOr ParsePrimary() {
    const Token& token = Peek();
    const int line = token.line;
    switch (token.kind) {
      case Token::kName:
        return ParseName();
      case Token::kString: {
        std::string text = Next().text;
        while (Peek().kind == Token::kString) text += Next().text;
        return Literal(Value::String(std::move(text)), line);
      }
      case Token::kInteger: {
        int64_t number;
        if (!absl::SimpleAtoi(token.text, &number)) {
          return Error(
              line, absl::StrCat("integer ", token.text, " exceeds 64 bits"));
        }
        Next();
        return Literal(Value(number), line);
      }
      case Token::kFloat: {
        double number;
        if (!absl::SimpleAtod(token.text, &number))
          return Unexpected("a number");
        Next();
        return Literal(Value(number), line);
      }
      default:
        break;
    }
    if (TakeOperator("(")) return ParseList(")", line);
    if (TakeOperator("[")) return ParseList("]", line);
    if (TakeOperator("{")) return ParseDict(line);
    return Unexpected("an expression");
  }

  ExprOr ParseName() {
    const Token token = Next();
    if (token.text == "true" || token.text == "True") {
      return Literal(Value(true), token.line);
    }
    if (token.text == "false" || token.text == "False") {
      return Literal(Value(false), token.line);
    }
    if (token.text == "none" || token.text == "None") {
      return Literal(Value(), token.line);
    }
    for (const char* word : {"if", "else", "and", "or", "not", "in", "is"}) {
      if (token.text == word) {
        return Error(token.line, absl::StrCat("\"", word,
                                              "\" where an "
                                              "expression is expected"));
      }
    }
    ExprPtr node = Make(Expr::kName, token.line);
    node->text = token.text;
    return node;
  }

  // After the opening bracket. A tuple is a list; one expression in parentheses
  // is itself.
  ExprOr ParseList(absl::string_view close, int line) {
    ExprPtr node = Make(Expr::kList, line);
    bool comma = false;
    while (!TakeOperator(close)) {
      RF_ASSIGN_OR_RETURN(ExprPtr item, ParseExpression());
      node->args.push_back(std::move(item));
      if (PeekIs(Token::kOperator, close)) continue;
      RF_RETURN_IF_ERROR(ExpectOperator(","));
      comma = true;
    }
    if (close == ")" && node->args.size() == 1 && !comma) {
      return std::move(node->args[0]);
    }
    return Finish(std::move(node));
  }

  ExprOr ParseDict(int line) {
    ExprPtr node = Make(Expr::kDict, line);
    while (!TakeOperator("}")) {
      RF_ASSIGN_OR_RETURN(ExprPtr key, ParseExpression());
      RF_RETURN_IF_ERROR(ExpectOperator(":"));
      RF_ASSIGN_OR_RETURN(ExprPtr value, ParseExpression());
      node->args.push_back(std::move(key));
      node->args.push_back(std::move(value));
      if (!PeekIs(Token::kOperator, "}"))
        RF_RETURN_IF_ERROR(ExpectOperator(","));
    }
    return Finish(std::move(node));
  }

  // --- Statements.

  // Statements up to a block that begins with one of `ends`, whose name goes to
  // `end`, taken; without `ends`, up to the end of the template.
  absl::StatusOr<Body> ParseBody(const std::vector<std::string>& ends,
                                 std::string* end) {
    const Nesting nesting(this);
    if (nesting.TooDeep()) return DeepError();
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
        RF_ASSIGN_OR_RETURN(stmt.expr, ParseExpression());
        if (Peek().kind != Token::kPrintEnd) return Unexpected("\"}}\"");
        Next();
      } else {
        RF_ASSIGN_OR_RETURN(const std::string name, ExpectName());
        if (std::find(ends.begin(), ends.end(), name) != ends.end()) {
          *end = name;
          return body;
        }
        if (name == "if") {
          RF_RETURN_IF_ERROR(ParseIf(&stmt));
        } else if (name == "for") {
          RF_RETURN_IF_ERROR(ParseFor(&stmt));
        } else if (name == "set") {
          RF_RETURN_IF_ERROR(ParseSet(&stmt));
        } else {
          return Error(token.line, absl::StrCat("block \"{% ", name,
                                                " %}\" is not supported here"));
        }
      }
      body.push_back(std::move(stmt));
    }
  }

  absl::Status ParseIf(Stmt* stmt) {
    stmt->kind = Stmt::kIf;
    std::string end = "elif";
    while (end != "endif") {
      Stmt::Branch branch;
      const bool last = end == "else";
      if (!last) {
        RF_ASSIGN_OR_RETURN(branch.condition, ParseExpression());
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
    do {
      RF_ASSIGN_OR_RETURN(std::string name, ExpectName());
      stmt->names.push_back(std::move(name));
    } while (TakeOperator(","));
    if (!TakeKeyword("in")) return Unexpected("\"in\"");
    RF_ASSIGN_OR_RETURN(stmt->expr, ParseOr());  // "if" begins the filter here.
    if (TakeKeyword("if")) {
      RF_ASSIGN_OR_RETURN(stmt->filter, ParseExpression());
    }
    RF_RETURN_IF_ERROR(ExpectBlockEnd());
    std::string end;
    stmt->branches.resize(2);
    RF_ASSIGN_OR_RETURN(stmt->branches[0].body,
                        ParseBody({"else", "endfor"}, &end));
    if (end == "else") {
      RF_RETURN_IF_ERROR(ExpectBlockEnd());
      RF_ASSIGN_OR_RETURN(stmt->branches[1].body, ParseBody({"endfor"}, &end));
    }
    return ExpectBlockEnd();
  }

  absl::Status ParseSet(Stmt* stmt) {
    stmt->kind = Stmt::kSet;
    do {
      RF_ASSIGN_OR_RETURN(std::string name, ExpectName());
      stmt->names.push_back(std::move(name));
    } while (stmt->names.size() < 2 && TakeOperator("."));
    RF_RETURN_IF_ERROR(ExpectOperator("="));
    RF_ASSIGN_OR_RETURN(stmt->expr, ParseExpression());
    return ExpectBlockEnd();
  }

  const std::vector<Token> tokens_;
  size_t at_ = 0;
  int nesting_ = 0;
};

}  // namespace

absl::StatusOr<std::vector<Stmt>> ParseTemplate(absl::string_view source) {
  RF_ASSIGN_OR_RETURN(std::vector<Token> tokens, Tokenize(source));
  return Parser(std::move(tokens)).Run();
}

}  // namespace ringfleet::coordinator::jinja
