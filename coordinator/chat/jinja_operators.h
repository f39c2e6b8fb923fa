// SPDX-License-Identifier: Apache-2.0
// Operators and subscripts of template values, as in Python. Each returns
// INVALID_ARGUMENT for types that it does not take, an integer beyond 64 bits
// or a division by zero.
#ifndef RINGFLEET_COORDINATOR_CHAT_JINJA_OPERATORS_H_
#define RINGFLEET_COORDINATOR_CHAT_JINJA_OPERATORS_H_

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "coordinator/chat/jinja_value.h"

namespace ringfleet::coordinator::jinja {

// a `op` b, where `op` is + - * / // % or ~. Besides numbers: + joins strings
// or lists, * repeats a string, ~ joins the texts of any two values.
absl::StatusOr<Value> Arithmetic(absl::string_view op, const Value& a,
                                 const Value& b, Budget* budget);
absl::StatusOr<Value> Negative(const Value& value);

// object[key], and object.key with a string key. A missing key gives the
// undefined value. An undefined `object` is an error.
absl::StatusOr<Value> Subscript(const Value& object, const Value& key,
                                Budget* budget);

// object[start:stop:step] of a string or list. None and undefined bounds are
// open. Strings are indexed by characters.
absl::StatusOr<Value> Slice(const Value& object, const Value& start,
                            const Value& stop, const Value& step,
                            Budget* budget);

}  // namespace ringfleet::coordinator::jinja

#endif  // RINGFLEET_COORDINATOR_CHAT_JINJA_OPERATORS_H_
