// SPDX-License-Identifier: Apache-2.0
// A client for tests that writes and reads the bytes of HTTP itself.
#ifndef RINGFLEET_TESTS_TESTING_HTTP_CLIENT_H_
#define RINGFLEET_TESTS_TESTING_HTTP_CLIENT_H_

#include <map>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "tests/testing/sockets.h"

namespace ringfleet::testing {

struct HttpReply {
  int status = 0;  // 0: the server closed the connection without an answer.
  std::map<std::string, std::string> headers;  // Names in lower case.
  std::string body;                            // Without chunks.
  // The body ended as its head says, not with the connection.
  bool whole = false;
};

// One connection. Waits a minute at most for bytes. Not thread-safe.
class HttpClient {
 public:
  explicit HttpClient(int port);
  explicit HttpClient(Socket socket) : socket_(std::move(socket)) {}

  // Sends bytes. Returns false if the server has closed the connection.
  bool Send(absl::string_view bytes);
  // Sends a request with its Host and, unless the body is empty, its length
  // and type. `headers` are lines that end with CRLF.
  bool SendRequest(absl::string_view method, absl::string_view path,
                   absl::string_view body = "", absl::string_view headers = "");

  // Reads a response. `head_only`: it has no body.
  HttpReply Read(bool head_only = false);
  // Sends a request and reads its response.
  HttpReply Call(absl::string_view method, absl::string_view path,
                 absl::string_view body = "", absl::string_view headers = "");

  // Reads until what was received has `text`. False: the connection ended.
  bool ReadUntil(absl::string_view text);
  // Returns all bytes that are received and not taken by Read.
  const std::string& received() const { return received_; }
  // Reads up to the connection's end.
  std::string ReadToEnd();

 private:
  // Returns false at the connection's end.
  bool Receive();

  Socket socket_;
  std::string received_;
};

// Returns the data of a stream's events, in order.
std::vector<std::string> EventsOf(absl::string_view body);

}  // namespace ringfleet::testing

#endif  // RINGFLEET_TESTS_TESTING_HTTP_CLIENT_H_
