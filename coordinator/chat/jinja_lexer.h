// SPDX-License-Identifier: Apache-2.0
// Cuts a template into text and the tokens of its tags.
#ifndef RINGFLEET_COORDINATOR_CHAT_JINJA_LEXER_H_
#define RINGFLEET_COORDINATOR_CHAT_JINJA_LEXER_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace ringfleet::coordinator::jinja {

struct Token {
  enum Kind {
    kText,      // Outside tags, trimmed.
    kPrint,     // {{
    kPrintEnd,  // }}
    kBlock,     // {%
    kBlockEnd,  // %}
    kName,
    kString,  // `text` is the value.
    kInteger,
    kFloat,
    kOperator,
    kEnd,  // The template's end; always the last token.
  };
  Kind kind;
  std::string text;
  int line;  // Counts from 1.
};

// Leaves out comments. Drops white space around tags as trim_blocks and
// lstrip_blocks do: the newline after a {% %} or {# #}, and the blanks before a
// tag that is first on its line. "-" inside a tag drops all white space on its
// side, "+" none. One newline at the end of the template is dropped.
// INVALID_ARGUMENT gives the line of malformed text.
absl::StatusOr<std::vector<Token>> Tokenize(absl::string_view source);

}  // namespace ringfleet::coordinator::jinja

#endif  // RINGFLEET_COORDINATOR_CHAT_JINJA_LEXER_H_
