// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_COORDINATOR_CLI_JSON_OUTPUT_H_
#define RINGFLEET_COORDINATOR_CLI_JSON_OUTPUT_H_

#include <nlohmann/json.hpp>
#include <string>

#include "absl/status/status.h"
#include "coordinator/cli/output.h"

namespace ringfleet::coordinator::cli {

// JSON that keeps the order in which keys were written.
using Json = nlohmann::ordered_json;

// Returns a JSON array with the values of a repeated field.
template <typename Repeated>
Json JsonArray(const Repeated& values) {
  Json array = Json::array();
  for (const auto& value : values) array.push_back(value);
  return array;
}

// Prints a JSON document as one line on stdout. Replaces bytes that are not
// UTF-8 by U+FFFD, and infinities and NaN by null. Escapes control characters.
// Errors: those of PrintText.
inline absl::Status PrintJson(const Json& document) {
  return PrintText(EscapeControls(document.dump(
                       -1, ' ', false, Json::error_handler_t::replace)) +
                   "\n");
}

}  // namespace ringfleet::coordinator::cli

#endif  // RINGFLEET_COORDINATOR_CLI_JSON_OUTPUT_H_
