// SPDX-License-Identifier: Apache-2.0
// Runs a parsed template.
#ifndef RINGFLEET_COORDINATOR_JINJA_EVALUATOR_H_
#define RINGFLEET_COORDINATOR_JINJA_EVALUATOR_H_

#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "coordinator/jinja/ast.h"
#include "coordinator/jinja/context.h"
#include "coordinator/jinja/value.h"

namespace ringfleet::coordinator::jinja {

// Returns the text that `body` prints with `variables`. `context` made the
// values of the variables.
// Errors: INVALID_ARGUMENT: a statement fails or exceeds a limit of
// context.h. The message names the line.
absl::StatusOr<Text> Render(const std::vector<Stmt>& body,
                            absl::flat_hash_map<std::string, Value> variables,
                            Context* context);

}  // namespace ringfleet::coordinator::jinja

#endif  // RINGFLEET_COORDINATOR_JINJA_EVALUATOR_H_
