// SPDX-License-Identifier: Apache-2.0
// Parses a template with the operator precedence of Jinja. Operators by
// precedence, lowest first:
//
//   conditional: x if c else y
//   or
//   and
//   not
//   comparison
//   + -
//   ~
//   * / // %
//   filters and tests
//   unary minus
//   attributes, subscripts and calls
#ifndef RINGFLEET_COORDINATOR_CHAT_JINJA_PARSER_H_
#define RINGFLEET_COORDINATOR_CHAT_JINJA_PARSER_H_

#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "coordinator/chat/jinja_ast.h"

namespace ringfleet::coordinator::jinja {

// Returns the statements of a template.
// Errors: INVALID_ARGUMENT names the malformed or unsupported construct and its
// line.
absl::StatusOr<std::vector<Stmt>> ParseTemplate(absl::string_view source);

}  // namespace ringfleet::coordinator::jinja

#endif  // RINGFLEET_COORDINATOR_CHAT_JINJA_PARSER_H_
