// SPDX-License-Identifier: Apache-2.0
#include "coordinator/tokenizer/split_expression.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "cluster/process/status_macros.h"
#include "coordinator/tokenizer/utf8.h"

namespace ringfleet::coordinator {
namespace {

// Insides of character classes.
//
// The property White_Space: PCRE2's \s also holds U+180E, which is no white
// space since Unicode 6.3.
constexpr absl::string_view kWhitespace =
    R"(\t-\r \x{85}\x{A0}\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}\x{202F}\x{205F}\x{3000})";
constexpr absl::string_view kHexDigit = "0-9A-Fa-f";
// PCRE2's \w has no marks.
constexpr absl::string_view kWord = R"(\p{Alphabetic}\p{M}\p{Nd}\p{Pc})";

// Classes inside of classes, whose members are others in PCRE2.
constexpr struct {
  absl::string_view name;
  absl::string_view inside;
} kPosixClasses[] = {
    {"[:alnum:]", R"(\p{Alphabetic}\p{Nd})"},
    {"[:alpha:]", R"(\p{Alphabetic})"},
    {"[:digit:]", R"(\p{Nd})"},
    {"[:lower:]", R"(\p{Lowercase})"},
    {"[:punct:]", R"(\p{P}\p{S})"},
    {"[:space:]", kWhitespace},
    {"[:upper:]", R"(\p{Uppercase})"},
    {"[:word:]", kWord},
};

// Escapes that mean something else in each library, or for which PCRE2 has no
// equal.
constexpr absl::string_view kForeignEscapes = "BCEGKNOQVXYbgky";

// Classes inside of a class, one inside of the other.
constexpr int kMaxClassDepth = 16;

// Texts of several characters that Oniguruma takes for one, or one for them, in
// another case, as "ss" for U+00DF.
constexpr absl::string_view kFoldedPairs[] = {"ff", "fi", "fl", "ss", "st"};
constexpr struct {
  uint32_t first, last;
} kFoldedToSeveral[] = {
    {0xDF, 0xDF},     {0x149, 0x149},   {0x1F0, 0x1F0},   {0x390, 0x390},
    {0x3B0, 0x3B0},   {0x587, 0x587},   {0x1E96, 0x1E9A}, {0x1E9E, 0x1E9E},
    {0x1F50, 0x1FFC}, {0xFB00, 0xFB17},
};

// Returns whether `rest` begins with such a text.
bool BeginsFolded(absl::string_view rest) {
  for (const absl::string_view pair : kFoldedPairs) {
    if (absl::StartsWithIgnoreCase(rest, pair)) return true;
  }
  const Utf8Unit unit = NextUtf8(rest);
  return unit.kind == Utf8Unit::kCharacter &&
         std::any_of(std::begin(kFoldedToSeveral), std::end(kFoldedToSeveral),
                     [&](const auto& range) {
                       return unit.code_point >= range.first &&
                              unit.code_point <= range.last;
                     });
}

bool Compiles(const std::string& expression) {
  int error = 0;
  PCRE2_SIZE offset = 0;
  pcre2_code* code =
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(expression.data()),
                    expression.size(), PCRE2_UTF, &error, &offset, nullptr);
  pcre2_code_free(code);
  return code != nullptr;
}

class Translator {
 public:
  explicit Translator(absl::string_view expression)
      : size_(expression.size()), rest_(expression) {}

  absl::StatusOr<std::string> Translate() {
    while (!rest_.empty()) {
      Mark();
      RF_RETURN_IF_ERROR(Next());
    }
    return std::move(out_);
  }

 private:
  // Makes the next construct the one that an error names.
  void Mark() { offset_ = size_ - rest_.size(); }

