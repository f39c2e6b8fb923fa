// SPDX-License-Identifier: Apache-2.0
// Parts and changes of strings, as Python's str has them. Each byte of a result
// keeps its origin.
#ifndef RINGFLEET_COORDINATOR_JINJA_SPLIT_H_
#define RINGFLEET_COORDINATOR_JINJA_SPLIT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "coordinator/jinja/context.h"
#include "coordinator/jinja/value.h"

namespace ringfleet::coordinator::jinja {

// Cut at most `most` times, or everywhere for a negative `most`; from the end
// if `from_right`. A `separator` is not empty.
std::vector<Text> SplitAt(const Text& text, absl::string_view separator,
                          int64_t most, bool from_right);
std::vector<Text> SplitAtSpace(const Text& text, int64_t most, bool from_right);
std::vector<Text> SplitLines(const Text& text, bool keep_ends);

// Drops characters of `set` at the beginning or at the end. Null: white space.
Text Strip(const Text& text, const std::string* set, bool left, bool right);

// Replaces the first `count` occurrences, or all for a negative count.
// Errors: INVALID_ARGUMENT: the result exceeds a limit.
absl::StatusOr<Text> Replace(const Text& text, absl::string_view old,
                             const Text& by, int64_t count, Context* context);

enum class LetterCase { kUpper, kLower, kTitle, kCapitalize, kSwap };
Text ChangeCase(const Text& text, LetterCase letter_case);

}  // namespace ringfleet::coordinator::jinja

#endif  // RINGFLEET_COORDINATOR_JINJA_SPLIT_H_
