// SPDX-License-Identifier: Apache-2.0
// Texts of values, as Python's str and repr give them.
#ifndef RINGFLEET_COORDINATOR_JINJA_PRINT_H_
#define RINGFLEET_COORDINATOR_JINJA_PRINT_H_

#include <string>

#include "absl/status/statusor.h"
#include "coordinator/jinja/context.h"
#include "coordinator/jinja/value.h"

namespace ringfleet::coordinator::jinja {

// Returns str(value), which {{ }} prints. Strings keep the origins of their
// bytes. Numbers and brackets have the origin of their value.
// Errors: INVALID_ARGUMENT: the value has no text of its own (a method, a
// function or an iterator), or it nests deeper than kMaxDepth.
absl::StatusOr<Text> ToText(const Value& value, Context* context);

// Returns the text with & < > " ' as HTML spells them.
Text EscapeHtml(const Text& text);

// Returns the fewest digits that read back as the same number, as repr().
std::string DoubleText(double number);
std::string IntegerText(Integer integer);

}  // namespace ringfleet::coordinator::jinja

#endif  // RINGFLEET_COORDINATOR_JINJA_PRINT_H_
