// SPDX-License-Identifier: Apache-2.0
// Parses the statements of a template.
#ifndef RINGFLEET_COORDINATOR_JINJA_PARSER_H_
#define RINGFLEET_COORDINATOR_JINJA_PARSER_H_

#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "coordinator/jinja/ast.h"

namespace ringfleet::coordinator::jinja {

// Returns the statements of a template: if, for with break and continue, set,
// with, macro, call, filter, print and generation.
// Errors: INVALID_ARGUMENT names the malformed or unsupported construct and its
// line. Statements that load other templates are not supported.
absl::StatusOr<std::vector<Stmt>> ParseTemplate(absl::string_view source);

}  // namespace ringfleet::coordinator::jinja

#endif  // RINGFLEET_COORDINATOR_JINJA_PARSER_H_
