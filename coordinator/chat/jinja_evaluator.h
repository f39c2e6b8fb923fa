// SPDX-License-Identifier: Apache-2.0
// Runs a parsed template.
#ifndef RINGFLEET_COORDINATOR_CHAT_JINJA_EVALUATOR_H_
#define RINGFLEET_COORDINATOR_CHAT_JINJA_EVALUATOR_H_

#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "coordinator/chat/jinja_ast.h"
#include "coordinator/chat/jinja_value.h"

namespace ringfleet::coordinator::jinja {

// Returns the text that `body` prints with `variables`.
// Errors: INVALID_ARGUMENT: a statement fails or exceeds a limit of
// jinja_value.h. The message names the line.
absl::StatusOr<std::string> Render(
    const std::vector<Stmt>& body,
    absl::flat_hash_map<std::string, Value> variables);

}  // namespace ringfleet::coordinator::jinja

#endif  // RINGFLEET_COORDINATOR_CHAT_JINJA_EVALUATOR_H_