  absl::Status Unsupported(absl::string_view construct) const {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", construct, "\" at offset ", offset_,
                     " is not supported: PCRE2 reads it in another way"));
  }

  // Moves `size` bytes to the output.
  void Copy(size_t size) {
    absl::StrAppend(&out_, rest_.substr(0, size));
    rest_.remove_prefix(std::min(size, rest_.size()));
  }

  // Puts `spelled` for the next `size` bytes.
  void Add(absl::string_view spelled, size_t size) {
    absl::StrAppend(&out_, spelled);
    rest_.remove_prefix(size);
  }

  // Puts a class's inside, as a class of its own outside of one.
  void AddClass(absl::string_view inside, bool negated = false) {
    absl::StrAppend(&out_,
                    in_class_ ? ""
                    : negated ? "[^"
                              : "[",
                    inside, in_class_ ? "" : "]");
  }

  absl::Status Next() {
    if (caseless_ && BeginsFolded(rest_)) {
      return Unsupported(rest_.substr(0, 2));
    }
    switch (rest_[0]) {
      case '\\':
        return Escape();
      case '[': {
        RF_ASSIGN_OR_RETURN(const std::string set, CharacterClass(0));
        absl::StrAppend(&out_, set);
        return absl::OkStatus();
      }
      case '(':
        return Group();
      case '{':
        return Interval();
      default:
        Copy(1);
        return absl::OkStatus();
    }
  }

  // Reads a class at `rest_`, and returns an expression for one character of
  // it. PCRE2 has neither classes inside of classes nor intersections: an
  // alternation is their union, and lookaheads intersect.
  absl::StatusOr<std::string> CharacterClass(int depth) {
    if (depth > kMaxClassDepth) return Unsupported("[ in a class");
    rest_.remove_prefix(1);
    const bool negated = absl::ConsumePrefix(&rest_, "^");
    // All operands but the last, as lookaheads.
    std::string lookaheads;
    RF_ASSIGN_OR_RETURN(Operand operand, ClassOperand(/*first=*/true, depth));
    while (absl::ConsumePrefix(&rest_, "&&")) {
      if (operand.IsEmpty()) return Unsupported("&&");
      absl::StrAppend(&lookaheads, "(?=", operand.Spelled(), ")");
      RF_ASSIGN_OR_RETURN(operand, ClassOperand(/*first=*/false, depth));
    }
    if (!absl::ConsumePrefix(&rest_, "]")) {
      return absl::InvalidArgumentError("a class without its \"]\"");
    }
    if (operand.IsEmpty()) return Unsupported("&&");
    if (lookaheads.empty() && operand.classes.empty()) {
      return absl::StrCat(negated ? "[^" : "[", operand.members, "]");
    }
    const std::string set = absl::StrCat(lookaheads, operand.Spelled());
    return negated ? absl::StrCat("(?:(?!", set, ")(?s:.))")
                   : absl::StrCat("(?:", set, ")");
  }

  // A part between two && of a class.
  struct Operand {
    std::string members;               // As between the brackets of a class.
    std::vector<std::string> classes;  // Expressions of the classes in it.

    bool IsEmpty() const { return members.empty() && classes.empty(); }

    std::string Spelled() const {
      std::vector<std::string> parts = classes;
      if (!members.empty()) parts.push_back(absl::StrCat("[", members, "]"));
      return parts.size() == 1
                 ? parts[0]
                 : absl::StrCat("(?:", absl::StrJoin(parts, "|"), ")");
    }
  };

  // Reads up to the && or ] behind an operand. A ']' that comes first is a
  // member of the class.
  absl::StatusOr<Operand> ClassOperand(bool first, int depth) {
    Operand operand;
    std::string around;
    std::swap(around, out_);  // Members go to out_, as all that is copied.
    in_class_ = true;
    if (first && absl::StartsWith(rest_, "]")) Add("\\]", 1);
    while (!rest_.empty() && rest_[0] != ']' &&
           !absl::StartsWith(rest_, "&&")) {
      Mark();
      const absl::string_view member = rest_.substr(0, NextUtf8(rest_).size);
      if (caseless_ && BeginsFolded(member)) return Unsupported(member);
      if (absl::ConsumePrefix(&rest_, "\\W")) {
        operand.classes.push_back(absl::StrCat("[^", kWord, "]"));
      } else if (absl::ConsumePrefix(&rest_, "\\H")) {
        operand.classes.push_back(absl::StrCat("[^", kHexDigit, "]"));
      } else if (rest_[0] == '\\') {
        RF_RETURN_IF_ERROR(Escape());
      } else if (absl::StartsWith(rest_, "[:")) {
        RF_RETURN_IF_ERROR(PosixClass());
      } else if (rest_[0] == '[') {
        RF_ASSIGN_OR_RETURN(operand.classes.emplace_back(),
                            CharacterClass(depth + 1));
        in_class_ = true;
      } else if (rest_[0] == '^' && out_.empty()) {
        Add("\\^", 1);  // Behind && it negates nothing.
      } else {
        Copy(1);
      }
    }
    in_class_ = false;
    operand.members = std::move(out_);
    out_ = std::move(around);
    return operand;
  }

  absl::Status PosixClass() {
    for (const auto& [name, inside] : kPosixClasses) {
      if (!absl::ConsumePrefix(&rest_, name)) continue;
      absl::StrAppend(&out_, inside);
      return absl::OkStatus();
    }
    const size_t end = rest_.find(":]");
    return Unsupported(end == rest_.npos ? "[ in a class"
                                         : rest_.substr(0, end + 2));
  }

  absl::Status Group() {
    if (absl::StartsWith(rest_, "(*")) return Unsupported("(*");
    if (!absl::StartsWith(rest_, "(?")) {
      Copy(1);
      return absl::OkStatus();
    }
    size_t end = 2;
    while (end < rest_.size() && (rest_[end] == 'i' || rest_[end] == '-')) {
      ++end;
    }
    const bool known = end < rest_.size() &&
                       (rest_[end] == ':' || (end > 2 && rest_[end] == ')'));
    caseless_ |= rest_.substr(2, 1) == "i";
    if (known || (end == 2 && end < rest_.size() &&
                  absl::StrContains("=!><#", rest_.substr(end, 1)))) {
      Copy(end + 1);
      return absl::OkStatus();
    }
    return Unsupported(rest_.substr(0, end + 1));
  }

  // Behind {n,m}, Oniguruma's '+' repeats the whole, and behind {n} its '?'
  // makes the whole optional.
  absl::Status Interval() {
    size_t end = 1;
    while (end < rest_.size() &&
           (absl::ascii_isdigit(rest_[end]) || rest_[end] == ',')) {
      ++end;
    }
    const bool is_interval = end > 1 && end < rest_.size() && rest_[end] == '}';
    if (!is_interval) {
      Copy(1);
      return absl::OkStatus();
    }
    const absl::string_view whole = rest_.substr(0, end + 2);
    if (whole[1] == ',' || whole.back() == '+' ||
        (whole.back() == '?' && !absl::StrContains(whole, ","))) {
      return Unsupported(whole);
    }
    Copy(end + 1);
    return absl::OkStatus();
  }

  absl::Status Escape() {
    if (rest_.size() < 2) {
      Copy(1);
      return absl::OkStatus();
    }
    const char escaped = rest_[1];
    const absl::string_view escape = rest_.substr(0, 2);
    const bool negated = absl::StrContains("SWH", rest_.substr(1, 1));
    if (in_class_ && escaped == 'S') {
      Add("\\S\\x{180E}", 2);
      return absl::OkStatus();
    }
    switch (absl::ascii_tolower(escaped)) {
      case 's':
        AddClass(kWhitespace, negated);
        break;
      case 'w':
        AddClass(kWord, negated);
        break;
      case 'h':
        AddClass(kHexDigit, negated);
        break;
      case 'p':
        return Property();
      case 'u':
        return CodePoint();
      default:
        if (absl::StrContains(kForeignEscapes, rest_.substr(1, 1)) &&
            !(in_class_ && escaped == 'b')) {
          return Unsupported(escape);
        }
        if (escaped != 'v') {
          Copy(2);
          return absl::OkStatus();
        }
        absl::StrAppend(&out_, "\\x{0B}");
    }
    rest_.remove_prefix(2);
    return absl::OkStatus();
  }

  // A script's name means the property Script in Oniguruma, and in PCRE2
  // Script_Extensions, which has more characters.
  absl::Status Property() {
    const size_t end = rest_.find('}');
    if (rest_.size() < 3 || rest_[2] != '{' || end == rest_.npos) {
      return Unsupported(rest_.substr(0, 2));  // A "p" in Oniguruma.
    }
    absl::string_view name = rest_.substr(3, end - 3);
    const bool negated = absl::ConsumePrefix(&name, "^");
    const bool is_script =
        name.size() > 2 && Compiles(absl::StrCat("\\p{sc:", name, "}"));
    absl::StrAppend(&out_, rest_.substr(0, 3), negated ? "^" : "",
                    is_script ? "sc:" : "", name, "}");
    rest_.remove_prefix(end + 1);
    return absl::OkStatus();
  }

  absl::Status CodePoint() {
    const absl::string_view digits = rest_.substr(2, 4);
    bool valid = rest_[1] == 'u' && digits.size() == 4;
    for (const char digit : digits) valid &= absl::ascii_isxdigit(digit);
    if (!valid) return Unsupported(rest_.substr(0, 2));
    absl::StrAppend(&out_, "\\x{", digits, "}");
    rest_.remove_prefix(6);
    return absl::OkStatus();
  }

  const size_t size_;
  absl::string_view rest_;
  size_t offset_ = 0;
  bool in_class_ = false;
  bool caseless_ = false;  // (?i was read. A group's end is not looked for.
  std::string out_;
};

}  // namespace

absl::StatusOr<std::string> TranslateExpression(absl::string_view expression) {
  return Translator(expression).Translate();
}

}  // namespace ringfleet::coordinator
