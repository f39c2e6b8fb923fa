// SPDX-License-Identifier: Apache-2.0
// Parses a template, with the operator precedence of Jinja: from the loosest,
// conditional, or, and, not, comparison, + -, ~, * / // %, unary minus, then
// filters and tests, then attributes, subscripts and calls.
#ifndef RINGFLEET_COORDINATOR_CHAT_JINJA_PARSER_H_
#define RINGFLEET_COORDINATOR_CHAT_JINJA_PARSER_H_

#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "coordinator/chat/jinja_ast.h"

namespace ringfleet::coordinator::jinja {

// INVALID_ARGUMENT names the malformed or unsupported construct and its line.
absl::StatusOr<std::vector<Stmt>> ParseTemplate(absl::string_view source);

}  // namespace ringfleet::coordinator::jinja

#endif  // RINGFLEET_COORDINATOR_CHAT_JINJA_PARSER_H_
