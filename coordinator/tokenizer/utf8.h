// SPDX-License-Identifier: Apache-2.0
// UTF-8 for the tokenizer and the chat template: strict checking, lossy
// decoding and Unicode white space.
#ifndef RINGFLEET_COORDINATOR_TOKENIZER_UTF8_H_
#define RINGFLEET_COORDINATOR_TOKENIZER_UTF8_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace ringfleet::coordinator {

// One unit of a string: a character, or ill-formed bytes.
struct Utf8Unit {
  enum Kind {
    kCharacter,   // A well-formed character.
    kInvalid,     // A maximal subpart of an ill-formed sequence.
    kIncomplete,  // The rest of the string begins a character.
  };
  Kind kind;
  uint32_t code_point;  // Only for kCharacter.
  size_t size;          // Bytes, at least 1.
};

// Reads the first unit of `bytes`, which must not be empty. Well-formed means
// table 3-7 of the Unicode Standard: no surrogates, no overlong forms.
Utf8Unit NextUtf8(absl::string_view bytes);

// Checks that `text` is well-formed. Errors: INVALID_ARGUMENT gives the byte
// offset of the first ill-formed sequence.
absl::Status CheckUtf8(absl::string_view text);

void AppendUtf8(uint32_t code_point, std::string* out);

// Appends `bytes` to `out` up to an incomplete last character. Returns the
// number of bytes used. Each maximal ill-formed subpart becomes one U+FFFD (the
// Unicode Standard, section 3.9), as in Rust's String::from_utf8_lossy.
size_t AppendWholeCharacters(absl::string_view bytes, std::string* out);

// Appends all of `bytes`. An incomplete last character becomes U+FFFD too.
void AppendLossy(absl::string_view bytes, std::string* out);

// Returns true if the character has the Unicode property White_Space.
bool IsWhitespace(uint32_t code_point);

// Return the number of bytes of white space at the beginning or at the end of
// `text`.
size_t LeadingWhitespace(absl::string_view text);
size_t TrailingWhitespace(absl::string_view text);

// Splits `text` into characters. Each byte of an ill-formed part counts as a
// character.
std::vector<absl::string_view> Characters(absl::string_view text);

}  // namespace ringfleet::coordinator

#endif  // RINGFLEET_COORDINATOR_TOKENIZER_UTF8_H_
