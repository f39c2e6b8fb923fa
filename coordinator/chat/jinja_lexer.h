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
    kEnd,  // Of the template; always the last token.
  };
  Kind kind;
  std::string text;
  int line;  // From 1.
};

// Comments are left out. White space around tags goes as trim_blocks and
// lstrip_blocks say: the newline after a {% %} or {# #}, and the blanks before
// one that is first on its line; "-" inside a tag takes all white space on its
// side, "+" takes none. One newline at the end of the template is dropped.
// INVALID_ARGUMENT with the line of what cannot be read.
absl::StatusOr<std::vector<Token>> Tokenize(absl::string_view source);

}  // namespace ringfleet::coordinator::jinja

#endif  // RINGFLEET_COORDINATOR_CHAT_JINJA_LEXER_H_
