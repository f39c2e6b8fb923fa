// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_COORDINATOR_CLI_JSON_OUTPUT_H_
#define RINGFLEET_COORDINATOR_CLI_JSON_OUTPUT_H_

#include <nlohmann/json.hpp>
#include <string>

#include "absl/status/status.h"
#include "coordinator/cli/output.h"

namespace ringfleet::coordinator::cli {

// JSON whose keys stay in the order of writing.
using Json = nlohmann::ordered_json;

// Makes a JSON array of a repeated field.
template <typename Repeated>
Json JsonArray(const Repeated& values) {
  Json array = Json::array();
  for (const auto& value : values) array.push_back(value);
  return array;
}

// Prints the one document of a command on stdout. Bytes that are not UTF-8
// become U+FFFD; infinities and NaN become null. Errors: those of PrintText.
inline absl::Status PrintJson(const Json& document) {
  return PrintText(
      document.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n");
}

}  // namespace ringfleet::coordinator::cli

#endif  // RINGFLEET_COORDINATOR_CLI_JSON_OUTPUT_H_
