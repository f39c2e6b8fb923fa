// SPDX-License-Identifier: Apache-2.0
// The methods, filters and tests that templates may use.
// Errors: INVALID_ARGUMENT: an unknown name, or an argument of a wrong type.
#ifndef RINGFLEET_COORDINATOR_CHAT_JINJA_BUILTINS_H_
#define RINGFLEET_COORDINATOR_CHAT_JINJA_BUILTINS_H_

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "coordinator/chat/jinja_value.h"

namespace ringfleet::coordinator::jinja {

struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> keywords;
};

// Returns object.name(arguments).
//   strings: split, strip, lstrip, rstrip, startswith, endswith, replace,
//     upper, lower
//   mappings: items, keys, values, get
absl::StatusOr<Value> CallMethod(const Value& object, absl::string_view name,
                                 const Arguments& arguments, Budget* budget);

// Returns value | name(arguments). Filters: tojson, length, count, trim, join,
// default, d, string, first, last, upper, lower, replace, items, list.
absl::StatusOr<Value> ApplyFilter(absl::string_view name, const Value& value,
                                  const Arguments& arguments, Budget* budget);

// Returns the result of `value is name`. Tests: defined, undefined, none,
// string, mapping, iterable, sequence, number, boolean, true, false.
absl::StatusOr<bool> ApplyTest(absl::string_view name, const Value& value);

}  // namespace ringfleet::coordinator::jinja

#endif  // RINGFLEET_COORDINATOR_CHAT_JINJA_BUILTINS_H_
