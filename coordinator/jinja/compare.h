// SPDX-License-Identifier: Apache-2.0
// Equality, order, membership and iteration of values, with Python's results.
#ifndef RINGFLEET_COORDINATOR_JINJA_COMPARE_H_
#define RINGFLEET_COORDINATOR_JINJA_COMPARE_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "coordinator/jinja/context.h"
#include "coordinator/jinja/value.h"

namespace ringfleet::coordinator::jinja {

// Origins do not count in comparisons.
// Errors: INVALID_ARGUMENT: the types have no order or no items, a value nests
// deeper than kMaxDepth, or a limit is exceeded.

absl::StatusOr<bool> Equal(const Value& a, const Value& b, Context* context);
absl::StatusOr<bool> Less(const Value& a, const Value& b, Context* context);
// Returns a `op` b. `op` is == != < <= > >= in or "not in".
absl::StatusOr<bool> Compare(absl::string_view op, const Value& a,
                             const Value& b, Context* context);
// Returns whether `item` is in `container`.
absl::StatusOr<bool> Contains(const Value& container, const Value& item,
                              Context* context);

// Returns a string that is equal for equal values. Lists and dicts have none.
absl::StatusOr<std::string> HashKey(const Value& value, Context* context);

// Returns the values that a for loop visits: items, keys or characters.
// Returns no values for the undefined value. Ends an iterator.
absl::StatusOr<std::vector<Value>> ToItems(const Value& value,
                                           Context* context);

// Returns len(value). Errors: INVALID_ARGUMENT: the value has no length.
absl::StatusOr<int64_t> Length(const Value& value, Context* context);

}  // namespace ringfleet::coordinator::jinja

#endif  // RINGFLEET_COORDINATOR_JINJA_COMPARE_H_
