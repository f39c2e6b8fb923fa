// SPDX-License-Identifier: Apache-2.0
// Keys of items, which filters take by a path such as "function.name", and
// sorting by keys.
#ifndef RINGFLEET_COORDINATOR_JINJA_ITEM_KEY_H_
#define RINGFLEET_COORDINATOR_JINJA_ITEM_KEY_H_

#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "coordinator/jinja/context.h"
#include "coordinator/jinja/value.h"

namespace ringfleet::coordinator::jinja {

// Returns item[a][b][c] for the path "a.b.c", in which a number is an index.
// Returns `item` for a path that is none.
// Errors: INVALID_ARGUMENT: an item on the path, but not the last, is
// undefined.
absl::StatusOr<Value> ItemAt(const Value& item, const Value& path,
                             Context* context);

// Returns ItemAt, in lower case unless `case_sensitive`.
absl::StatusOr<Value> KeyAt(const Value& item, const Value& path,
                            bool case_sensitive, Context* context);

// Returns KeyAt for each item.
absl::StatusOr<std::vector<Value>> KeysAt(const std::vector<Value>& items,
                                          const Value& path,
                                          bool case_sensitive,
                                          Context* context);

// Sorts `items` by keys[i] of items[i], as sorted(items, key, reverse) does:
// items of equal keys keep their order. `keys` may be a copy of `items`.
// Errors: INVALID_ARGUMENT: two keys have no order, or a limit is exceeded.
absl::Status SortByKeys(std::vector<Value> keys, bool reverse,
                        std::vector<Value>* items, Context* context);

}  // namespace ringfleet::coordinator::jinja

#endif  // RINGFLEET_COORDINATOR_JINJA_ITEM_KEY_H_
