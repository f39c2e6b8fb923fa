// SPDX-License-Identifier: Apache-2.0
#include "coordinator/cli/command.h"

#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "coordinator/cli/output.h"

namespace ringfleet::coordinator::cli {
namespace {

constexpr char kJobIdPayload[] = "ringfleet/job-id";

}  // namespace

void AddFormatOptions(CLI::App& verb, const std::vector<std::string>& formats,
                      std::string* format, const char* names) {
  std::string choices = formats.front();
  for (size_t i = 1; i < formats.size(); ++i) {
    absl::StrAppend(&choices, i + 1 < formats.size() ? ", " : " or ",
                    formats[i]);
  }
  const CLI::Option* output = verb.add_option(names, *format, choices)
                                  ->check(CLI::IsMember(formats))
                                  ->capture_default_str();
  // CLI11 looks at options in the order in which they were added.
  verb.add_flag_callback(
      "--json",
      [output, format] {
        if (output->count() > 0 && *format != "json") {
          throw CLI::ExcludesError("--json", absl::StrCat("-o ", *format));
        }
        *format = "json";
      },
      "The same as -o json");
}

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

absl::Status WithJobId(absl::Status status, absl::string_view id) {
  status.SetPayload(kJobIdPayload, absl::Cord(id));
  return status;
}

void PrintError(const absl::Status& status, bool json) {
  // Messages may come from a peer.
  fprintf(stderr, "ringfleet: %s\n", OneLine(status.message()).c_str());
  if (!json) return;
  nlohmann::ordered_json error = {
      {"error",
       {{"code", absl::StatusCodeToString(status.code())},
        {"message", std::string(status.message())}}}};
  if (const auto id = status.GetPayload(kJobIdPayload)) {
    error["error"]["id"] = std::string(*id);
  }
  printf("%s\n",
         EscapeControls(error.dump(-1, ' ', false,
                                   nlohmann::json::error_handler_t::replace))
             .c_str());
}

}  // namespace ringfleet::coordinator::cli
