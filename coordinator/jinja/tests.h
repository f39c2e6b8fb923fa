// SPDX-License-Identifier: Apache-2.0
// The tests of Jinja: value is name.
#ifndef RINGFLEET_COORDINATOR_JINJA_TESTS_H_
#define RINGFLEET_COORDINATOR_JINJA_TESTS_H_

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "coordinator/jinja/context.h"
#include "coordinator/jinja/value.h"

namespace ringfleet::coordinator::jinja {

bool IsTest(absl::string_view name);

// Returns the result of `value is name(arguments)`. All tests of Jinja exist.
// Errors: INVALID_ARGUMENT: an unknown name, or a wrong argument.
absl::StatusOr<bool> ApplyTest(absl::string_view name, const Value& value,
                               const Arguments& arguments, Context* context);

}  // namespace ringfleet::coordinator::jinja

#endif  // RINGFLEET_COORDINATOR_JINJA_TESTS_H_
