// SPDX-License-Identifier: Apache-2.0
// One request and its response, between a connection and what answers it.
// Everything here runs on the server's one I/O thread unless it says otherwise.
#ifndef RINGFLEET_COORDINATOR_HTTP_HTTP_EXCHANGE_H_
#define RINGFLEET_COORDINATOR_HTTP_HTTP_EXCHANGE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "coordinator/http/http_message.h"

namespace ringfleet::coordinator {

// Fields of the access log beside method, path, status and duration.
struct HttpLogFields {
  std::string key_name;  // Name of the API key; never the key.
  std::optional<uint32_t> prompt_tokens;
  uint32_t completion_tokens = 0;
  std::optional<absl::Duration> first_token;  // From the request's last byte.
};

// Watches an exchange that is not answered at once.
class HttpExchangeListener {
 public:
  virtual ~HttpExchangeListener() = default;
  // Nothing was sent for HttpLimits::silence.
  virtual void OnSilence() = 0;
  // Nothing of what was written waits for the client. Comes at other times,
  // too.
  virtual void OnSent() {}
  // The client has left, was cut off because it does not read, or sent a body
  // that the server refused. Comes once, and not after the response is
  // complete.
  virtual void OnGone() = 0;
};

// Takes a body as it comes. For the I/O thread.
class HttpBodySink {
 public:
  virtual ~HttpBodySink() = default;
  // Returns the most bytes of the body. A longer one is refused.
  virtual uint64_t most_bytes() const = 0;
  // Takes the next bytes. Returns false if it wants no more before
  // HttpExchange::ResumeBody. Must not block.
  virtual bool Take(std::string bytes) = 0;
  // The body is whole. Answers the exchange, at once or later.
  virtual void OnEnd() = 0;
};

// A response is either Respond, or BeginStream, any number of Writes and
// EndStream. Calls after the client has left do nothing.
class HttpExchange {
 public:
  virtual ~HttpExchange() = default;

  virtual const HttpRequest& request() const = 0;
  virtual HttpLogFields& log() = 0;
  // Returns the time since the request's last byte.
  virtual absl::Duration age() const = 0;

  // A response to a body that has not come as a whole ends the connection.
  virtual void Respond(HttpResponse response) = 0;

  // `head` has no body. If it has `stream_bytes`, as many are to be written
  // before EndStream.
  virtual void BeginStream(HttpResponse head) = 0;
  // Queues bytes of the body. A client that leaves more than
  // HttpLimits::queued_bytes unread is cut off.
  virtual void Write(absl::string_view bytes) = 0;
  // Queues bytes that may wait for the client however many they are.
  virtual void WriteBulk(absl::string_view bytes) = 0;
  virtual void EndStream() = 0;
  // Ends the connection, so that the client sees that the stream is not whole.
  virtual void BreakStream(absl::string_view why) = 0;

  // Goes on with a body whose sink wanted no more.
  virtual void ResumeBody() = 0;
  virtual void SetListener(std::weak_ptr<HttpExchangeListener> listener) = 0;
};

// Runs functions on the I/O thread. Thread-safe.
class HttpLoop {
 public:
  virtual ~HttpLoop() = default;
  // Functions that are posted while the thread works share one wake-up.
  // Functions posted after the server has stopped never run.
  virtual void Post(std::function<void()> function) = 0;
};

// Answers the requests of a server.
class HttpHandler {
 public:
  virtual ~HttpHandler() = default;
  // Looks at a request before its body is read. Returns a refusal, or nothing.
  virtual std::optional<HttpResponse> OnHead(const HttpRequest& head,
                                             HttpLogFields* log) = 0;
  // Returns what takes the body of a request that was not refused. Null: the
  // body is to be in HttpRequest::body, and OnRequest answers, unless this call
  // did.
  virtual std::shared_ptr<HttpBodySink> OpenBody(
      const std::shared_ptr<HttpExchange>& exchange) {
    return nullptr;
  }
  // Answers a whole request, at once or later. Must not block.
  virtual void OnRequest(std::shared_ptr<HttpExchange> exchange) = 0;
  // Adds headers to a response, also to one that the server made itself.
  virtual void AddHeaders(const HttpRequest& request,
                          HttpResponse* response) = 0;
  // A request has ended. `status`: 0 if the client left before a response.
  // `took`: since its last byte.
  virtual void OnEnd(const HttpRequest& request, int status,
                     absl::Duration took) {}
};

}  // namespace ringfleet::coordinator

#endif  // RINGFLEET_COORDINATOR_HTTP_HTTP_EXCHANGE_H_
