// SPDX-License-Identifier: Apache-2.0
// The functions that templates find as variables: range, namespace, dict,
// cycler, joiner, raise_exception and strftime_now.
#ifndef RINGFLEET_COORDINATOR_JINJA_FUNCTIONS_H_
#define RINGFLEET_COORDINATOR_JINJA_FUNCTIONS_H_

#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "coordinator/jinja/context.h"
#include "coordinator/jinja/value.h"

namespace ringfleet::coordinator::jinja {

// Returns the functions by their names.
absl::flat_hash_map<std::string, Value> Functions(Context* context);

// Calls a function.
// Errors: INVALID_ARGUMENT: a wrong argument, or the message of
// raise_exception.
absl::StatusOr<Value> CallFunction(Function* function,
                                   const Arguments& arguments,
                                   Context* context);

}  // namespace ringfleet::coordinator::jinja

#endif  // RINGFLEET_COORDINATOR_JINJA_FUNCTIONS_H_
