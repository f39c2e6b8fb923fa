// SPDX-License-Identifier: Apache-2.0
// Errors in the form of OpenAI's API:
//   {"error":{"message":"...","type":"...","param":"...","code":"..."}}
#ifndef RINGFLEET_COORDINATOR_HTTP_API_ERROR_H_
#define RINGFLEET_COORDINATOR_HTTP_API_ERROR_H_

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "coordinator/http/http_message.h"

namespace ringfleet::coordinator {

struct ApiError {
  int status = 400;
  std::string message;
  std::string param;  // Empty: null.
  std::string code;   // Empty: null.
  // Tokens of the prompt, and most tokens, where a context is too short.
  std::optional<std::pair<uint64_t, uint64_t>> context;
  int retry_after_s = 0;  // 0: not said.
  // Clients of OpenAI repeat a request that has failed for want of time, unless
  // they are told not to.
  bool should_retry = true;
};

// Codes of OpenAI's errors.
inline constexpr char kMissingParameter[] = "missing_required_parameter";
inline constexpr char kInvalidType[] = "invalid_type";
inline constexpr char kInvalidValue[] = "invalid_value";
inline constexpr char kTooLong[] = "string_above_max_length";
inline constexpr char kRateLimit[] = "rate_limit_exceeded";

// Code of a request that makes the fleet fail each time it runs alone.
inline constexpr char kFailedAlone[] = "request_fails_fleet";

// A 400 that names a field of the request. Its code is kInvalidValue.
ApiError BadField(std::string param, std::string message);
ApiError UnsupportedField(std::string param);
// A status of the fleet or of the model.
ApiError ErrorOf(const absl::Status& status);

// Returns the error object as JSON on one line.
std::string ErrorJson(const ApiError& error);
HttpResponse ErrorResponse(const ApiError& error);

}  // namespace ringfleet::coordinator

#endif  // RINGFLEET_COORDINATOR_HTTP_API_ERROR_H_
