// SPDX-License-Identifier: Apache-2.0
#include "coordinator/tokenizer/split_expression.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "cluster/process/status_macros.h"

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
  explicit Translator(absl::string_view expression) : rest_(expression) {}

  absl::StatusOr<std::string> Translate() {
    const size_t size = rest_.size();
    while (!rest_.empty()) {
      offset_ = size - rest_.size();
      RF_RETURN_IF_ERROR(in_class_ ? NextInClass() : Next());
    }
    return std::move(out_);
  }

 private:
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

  // Puts a class's inside, as a class of its own outside of one.
  void AddClass(absl::string_view inside, bool negated = false) {
    absl::StrAppend(&out_,
                    in_class_ ? ""
                    : negated ? "[^"
                              : "[",
                    inside, in_class_ ? "" : "]");
  }

  absl::Status Next() {
    switch (rest_[0]) {
      case '\\':
        return Escape();
      case '[':
        in_class_ = true;
        Copy(1);
        if (absl::StartsWith(rest_, "^")) Copy(1);
        // A ']' that comes first is a member of the class.
        if (absl::StartsWith(rest_, "]")) Copy(1);
        return absl::OkStatus();
      case '(':
        return Group();
      case '{':
        return Interval();
      default:
        Copy(1);
        return absl::OkStatus();
    }
  }

  absl::Status NextInClass() {
    if (rest_[0] == '\\') return Escape();
    if (absl::StartsWith(rest_, "&&")) return Unsupported("&&");
    if (absl::StartsWith(rest_, "[:")) return PosixClass();
    if (rest_[0] == '[') return Unsupported("[ in a class");
    in_class_ = rest_[0] != ']';
    Copy(1);
    return absl::OkStatus();
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
    if (negated && in_class_ && escaped != 'S') return Unsupported(escape);
    if (negated && in_class_) {
      Copy(2);
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
      Copy(2);
      return absl::OkStatus();
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

  absl::string_view rest_;
  size_t offset_ = 0;
  bool in_class_ = false;
  std::string out_;
};

}  // namespace

absl::StatusOr<std::string> TranslateExpression(absl::string_view expression) {
  return Translator(expression).Translate();
}

}  // namespace ringfleet::coordinator
