// SPDX-License-Identifier: Apache-2.0
#include "coordinator/cli/command.h"

#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/ascii.h"

namespace ringfleet::coordinator::cli {

int ExitCode(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return 0;
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kOutOfRange:
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kAlreadyExists:
    case absl::StatusCode::kPermissionDenied:
      return 2;
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kDeadlineExceeded:
    case absl::StatusCode::kAborted:
    case absl::StatusCode::kFailedPrecondition:
      return 3;
    case absl::StatusCode::kDataLoss:
      return 4;
    case absl::StatusCode::kCancelled:
      return 130;
    default:
      return 1;
  }
}

void PrintError(const absl::Status& status, bool json) {
  // Messages may come from a peer: neither line breaks nor terminal escapes.
  std::string line(status.message());
  for (char& c : line) {
    if (absl::ascii_iscntrl(c)) c = ' ';
  }
  fprintf(stderr, "ringfleet: %s\n", line.c_str());
  if (!json) return;
  const nlohmann::ordered_json error = {
      {"error",
       {{"code", absl::StatusCodeToString(status.code())},
        {"message", std::string(status.message())}}}};
  printf("%s\n",
         error.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)
             .c_str());
}

}  // namespace ringfleet::coordinator::cli
