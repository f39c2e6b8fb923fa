// SPDX-License-Identifier: Apache-2.0
#include "coordinator/jinja/lexer.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/types/optional.h"
#include "cluster/process/status_macros.h"
#include "coordinator/jinja/characters.h"
#include "coordinator/jinja/context.h"
#include "coordinator/tokenizer/utf8.h"

namespace ringfleet::coordinator::jinja {
namespace {

bool IsNameStart(char c) { return absl::ascii_isalpha(c) || c == '_'; }
bool IsNamePart(char c) { return absl::ascii_isalnum(c) || c == '_'; }

class Lexer {
 public:
  explicit Lexer(absl::string_view source) : source_(source) {}

  absl::StatusOr<std::vector<Token>> Run() {
    while (at_ < source_.size()) {
      const size_t tag = FindTag();
      ReadText(tag);
      if (tag == source_.size()) break;
      switch (source_[tag + 1]) {
        case '#':
          RF_RETURN_IF_ERROR(SkipComment());
          break;
        case '{':
          RF_RETURN_IF_ERROR(ReadTag(Token::kPrint, "}}", Token::kPrintEnd));
          break;
        default:
          if (const auto raw = FindRawTag(at_, "raw", /*plus_ends=*/false)) {
            RF_RETURN_IF_ERROR(ReadRaw(*raw));
          } else {
            RF_RETURN_IF_ERROR(ReadTag(Token::kBlock, "%}", Token::kBlockEnd));
          }
      }
    }
    Add(Token::kEnd, "");
    return std::move(tokens_);
  }

 private:
  bool StartsWith(absl::string_view prefix) const {
    return absl::StartsWith(source_.substr(at_), prefix);
  }

  absl::Status Error(absl::string_view message) const {
    return absl::InvalidArgumentError(
        absl::StrCat("chat template line ", line_, ": ", message));
  }

  void Add(Token::Kind kind, absl::string_view text) {
    tokens_.push_back({kind, std::string(text.data(), text.size()), line_});
  }

  void Advance(size_t size) {
    const absl::string_view passed = source_.substr(at_, size);
    line_ += static_cast<int>(std::count(passed.begin(), passed.end(), '\n'));
    at_ += size;
  }

  // Position of the next "{{", "{%" or "{#", or the end.
  size_t FindTag() const {
    for (size_t i = source_.find('{', at_); i != absl::string_view::npos;
         i = source_.find('{', i + 1)) {
      if (i + 1 == source_.size()) break;
      const char kind = source_[i + 1];
      if (kind == '{' || kind == '%' || kind == '#') return i;
    }
    return source_.size();
  }

  // Adds the text up to the tag at `tag`, without what the tag takes of it.
  void ReadText(size_t tag) {
    absl::string_view text = source_.substr(at_, tag - at_);
    const char sign = tag + 2 < source_.size() ? source_[tag + 2] : '\0';
    if (tag < source_.size()) {
      if (sign == '-') {
        text.remove_suffix(TrailingSpace(text));
      } else if (sign != '+' && source_[tag + 1] != '{') {
        const size_t newline = text.rfind('\n');
        const size_t line =
            newline == absl::string_view::npos ? 0 : newline + 1;
        const absl::string_view rest = text.substr(line);
        if ((line > 0 || line_begins_) && LeadingSpace(rest) == rest.size()) {
          text = text.substr(0, line);
        }
      }
    }
    if (!text.empty()) Add(Token::kText, text);
    Advance(tag - at_);
  }

  // A tag {% name %} without its end, and the sign of the end.
  struct RawTag {
    size_t end;
    char sign;
  };
  // Returns the tag {% name %} at `at`, if it is there with any signs.
  absl::optional<RawTag> FindRawTag(size_t at, absl::string_view name,
                                    bool plus_ends) const {
    size_t end = at + 2;
    const auto skip_space = [&] { end += LeadingSpace(source_.substr(end)); };
    if (end < source_.size() && (source_[end] == '-' || source_[end] == '+')) {
      ++end;
    }
    skip_space();
    if (!absl::StartsWith(source_.substr(end), name)) return absl::nullopt;
    end += name.size();
    skip_space();
    char sign = '\0';
    if (end < source_.size() &&
        (source_[end] == '-' || (source_[end] == '+' && plus_ends))) {
      sign = source_[end];
    }
    const size_t signs = sign == '\0' ? 0 : 1;
    if (!absl::StartsWith(source_.substr(end + signs), "%}")) {
      return absl::nullopt;
    }
    return RawTag{end, sign};
  }

