// SPDX-License-Identifier: Apache-2.0
// Attributes and methods of values.
#ifndef RINGFLEET_COORDINATOR_JINJA_METHODS_H_
#define RINGFLEET_COORDINATOR_JINJA_METHODS_H_

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "coordinator/jinja/context.h"
#include "coordinator/jinja/value.h"

namespace ringfleet::coordinator::jinja {

// Returns the attribute or the bound method `name` of `object`. Returns nothing
// if the object has none: object[name] may exist then.
absl::StatusOr<absl::optional<Value>> OwnAttribute(const Value& object,
                                                   absl::string_view name,
                                                   Context* context);

// Calls a method.
// Methods of lists change the list, as in Jinja's SandboxedEnvironment. Methods
// that change a dict are refused, as in its ImmutableSandboxedEnvironment.
// Errors: INVALID_ARGUMENT: a wrong argument, or a refused method.
absl::StatusOr<Value> CallMethod(const Method& method,
                                 const Arguments& arguments, Context* context);

}  // namespace ringfleet::coordinator::jinja

#endif  // RINGFLEET_COORDINATOR_JINJA_METHODS_H_
