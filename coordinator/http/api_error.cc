// SPDX-License-Identifier: Apache-2.0
#include "coordinator/http/api_error.h"

#include "absl/strings/str_cat.h"
#include "coordinator/http/json_text.h"
#include "coordinator/scheduling/request.h"

namespace ringfleet::coordinator {
namespace {

// Names of OpenAI, and of llama.cpp where OpenAI has none.
absl::string_view ErrorTypeOf(const ApiError& error) {
  if (error.context.has_value()) return "exceed_context_size_error";
  switch (error.status) {
    case 401:
      return "authentication_error";
    case 404:
      return "not_found_error";
    case 408:
      return "timeout_error";
    case 429:
      return "rate_limit_error";
    case 503:
      return "unavailable_error";
    default:
      return error.status < 500 ? "invalid_request_error" : "server_error";
  }
}

int HttpStatusOf(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kOutOfRange:
    case absl::StatusCode::kFailedPrecondition:
      return 400;
    case absl::StatusCode::kNotFound:
      return 404;
    case absl::StatusCode::kResourceExhausted:
      return 429;
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kCancelled:
    case absl::StatusCode::kAborted:
      return 503;
    case absl::StatusCode::kDeadlineExceeded:
      return 408;
    default:
      return 500;
  }
}

}  // namespace

ApiError BadField(std::string param, std::string message) {
  message = absl::StrCat(param, ": ", message);
  return {.message = std::move(message),
          .param = std::move(param),
          .code = kInvalidValue};
}

ApiError UnsupportedField(std::string param) {
  ApiError error = BadField(std::move(param), "not supported");
  error.code = "unsupported_parameter";
  return error;
}

ApiError ErrorOf(const absl::Status& status) {
  ApiError error;
  error.status = status.GetPayload(kFleetFailedPayload).has_value()
                     ? 503
                     : HttpStatusOf(status.code());
  error.message = std::string(status.message());
  if (error.status == 429 || error.status == 503) error.retry_after_s = 1;
  if (error.status == 429) error.code = kRateLimit;
  error.should_retry = error.status != 408;
  if (status.GetPayload(kFailedAlonePayload).has_value()) {
    error.status = 500;
    error.code = kFailedAlone;
    error.retry_after_s = 0;
    error.should_retry = false;
  }
  return error;
}

std::string ErrorJson(const ApiError& error) {
  std::string out = "{\"error\":{\"message\":";
  AppendJsonString(error.message, &out);
  absl::StrAppend(&out, ",\"type\":\"", ErrorTypeOf(error), "\",\"param\":");
  AppendJsonStringOrNull(error.param, &out);
  absl::StrAppend(&out, ",\"code\":");
  AppendJsonStringOrNull(error.code, &out);
  if (error.context.has_value()) {
    absl::StrAppend(&out, ",\"n_prompt_tokens\":", error.context->first,
                    ",\"n_ctx\":", error.context->second);
  }
  out += "}}";
  return out;
}

HttpResponse ErrorResponse(const ApiError& error) {
  HttpResponse response;
  response.status = error.status;
  response.body = ErrorJson(error);
  if (error.status == 401) {
    response.headers.push_back({"WWW-Authenticate", "Bearer"});
  }
  if (error.retry_after_s > 0) {
    response.headers.push_back(
        {"Retry-After", absl::StrCat(error.retry_after_s)});
  }
  if (!error.should_retry) {
    response.headers.push_back({"x-should-retry", "false"});
  }
  return response;
}

}  // namespace ringfleet::coordinator
