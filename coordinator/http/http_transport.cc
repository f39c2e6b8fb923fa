// SPDX-License-Identifier: Apache-2.0
#include "coordinator/http/http_transport.h"

#include <openssl/ssl.h>

#include <boost/asio/post.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <utility>

namespace ringfleet::coordinator {
namespace {

namespace asio = boost::asio;

class PlainTransport final : public HttpTransport {
 public:
  explicit PlainTransport(Socket socket) : socket_(std::move(socket)) {}

  asio::any_io_executor executor() override { return socket_.get_executor(); }

  void Handshake(Done done) override {
    asio::post(socket_.get_executor(), [done = std::move(done)] {
      done(boost::system::error_code(), 0);
    });
  }
  void Read(asio::mutable_buffer into, Done done) override {
    socket_.async_read_some(into, std::move(done));
  }
  void Write(asio::const_buffer from, Done done) override {
    socket_.async_write_some(from, std::move(done));
  }
  void EndWrites(Done done) override {
    boost::system::error_code ignored;
    socket_.shutdown(Socket::shutdown_send, ignored);
    Handshake(std::move(done));
  }
  void Close() override {
    boost::system::error_code ignored;
    socket_.close(ignored);
  }

 private:
  Socket socket_;
};

class TlsTransport final : public HttpTransport {
 public:
  TlsTransport(Socket socket, HttpServer::TlsContext tls)
      : context_(Own(tls.get())), stream_(std::move(socket), context_) {}

  asio::any_io_executor executor() override { return stream_.get_executor(); }

  void Handshake(Done done) override {
    stream_.async_handshake(
        asio::ssl::stream_base::server,
        [done = std::move(done)](const boost::system::error_code& error) {
          done(error, 0);
        });
  }
  void Read(asio::mutable_buffer into, Done done) override {
    stream_.async_read_some(into, std::move(done));
  }
  void Write(asio::const_buffer from, Done done) override {
    stream_.async_write_some(from, std::move(done));
  }
  void EndWrites(Done done) override {
    stream_.async_shutdown(
        [done = std::move(done)](const boost::system::error_code& error) {
          done(error, 0);
        });
  }
  void Close() override {
    boost::system::error_code ignored;
    stream_.lowest_layer().close(ignored);
  }

 private:
  // Asio's context gives its reference up at its end.
  static ssl_ctx_st* Own(ssl_ctx_st* context) {
    SSL_CTX_up_ref(context);
    return context;
  }

  asio::ssl::context context_;
  asio::ssl::stream<Socket> stream_;
};

}  // namespace

std::unique_ptr<HttpTransport> HttpTransport::Make(Socket socket,
                                                   HttpServer::TlsContext tls) {
  if (tls == nullptr)
    return std::make_unique<PlainTransport>(std::move(socket));
  return std::make_unique<TlsTransport>(std::move(socket), std::move(tls));
}

}  // namespace ringfleet::coordinator
