// SPDX-License-Identifier: Apache-2.0
#include "coordinator/http/http_message.h"

#include <algorithm>
#include <cstdint>
#include <random>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"

namespace ringfleet::coordinator {
namespace {

constexpr size_t kMaxRequestId = 128;

bool IsRequestId(absl::string_view id) {
  return !id.empty() && id.size() <= kMaxRequestId &&
         std::all_of(id.begin(), id.end(), [](char c) {
           return absl::ascii_isalnum(static_cast<unsigned char>(c)) ||
                  absl::StrContains("-_.:", absl::string_view(&c, 1));
         });
}

}  // namespace

absl::string_view HttpRequest::Header(absl::string_view name) const {
  for (const HttpHeader& header : headers) {
    if (absl::EqualsIgnoreCase(header.name, name)) return header.value;
  }
  return "";
}

std::optional<std::string> HttpRequest::Parameter(
    absl::string_view name) const {
  for (const absl::string_view pair : absl::StrSplit(query, '&')) {
    const std::pair<std::string, std::string> parts = absl::StrSplit(
        absl::StrReplaceAll(pair, {{"+", " "}}), absl::MaxSplits('=', 1));
    if (UnescapedUrl(parts.first) == name) return UnescapedUrl(parts.second);
  }
  return std::nullopt;
}

std::string RequestIdOf(const HttpRequest& request) {
  const absl::string_view id = request.Header("x-request-id");
  if (IsRequestId(id)) return std::string(id);
  thread_local std::mt19937_64 random{std::random_device()()};
  return absl::StrCat("req-", absl::Hex(random(), absl::kZeroPad16));
}

std::string UnescapedUrl(absl::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    uint32_t byte = 0;
    // SimpleHexAtoi alone takes signs and spaces, too.
    if (text[i] == '%' && i + 2 < text.size() &&
        absl::ascii_isxdigit(static_cast<unsigned char>(text[i + 1])) &&
        absl::ascii_isxdigit(static_cast<unsigned char>(text[i + 2])) &&
        absl::SimpleHexAtoi(text.substr(i + 1, 2), &byte)) {
      out.push_back(static_cast<char>(byte));
      i += 2;
    } else {
      out.push_back(text[i]);
    }
  }
  return out;
}

absl::string_view ReasonOf(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 204:
      return "No Content";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 408:
      return "Request Timeout";
    case 409:
      return "Conflict";
    case 413:
      return "Payload Too Large";
    case 415:
      return "Unsupported Media Type";
    case 429:
      return "Too Many Requests";
    case 431:
      return "Request Header Fields Too Large";
    case 503:
      return "Service Unavailable";
    case 507:
      return "Insufficient Storage";
    default:
      return status < 500 ? "Error" : "Internal Server Error";
  }
}

}  // namespace ringfleet::coordinator
