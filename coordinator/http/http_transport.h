// SPDX-License-Identifier: Apache-2.0
// The bytes of one connection, plain or encrypted. Only the files of the server
// include this: it brings Asio.
#ifndef RINGFLEET_COORDINATOR_HTTP_HTTP_TRANSPORT_H_
#define RINGFLEET_COORDINATOR_HTTP_HTTP_TRANSPORT_H_

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/buffer.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <cstddef>
#include <functional>
#include <memory>

#include "coordinator/http/http_server.h"

namespace ringfleet::coordinator {

// For the I/O thread. At most one Read and one Write run at a time. Callbacks
// come from the loop, never from within a call, also after Close.
class HttpTransport {
 public:
  using Socket = boost::asio::ip::tcp::socket;
  using Done =
      std::function<void(const boost::system::error_code& error, size_t bytes)>;

  // `tls` null: plain.
  static std::unique_ptr<HttpTransport> Make(Socket socket,
                                             HttpServer::TlsContext tls);
  virtual ~HttpTransport() = default;

  virtual boost::asio::any_io_executor executor() = 0;

  // Precedes all reads and writes.
  virtual void Handshake(Done done) = 0;
  virtual void Read(boost::asio::mutable_buffer into, Done done) = 0;
  // Writes at least a byte.
  virtual void Write(boost::asio::const_buffer from, Done done) = 0;
  // Tells the client that no more bytes follow. Follows all writes. A read may
  // still be pending, and others may follow. Encrypted, `done` comes once the
  // client has ended its side.
  virtual void EndWrites(Done done) = 0;
  virtual void Close() = 0;
};

}  // namespace ringfleet::coordinator

#endif  // RINGFLEET_COORDINATOR_HTTP_HTTP_TRANSPORT_H_
