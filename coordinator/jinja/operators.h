// SPDX-License-Identifier: Apache-2.0
// Operators, subscripts and attributes of template values, with Python's
// results.
// Errors: INVALID_ARGUMENT: wrong types, an undefined operand, an integer
// beyond kMaxInteger, or a division by zero.
#ifndef RINGFLEET_COORDINATOR_JINJA_OPERATORS_H_
#define RINGFLEET_COORDINATOR_JINJA_OPERATORS_H_

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "coordinator/jinja/context.h"
#include "coordinator/jinja/value.h"

namespace ringfleet::coordinator::jinja {

// Returns a `op` b. `op` is + - * / // % ** or ~. Besides numbers, + joins
// strings, lists or tuples, * repeats them, and % formats a string. ~ joins the
// texts of any two values. A number has the origin kMessage if an operand has.
absl::StatusOr<Value> Arithmetic(absl::string_view op, const Value& a,
                                 const Value& b, Context* context);
absl::StatusOr<Value> Negative(const Value& value);
absl::StatusOr<Value> Positive(const Value& value);

// Returns object[key]. A missing key is looked for among the attributes and
// methods of the object, and is undefined otherwise.
absl::StatusOr<Value> Subscript(const Value& object, const Value& key,
                                Context* context);
// Returns object.name: an attribute or a method, or object[name] otherwise.
absl::StatusOr<Value> Attribute(const Value& object, absl::string_view name,
                                Context* context);

// Returns object[start:stop:step] of a string, list, tuple or range. A bound
// that is none is open. Indices of strings count characters.
absl::StatusOr<Value> Slice(const Value& object, const Value& start,
                            const Value& stop, const Value& step,
                            Context* context);

// Returns range(start, stop, step).
// Errors: INVALID_ARGUMENT: more than kMaxRange items, or step 0.
absl::StatusOr<Value> MakeRange(Integer start, Integer stop, Integer step,
                                Context* context);

// Returns the error of using a value that is undefined, or `problem`.
absl::Status UndefinedOr(const Value& value, absl::string_view problem);

}  // namespace ringfleet::coordinator::jinja

#endif  // RINGFLEET_COORDINATOR_JINJA_OPERATORS_H_
