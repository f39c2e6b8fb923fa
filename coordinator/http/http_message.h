// SPDX-License-Identifier: Apache-2.0
// Requests and responses of HTTP/1.1, without a connection.
#ifndef RINGFLEET_COORDINATOR_HTTP_HTTP_MESSAGE_H_
#define RINGFLEET_COORDINATOR_HTTP_HTTP_MESSAGE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace ringfleet::coordinator {

inline constexpr char kJsonType[] = "application/json; charset=utf-8";
inline constexpr char kTextType[] = "text/plain; charset=utf-8";
inline constexpr char kEventStreamType[] = "text/event-stream";

struct HttpHeader {
  std::string name;
  std::string value;
};

struct HttpRequest {
  std::string method;  // "GET"
  std::string path;    // Begins with '/'. As sent, without the query.
  std::string query;   // As sent, without '?'.
  std::vector<HttpHeader> headers;
  std::string body;
  // Taken over from x-request-id, or made.
  std::string id;

  // Returns the first header of this name, in any case. Empty: absent.
  absl::string_view Header(absl::string_view name) const;
  // Returns the first parameter of the query with this name, decoded.
  std::optional<std::string> Parameter(absl::string_view name) const;
};

struct HttpResponse {
  int status = 200;
  std::string content_type = kJsonType;  // Empty: no such header.
  // Beside those of the connection, of the body and x-request-id.
  std::vector<HttpHeader> headers;
  std::string body;
  // Bytes of a streamed body, if they are known before.
  std::optional<uint64_t> stream_bytes;
};

// Returns x-request-id of a request if it is one, else a new id.
std::string RequestIdOf(const HttpRequest& request);

// Returns the text of a part of a path: "a/b" of "a%2Fb".
std::string UnescapedUrl(absl::string_view text);

// Returns "Not Found" for 404.
absl::string_view ReasonOf(int status);

}  // namespace ringfleet::coordinator

#endif  // RINGFLEET_COORDINATOR_HTTP_HTTP_MESSAGE_H_