  // Passes {% raw %}, which is `begin`, the text up to {% endraw %}, and that.
  absl::Status ReadRaw(const RawTag& begin) {
    const int begin_line = line_;
    Advance(begin.end - at_);
    PassEnd(begin.sign, "%}", /*takes_newline=*/false);
    for (size_t tag = source_.find("{%", at_); tag != absl::string_view::npos;
         tag = source_.find("{%", tag + 1)) {
      const auto end = FindRawTag(tag, "endraw", /*plus_ends=*/true);
      if (!end.has_value()) continue;
      ReadText(tag);
      Advance(end->end - at_);
      PassEnd(end->sign, "%}", /*takes_newline=*/true);
      return absl::OkStatus();
    }
    return absl::InvalidArgumentError(absl::StrCat(
        "chat template line ", begin_line, ": {% raw %} without {% endraw %}"));
  }

  // Passes the end of a tag, with its sign, and the white space that it takes.
  void PassEnd(char sign, absl::string_view end, bool takes_newline) {
    Advance((sign == '\0' ? 0 : 1) + end.size());
    size_t taken = 0;
    if (sign == '-') {
      taken = LeadingSpace(source_.substr(at_));
    } else if (sign == '\0' && takes_newline && StartsWith("\n")) {
      taken = 1;
    }
    Advance(taken);
    line_begins_ = taken > 0 && source_[at_ - 1] == '\n';
  }

  // Passes the tag's end and returns true if the end is here.
  bool TryEnd(absl::string_view end) {
    for (const char sign : {'-', '+'}) {
      // "+}}" is no end: only blocks have that sign.
      if (sign == '+' && end == "}}") continue;
      if (source_[at_] == sign &&
          absl::StartsWith(source_.substr(at_ + 1), end)) {
        PassEnd(sign, end, /*takes_newline=*/true);
        return true;
      }
    }
    if (!StartsWith(end)) return false;
    PassEnd('\0', end, /*takes_newline=*/end != "}}");
    return true;
  }

  absl::Status SkipComment() {
    size_t begin = at_ + 2;
    if (begin < source_.size() &&
        (source_[begin] == '-' || source_[begin] == '+')) {
      ++begin;
    }
    const size_t end = source_.find("#}", begin);
    if (end == absl::string_view::npos) return Error("{# without #}");
    const char last = end > begin ? source_[end - 1] : '\0';
    const char sign = last == '-' || last == '+' ? last : '\0';
    Advance(end - at_ - (sign == '\0' ? 0 : 1));
    PassEnd(sign, "#}", /*takes_newline=*/true);
    return absl::OkStatus();
  }

  absl::Status ReadTag(Token::Kind begin, absl::string_view end,
                       Token::Kind end_kind) {
    Add(begin, source_.substr(at_, 2));
    const int begin_line = line_;
    Advance(2);
    if (StartsWith("-") || StartsWith("+")) Advance(1);
    std::string open;  // Brackets: inside them, "}}" is no end.
    while (true) {
      Advance(LeadingSpace(source_.substr(at_)));
      if (at_ == source_.size()) {
        return absl::InvalidArgumentError(absl::StrCat(
            "chat template line ", begin_line, ": tag without ", end));
      }
      if (open.empty() && TryEnd(end)) {
        Add(end_kind, end);
        return absl::OkStatus();
      }
      const char c = source_[at_];
      if (IsNameStart(c)) {
        size_t size = 1;
        while (at_ + size < source_.size() && IsNamePart(source_[at_ + size])) {
          ++size;
        }
        Add(Token::kName, source_.substr(at_, size));
        Advance(size);
      } else if (absl::ascii_isdigit(c)) {
        ReadNumber();
      } else if (c == '"' || c == '\'') {
        RF_RETURN_IF_ERROR(ReadString());
      } else {
        RF_RETURN_IF_ERROR(ReadOperator(&open));
      }
    }
  }

  void ReadNumber() {
    size_t size = 0;
    const auto peek = [&](size_t ahead) {
      const size_t i = at_ + size + ahead;
      return i < source_.size() ? source_[i] : '\0';
    };
    // Digits, with single underscores between them.
    const auto digits = [&](auto is_digit) {
      while (is_digit(peek(0)) || (peek(0) == '_' && is_digit(peek(1)))) ++size;
    };
    const auto decimal = [](char c) { return absl::ascii_isdigit(c); };
    const char mark = absl::ascii_tolower(peek(1));
    bool is_float = false;
    if (peek(0) == '0' && (mark == 'x' || mark == 'o' || mark == 'b') &&
        absl::ascii_isxdigit(peek(2))) {
      size = 2;
      digits([](char c) { return absl::ascii_isxdigit(c); });
    } else {
      digits(decimal);
      // Behind a dot, as in x.0.1, integers are meant.
      const bool after_dot = at_ > 0 && source_[at_ - 1] == '.';
      if (!after_dot && peek(0) == '.' && decimal(peek(1))) {
        is_float = true;
        ++size;
        digits(decimal);
      }
      if (!after_dot && (peek(0) == 'e' || peek(0) == 'E')) {
        const size_t sign = peek(1) == '+' || peek(1) == '-' ? 1 : 0;
        if (decimal(peek(1 + sign))) {
          is_float = true;
          size += 1 + sign;
          digits(decimal);
        }
      }
    }
    Add(is_float ? Token::kFloat : Token::kInteger, source_.substr(at_, size));
    Advance(size);
  }

