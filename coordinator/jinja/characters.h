// SPDX-License-Identifier: Apache-2.0
// Characters as Python's str knows them: white space, letters, case.
#ifndef RINGFLEET_COORDINATOR_JINJA_CHARACTERS_H_
#define RINGFLEET_COORDINATOR_JINJA_CHARACTERS_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace ringfleet::coordinator::jinja {

// str.isspace: the property White_Space and the separators U+001C to U+001F.
bool IsPythonSpace(uint32_t code_point);
// Returns the number of bytes of such white space at the beginning of `text`.
size_t LeadingSpace(absl::string_view text);
// Returns the number of bytes of such white space at the end of `text`.
size_t TrailingSpace(absl::string_view text);

// Returns the number of characters. Each ill-formed byte counts as one.
size_t CountCharacters(absl::string_view text);
// Returns the code point of `character`, or U+FFFD for an ill-formed one.
uint32_t CodePoint(absl::string_view character);

// Properties of characters by the C.UTF-8 locale, or ASCII's without it.
bool IsUpper(uint32_t code_point);
bool IsLower(uint32_t code_point);
bool IsAlpha(uint32_t code_point);
bool IsDecimal(uint32_t code_point);
// Returns whether repr() shows the character as it is.
bool IsPrintable(uint32_t code_point);

// Append the character in upper or lower case.
void AppendUpper(uint32_t code_point, std::string* out);
void AppendLower(uint32_t code_point, std::string* out);

}  // namespace ringfleet::coordinator::jinja

#endif  // RINGFLEET_COORDINATOR_JINJA_CHARACTERS_H_
