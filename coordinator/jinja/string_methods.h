// SPDX-License-Identifier: Apache-2.0
// Methods of strings, as Python's str has them.
#ifndef RINGFLEET_COORDINATOR_JINJA_STRING_METHODS_H_
#define RINGFLEET_COORDINATOR_JINJA_STRING_METHODS_H_

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "coordinator/jinja/context.h"
#include "coordinator/jinja/value.h"

namespace ringfleet::coordinator::jinja {

bool IsStringMethod(absl::string_view name);

// Returns text.name(arguments). Each byte of the result keeps its origin.
// Requires IsStringMethod(name).
// Errors: INVALID_ARGUMENT: an argument is wrong, or a limit is exceeded.
absl::StatusOr<Value> CallStringMethod(const Value& text,
                                       absl::string_view name,
                                       const Arguments& arguments,
                                       Context* context);

}  // namespace ringfleet::coordinator::jinja

#endif  // RINGFLEET_COORDINATOR_JINJA_STRING_METHODS_H_
