// SPDX-License-Identifier: Apache-2.0
// UTF-8 for the tokenizer and the chat template: strict checks, lossy decoding
// and Unicode white space.
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
    kIncomplete,  // The first bytes of a character that the string cuts off.
  };
  Kind kind;
  uint32_t code_point;  // Set for kCharacter only.
  size_t size;          // Number of bytes, at least 1.
};

// Returns the first unit of `bytes`, which must not be empty. Well-formed
// characters are those of table 3-7 of the Unicode Standard, which excludes
// surrogates and overlong forms.
Utf8Unit NextUtf8(absl::string_view bytes);

// Checks that `text` is well-formed.
// Errors: INVALID_ARGUMENT names the byte offset of the first ill-formed
// sequence.
absl::Status CheckUtf8(absl::string_view text);

// Appends the UTF-8 of one character.
void AppendUtf8(uint32_t code_point, std::string* out);

// Appends `bytes` to `out`, but not an incomplete last character. Returns the
// number of bytes read. Replaces each maximal ill-formed subpart by one U+FFFD
// (the Unicode Standard, section 3.9), like String::from_utf8_lossy in Rust.
size_t AppendWholeCharacters(absl::string_view bytes, std::string* out);

// Appends all of `bytes` to `out`, with U+FFFD also for an incomplete last
// character.
void AppendLossy(absl::string_view bytes, std::string* out);

// Returns whether the character has the Unicode property White_Space.
bool IsWhitespace(uint32_t code_point);

// Return the number of bytes of white space at the beginning or at the end of
// `text`.
size_t LeadingWhitespace(absl::string_view text);
size_t TrailingWhitespace(absl::string_view text);

// Splits `text` into characters. Each ill-formed byte is a character of its
// own.
std::vector<absl::string_view> Characters(absl::string_view text);

}  // namespace ringfleet::coordinator

#endif  // RINGFLEET_COORDINATOR_TOKENIZER_UTF8_H_
