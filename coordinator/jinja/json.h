// SPDX-License-Identifier: Apache-2.0
// JSON of values, as Python's json module writes and reads it.
#ifndef RINGFLEET_COORDINATOR_JINJA_JSON_H_
#define RINGFLEET_COORDINATOR_JINJA_JSON_H_

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "coordinator/jinja/context.h"
#include "coordinator/jinja/value.h"

namespace ringfleet::coordinator::jinja {

// The arguments of json.dumps that templates give.
struct JsonStyle {
  bool ensure_ascii = false;
  bool sort_keys = false;
  // Indentation of one level. Absent: the text has one line.
  absl::optional<std::string> indent;
  absl::optional<std::string> item_separator, key_separator;
};

// Returns the text of json.dumps(value). Strings keep the origins of their
// bytes. Numbers and brackets have the origin of their value.
// Errors: INVALID_ARGUMENT: the value holds something without JSON form, nests
// deeper than kMaxDepth, or exceeds a limit.
absl::StatusOr<Text> ToJson(const Value& value, const JsonStyle& style,
                            Context* context);

// Returns the value of a JSON document. All of it has the origin `origin`.
// Objects keep the order of their keys, and the last of equal ones.
// Errors: INVALID_ARGUMENT: malformed JSON with its byte offset, an integer
// beyond kMaxInteger, or values that nest deeper than kMaxDepth.
absl::StatusOr<Value> ParseJson(const std::string& json, Origin origin,
                                Context* context);

// Returns the value of `json`, with origin kMessage.
// Errors: as of ParseJson.
absl::StatusOr<Value> FromJson(const nlohmann::ordered_json& json,
                               Context* context);

}  // namespace ringfleet::coordinator::jinja

#endif  // RINGFLEET_COORDINATOR_JINJA_JSON_H_