  // A string with Python's escapes; unknown ones keep their backslash.
  absl::Status ReadString() {
    const char quote = source_[at_];
    std::string value;
    size_t i = at_ + 1;
    for (; i < source_.size() && source_[i] != quote; ++i) {
      if (source_[i] != '\\' || i + 1 == source_.size()) {
        value.push_back(source_[i]);
        continue;
      }
      const char c = source_[++i];
      static constexpr absl::string_view kFrom = "ntrbfav\\'\"";
      static constexpr absl::string_view kTo = "\n\t\r\b\f\a\v\\'\"";
      const size_t simple = kFrom.find(c);
      if (simple != absl::string_view::npos) {
        value.push_back(kTo[simple]);
      } else if (c == 'x' || c == 'u' || c == 'U') {
        RF_ASSIGN_OR_RETURN(const size_t count, ReadEscape(i, &value));
        i += count;
      } else if (c >= '0' && c <= '7') {
        uint32_t code_point = 0;
        size_t size = 0;
        for (; size < 3 && i + size < source_.size() &&
               source_[i + size] >= '0' && source_[i + size] <= '7';
             ++size) {
          code_point = code_point * 8 + (source_[i + size] - '0');
        }
        AppendUtf8(code_point, &value);
        i += size - 1;
      } else if (c == 'N') {
        return Error("escapes \\N are not supported");
      } else if (c != '\n') {  // An escaped newline continues the line.
        value.push_back('\\');
        value.push_back(c);
      }
    }
    if (i == source_.size()) return Error("string without its closing quote");
    Add(Token::kString, value);
    Advance(i + 1 - at_);
    return absl::OkStatus();
  }

  // Appends the character of an escape of hexadecimal digits, whose letter is
  // at `at`. Returns the number of digits.
  absl::StatusOr<size_t> ReadEscape(size_t at, std::string* value) const {
    const char letter = source_[at];
    const size_t count = letter == 'x' ? 2 : letter == 'u' ? 4 : 8;
    uint32_t code_point = 0;
    for (size_t digit = 1; digit <= count; ++digit) {
      const char hex = at + digit < source_.size() ? source_[at + digit] : ' ';
      if (!absl::ascii_isxdigit(hex)) {
        return Error(absl::StrCat("\\", std::string(1, letter), " needs ",
                                  count, " hexadecimal digits"));
      }
      code_point =
          code_point << 4 |
          (absl::ascii_isdigit(hex) ? hex - '0'
                                    : absl::ascii_tolower(hex) - 'a' + 10);
    }
    if (code_point > 0x10FFFF ||
        (code_point >= 0xD800 && code_point <= 0xDFFF)) {
      return Error("an escape that is no Unicode character");
    }
    AppendUtf8(code_point, value);
    return count;
  }

  absl::Status ReadOperator(std::string* open) {
    for (const absl::string_view two : {"==", "!=", "<=", ">=", "//", "**"}) {
      if (StartsWith(two)) {
        Add(Token::kOperator, two);
        Advance(2);
        return absl::OkStatus();
      }
    }
    const char c = source_[at_];
    static constexpr absl::string_view kOperators = "+-*/%~[](){}<>=.:|,;";
    if (kOperators.find(c) == absl::string_view::npos) {
      const Utf8Unit unit = NextUtf8(source_.substr(at_));
      return Error(absl::StrCat("unexpected character \"",
                                source_.substr(at_, unit.size), "\""));
    }
    if (c == '(' || c == '[' || c == '{') {
      open->push_back(c == '(' ? ')' : c == '[' ? ']' : '}');
    } else if (c == ')' || c == ']' || c == '}') {
      if (open->empty() || open->back() != c) {
        return Error(absl::StrCat("unexpected \"", std::string(1, c), "\""));
      }
      open->pop_back();
    }
    Add(Token::kOperator, source_.substr(at_, 1));
    Advance(1);
    return absl::OkStatus();
  }

  const absl::string_view source_;
  size_t at_ = 0;
  int line_ = 1;
  bool line_begins_ = true;  // The last tag took the newline behind it.
  std::vector<Token> tokens_;
};

}  // namespace

absl::StatusOr<std::vector<Token>> Tokenize(absl::string_view source) {
  if (source.size() > kMaxSourceBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("chat template of ", source.size(),
                     " bytes, want at most ", kMaxSourceBytes));
  }
  std::string normalized =
      absl::StrReplaceAll(source, {{"\r\n", "\n"}, {"\r", "\n"}});
  if (absl::EndsWith(normalized, "\n")) normalized.pop_back();
  return Lexer(normalized).Run();
}

}  // namespace ringfleet::coordinator::jinja
