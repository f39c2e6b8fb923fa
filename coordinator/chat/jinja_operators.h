// SPDX-License-Identifier: Apache-2.0
// Operators and subscripts of template values, with Python's results.
// Errors: INVALID_ARGUMENT: wrong types, an integer beyond 64 bits or a
// division by zero.
#ifndef RINGFLEET_COORDINATOR_CHAT_JINJA_OPERATORS_H_
#define RINGFLEET_COORDINATOR_CHAT_JINJA_OPERATORS_H_

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "coordinator/chat/jinja_value.h"

namespace ringfleet::coordinator::jinja {

// Returns a `op` b. `op` is + - * / // % or ~. Besides numbers, + joins strings
// or lists and * repeats a string. ~ joins the texts of any two values.
absl::StatusOr<Value> Arithmetic(absl::string_view op, const Value& a,
                                 const Value& b, Budget* budget);
// Returns -value.
absl::StatusOr<Value> Negative(const Value& value);

// Returns object[key], which is also object.key for a string key. Returns the
// undefined value for a missing key. An undefined `object` is an error.
absl::StatusOr<Value> Subscript(const Value& object, const Value& key,
                                Budget* budget);

// Returns object[start:stop:step] of a string or list. A bound that is none or
// undefined is open. Indices of strings count characters.
absl::StatusOr<Value> Slice(const Value& object, const Value& start,
                            const Value& stop, const Value& step,
                            Budget* budget);

}  // namespace ringfleet::coordinator::jinja

#endif  // RINGFLEET_COORDINATOR_CHAT_JINJA_OPERATORS_H_
