// SPDX-License-Identifier: Apache-2.0
// Cuts a template into text and the tokens of its tags.
#ifndef RINGFLEET_COORDINATOR_JINJA_LEXER_H_
#define RINGFLEET_COORDINATOR_JINJA_LEXER_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace ringfleet::coordinator::jinja {

struct Token {
  enum Kind {
    kText,      // Text outside tags, trimmed.
    kPrint,     // {{
    kPrintEnd,  // }}
    kBlock,     // {%
    kBlockEnd,  // %}
    kName,
    kString,  // `text` is the string without quotes and escapes.
    kInteger,
    kFloat,
    kOperator,
    kEnd,  // The end of the template, always the last token.
  };
  Kind kind;
  std::string text;
  int line;  // Counts from 1.
};

// Returns the tokens of a template. Leaves out comments. Drops the newline
// after a {% %} or {# #} (trim_blocks), and the blanks before a {% %} or {# #}
// that is first on its line (lstrip_blocks). A tag that begins or ends with "-"
// drops all white space on that side. A tag that begins or ends with "+" keeps
// the white space on that side. Drops one newline at the end of the template.
// Errors: INVALID_ARGUMENT names the line of malformed text.
absl::StatusOr<std::vector<Token>> Tokenize(absl::string_view source);

}  // namespace ringfleet::coordinator::jinja

#endif  // RINGFLEET_COORDINATOR_JINJA_LEXER_H_
