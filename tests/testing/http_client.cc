// SPDX-License-Identifier: Apache-2.0
#include "tests/testing/http_client.h"

#include <sys/socket.h>
#include <sys/time.h>

#include <cstdlib>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace ringfleet::testing {

HttpClient::HttpClient(int port)
    : HttpClient(ConnectTo(absl::StrCat("127.0.0.1:", port))) {
  const timeval limit = {.tv_sec = 60, .tv_usec = 0};
  setsockopt(socket_.fd(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
}

bool HttpClient::Send(absl::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t sent =
        send(socket_.fd(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent <= 0) return false;
    bytes.remove_prefix(static_cast<size_t>(sent));
  }
  return true;
}

bool HttpClient::SendRequest(absl::string_view method, absl::string_view path,
                             absl::string_view body,
                             absl::string_view headers) {
  std::string request =
      absl::StrCat(method, " ", path, " HTTP/1.1\r\nHost: test\r\n", headers);
  if (!body.empty()) {
    absl::StrAppend(&request, "Content-Type: application/json\r\n",
                    "Content-Length: ", body.size(), "\r\n");
  }
  return Send(absl::StrCat(request, "\r\n", body));
}

bool HttpClient::Receive() {
  char buffer[1 << 16];
  const ssize_t got = recv(socket_.fd(), buffer, sizeof(buffer), 0);
  if (got <= 0) return false;
  received_.append(buffer, static_cast<size_t>(got));
  return true;
}

bool HttpClient::ReadUntil(absl::string_view text) {
  while (!absl::StrContains(received_, text)) {
    if (!Receive()) return false;
  }
  return true;
}

std::string HttpClient::ReadToEnd() {
  while (Receive()) {
  }
  return received_;
}

HttpReply HttpClient::Read(bool head_only) {
  HttpReply reply;
  if (!ReadUntil("\r\n\r\n")) return reply;
  const size_t head_end = received_.find("\r\n\r\n");
  const std::vector<std::string> lines =
      absl::StrSplit(received_.substr(0, head_end), "\r\n");
  received_.erase(0, head_end + 4);
  reply.status = std::atoi(lines[0].substr(9, 3).c_str());
  for (size_t i = 1; i < lines.size(); ++i) {
    const std::pair<std::string, std::string> header =
        absl::StrSplit(lines[i], absl::MaxSplits(": ", 1));
    reply.headers[absl::AsciiStrToLower(header.first)] = header.second;
  }
  if (head_only || reply.status == 100) {
    reply.whole = true;
    return reply;
  }
  size_t length = 0;
  if (reply.headers["transfer-encoding"] == "chunked") {
    while (true) {
      if (!ReadUntil("\r\n")) return reply;
      const size_t line = received_.find("\r\n");
      length = std::strtoul(received_.c_str(), nullptr, 16);
      while (received_.size() < line + 2 + length + 2) {
        if (!Receive()) return reply;
      }
      reply.body += received_.substr(line + 2, length);
      received_.erase(0, line + 2 + length + 2);
      if (length == 0) break;
    }
    reply.whole = true;
  } else if (absl::SimpleAtoi(reply.headers["content-length"], &length)) {
    while (received_.size() < length) {
      if (!Receive()) return reply;
    }
    reply.body = received_.substr(0, length);
    received_.erase(0, length);
    reply.whole = true;
  } else {
    reply.body = ReadToEnd();
    received_.clear();
  }
  return reply;
}

HttpReply HttpClient::Call(absl::string_view method, absl::string_view path,
                           absl::string_view body, absl::string_view headers) {
  if (!SendRequest(method, path, body, headers)) return {};
  return Read(method == "HEAD");
}

std::vector<std::string> EventsOf(absl::string_view body) {
  std::vector<std::string> events;
  for (absl::string_view line : absl::StrSplit(body, '\n')) {
    if (absl::ConsumePrefix(&line, "data: ")) {
      events.push_back(std::string(line));
    }
  }
  return events;
}

}  // namespace ringfleet::testing
