// SPDX-License-Identifier: Apache-2.0
// JSON from outside with limits, and JSON written by hand.
#ifndef RINGFLEET_COORDINATOR_HTTP_JSON_TEXT_H_
#define RINGFLEET_COORDINATOR_HTTP_JSON_TEXT_H_

#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace ringfleet::coordinator {

// Values of a request: its prompts by id are the longest lists.
inline constexpr size_t kMaxJsonValues = 500'000;
// Keys of one object. ordered_json searches them one by one.
inline constexpr size_t kMaxJsonKeys = 1024;
// Keys that all these searches look at: those of 16 such objects.
inline constexpr size_t kMaxJsonSearch = 16 * kMaxJsonKeys * kMaxJsonKeys / 2;

// Parses the body of a request. Strings of the result are UTF-8.
//
// The last value of a repeated key stays. A byte order mark in front is
// skipped.
//
// Errors: INVALID_ARGUMENT: not JSON, not an object, nested more deeply than
// cluster::kMaxJsonDepth, or beyond the limits above; the message names the
// field. The check of the limits builds nothing.
absl::StatusOr<nlohmann::ordered_json> ParseJsonBody(absl::string_view body);

// Appends a string literal. Ill-formed UTF-8 becomes U+FFFD. Control
// characters, and those at which some clients end a line, are escaped, beyond
// ASCII, too.
void AppendJsonString(absl::string_view text, std::string* out);
// Appends null for an empty text.
void AppendJsonStringOrNull(absl::string_view text, std::string* out);
// Appends the shortest decimal that reads back as this float. Infinities and
// NaN, which JSON lacks, become -9999 and null.
void AppendJsonFloat(float value, std::string* out);

}  // namespace ringfleet::coordinator

#endif  // RINGFLEET_COORDINATOR_HTTP_JSON_TEXT_H_
