// SPDX-License-Identifier: Apache-2.0
#include "coordinator/jinja/integer.h"

#include <limits>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "cluster/process/status_macros.h"
#include "coordinator/jinja/characters.h"
#include "coordinator/jinja/print.h"

namespace ringfleet::coordinator::jinja {
namespace {

bool Fits(Integer integer) {
  return integer <= kMaxInteger && integer >= -kMaxInteger;
}

// The digit's value, or 99.
int DigitOf(char c) {
  if (absl::ascii_isdigit(c)) return c - '0';
  if (absl::ascii_isalpha(c)) return absl::ascii_tolower(c) - 'a' + 10;
  return 99;
}

absl::StatusOr<Integer> Product(Integer a, Integer b) {
  const Integer size = a < 0 ? -a : a;
  const Integer other = b < 0 ? -b : b;
  if (size != 0 && other > kMaxInteger / size) {
    return absl::InvalidArgumentError(absl::StrCat(IntegerText(a), " * ",
                                                   IntegerText(b), " exceeds ",
                                                   IntegerText(kMaxInteger)));
  }
  return a * b;
}

// Rounds down, as Python does.
Integer FloorQuotient(Integer a, Integer b) {
  const Integer quotient = a / b;
  return a % b != 0 && (a < 0) != (b < 0) ? quotient - 1 : quotient;
}

}  // namespace

absl::StatusOr<Integer> ParseInteger(absl::string_view text, int base) {
  const absl::Status malformed =
      absl::NotFoundError(absl::StrCat("\"", text, "\" is no integer"));
  text.remove_prefix(LeadingSpace(text));
  text.remove_suffix(TrailingSpace(text));
  const bool negative = !text.empty() && text[0] == '-';
  if (negative || (!text.empty() && text[0] == '+')) text.remove_prefix(1);
  bool prefixed = false;
  if (text.size() > 2 && text[0] == '0') {
    const char mark = absl::ascii_tolower(text[1]);
    const int marked = mark == 'x' ? 16 : mark == 'o' ? 8 : mark == 'b' ? 2 : 0;
    if (marked != 0 && (base == 0 || base == marked)) {
      base = marked;
      prefixed = true;
      text.remove_prefix(2);
    }
  }
  const bool decimal_literal = base == 0;
  if (base == 0) base = 10;
  Integer integer = 0;
  bool after_digit = prefixed;  // An underscore may be here.
  for (const char c : text) {
    if (c == '_' && after_digit) {
      after_digit = false;
      continue;
    }
    const int digit = DigitOf(c);
    if (digit >= base) return malformed;
    integer = integer * base + digit;
    if (!Fits(integer)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "integer ", text, " exceeds ", IntegerText(kMaxInteger)));
    }
    after_digit = true;
  }
  if (text.empty() || !after_digit) return malformed;
  if (decimal_literal && integer != 0 && text[0] == '0') return malformed;
  return negative ? -integer : integer;
}

absl::StatusOr<Integer> IntegerArithmetic(absl::string_view op, Integer a,
                                          Integer b) {
  if ((op == "//" || op == "%") && b == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("operator ", op, " by zero"));
  }
  if (op == "//") return FloorQuotient(a, b);
  if (op == "%") return a - b * FloorQuotient(a, b);
  if (op == "*") return Product(a, b);
  if (op == "**") {
    Integer power = 1;
    // The base -1, 0 or 1 has no large power, and any other one few.
    if (b > 1 && a >= -1 && a <= 1) b = 2 - b % 2;
    for (; b > 0; --b) {
      RF_ASSIGN_OR_RETURN(power, Product(power, a));
    }
    return power;
  }
  const Integer sum = op == "+" ? a + b : a - b;
  if (Fits(sum)) return sum;
  return absl::InvalidArgumentError(absl::StrCat(IntegerText(a), " ", op, " ",
                                                 IntegerText(b), " exceeds ",
                                                 IntegerText(kMaxInteger)));
}

int64_t Clamped(Integer integer) {
  using Limits = std::numeric_limits<int64_t>;
  if (integer > Limits::max()) return Limits::max();
  if (integer < Limits::min()) return Limits::min();
  return static_cast<int64_t>(integer);
}

}  // namespace ringfleet::coordinator::jinja
