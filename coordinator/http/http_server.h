// SPDX-License-Identifier: Apache-2.0
// An HTTP/1.1 server with one I/O thread: plain or TLS 1.3, keep-alive,
// pipelining, streams. Boost stays behind this header.
#ifndef RINGFLEET_COORDINATOR_HTTP_HTTP_SERVER_H_
#define RINGFLEET_COORDINATOR_HTTP_HTTP_SERVER_H_

#include <cstddef>
#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "cluster/rpc/host_address.h"
#include "coordinator/http/http_exchange.h"

struct ssl_ctx_st;

namespace ringfleet::coordinator {

struct HttpLimits {
  // A connection of a client waits this long for a request to begin.
  absl::Duration idle = absl::Seconds(120);
  // A TLS handshake and the head of a request come within this time.
  absl::Duration head = absl::Seconds(10);
  absl::Duration body = absl::Seconds(60);
  absl::Duration silence = absl::Seconds(10);  // See HttpExchangeListener.
  // A client takes at least a part of a response within this time.
  absl::Duration stall = absl::Seconds(60);
  // A refused client may send the rest of its request for this long.
  absl::Duration linger = absl::Seconds(2);
  // When the server ends, a client that has connected may send its first
  // request, or the rest of one, for this long.
  absl::Duration last_request = absl::Milliseconds(500);
  size_t head_bytes = size_t{16} << 10;
  size_t body_bytes = size_t{32} << 20;
  // Bodies of all connections, until their responses end.
  size_t all_body_bytes = size_t{512} << 20;
  // Bytes of a stream that wait for its client.
  size_t queued_bytes = size_t{256} << 10;
  // 0: half of the descriptors that the process may have. At the limit a new
  // connection takes the place of the one that has waited longest for its
  // client.
  size_t connections = 0;
};

// Thread-safe. A connection that the server closes for a reason of its own gets
// the reason as a response: 400, 408, 413, 431 or 503, with the error object of
// api_error.h.
class HttpServer {
 public:
  using TlsContext = std::shared_ptr<ssl_ctx_st>;

  // Listens; answers nothing before Run. `tls` returns what a new connection
  // takes; null: connections are plain. `tls` is called on the I/O thread.
  //
  // Errors: those of ListeningSockets::Open.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Listen(
      const cluster::ServerAddress& address, const HttpLimits& limits,
      std::function<TlsContext()> tls);
  virtual ~HttpServer() = default;  // Stop without grace.

  virtual int port() const = 0;
  virtual HttpLoop* loop() = 0;

  // Starts the thread. `handler` must live until Stop has returned.
  virtual void Run(HttpHandler* handler) = 0;
  // Closes each connection after its response.
  virtual void CloseAfterResponses() = 0;
  // Stops listening, answers requests that are on their way, sends what is
  // queued for at most `grace`, closes all connections and ends the thread.
  // Later calls do nothing.
  virtual void Stop(absl::Duration grace) = 0;
};

}  // namespace ringfleet::coordinator

#endif  // RINGFLEET_COORDINATOR_HTTP_HTTP_SERVER_H_
