// SPDX-License-Identifier: Apache-2.0
// Integers of templates, within -kMaxInteger to kMaxInteger.
#ifndef RINGFLEET_COORDINATOR_JINJA_INTEGER_H_
#define RINGFLEET_COORDINATOR_JINJA_INTEGER_H_

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "coordinator/jinja/value.h"

namespace ringfleet::coordinator::jinja {

// Returns the integer that int(text, base) of Python reads, with its signs,
// underscores and prefixes. `base` is 2 to 36, or 0 for the prefix's.
// Errors:
//   NOT_FOUND: the text is no integer.
//   INVALID_ARGUMENT: the integer exceeds kMaxInteger.
absl::StatusOr<Integer> ParseInteger(absl::string_view text, int base);

// Returns a `op` b. `op` is + - * // % or **, without a negative exponent.
// Errors: INVALID_ARGUMENT: the result exceeds kMaxInteger, or b is zero.
absl::StatusOr<Integer> IntegerArithmetic(absl::string_view op, Integer a,
                                          Integer b);

// Returns the value as int64_t, or the closest one.
int64_t Clamped(Integer integer);

}  // namespace ringfleet::coordinator::jinja

#endif  // RINGFLEET_COORDINATOR_JINJA_INTEGER_H_
