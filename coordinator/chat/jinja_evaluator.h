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

// Returns the text that `body` prints with `variables` set, within the limits
// of jinja_value.h. INVALID_ARGUMENT gives the line that failed.
absl::StatusOr<std::string> Render(
    const std::vector<Stmt>& body,
    absl::flat_hash_map<std::string, Value> variables);

}  // namespace ringfleet::coordinator::jinja

#endif  // RINGFLEET_COORDINATOR_CHAT_JINJA_EVALUATOR_H_
