// SPDX-License-Identifier: Apache-2.0
// The two ways in which Python formats values into a string.
// Errors: INVALID_ARGUMENT: a malformed or unsupported format, a missing or
// wrong value, or a limit.
#ifndef RINGFLEET_COORDINATOR_JINJA_FORMAT_H_
#define RINGFLEET_COORDINATOR_JINJA_FORMAT_H_

#include "absl/status/statusor.h"
#include "coordinator/jinja/context.h"
#include "coordinator/jinja/value.h"

namespace ringfleet::coordinator::jinja {

// Returns format % values. `values` is a tuple, a dict for %(name)s, or one
// value. Supports flags, width and precision of s r d i x X o f F e E g G %.
absl::StatusOr<Value> FormatPercent(const Value& format, const Value& values,
                                    Context* context);

// Returns format.format(arguments). Supports {}, {0}, {name}, with .attribute
// and [key], !s and !r, and the format specifications of strings, integers and
// floats but n.
absl::StatusOr<Value> FormatBraces(const Text& format,
                                   const Arguments& arguments,
                                   Context* context);

}  // namespace ringfleet::coordinator::jinja

#endif  // RINGFLEET_COORDINATOR_JINJA_FORMAT_H_
