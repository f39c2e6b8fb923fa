// SPDX-License-Identifier: Apache-2.0
#include "coordinator/cli/chat/http_backend.h"

#include <openssl/ssl.h>

#include <boost/asio/connect.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/ssl/host_name_verification.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http.hpp>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "cluster/process/deadline.h"
#include "cluster/process/status_macros.h"
#include "coordinator/cli/interrupt.h"

namespace ringfleet::coordinator::cli {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using boost::system::error_code;
using tcp = asio::ip::tcp;

constexpr std::chrono::milliseconds kStopLook{50};
// For the connection and the request. An answer may take any time.
constexpr absl::Duration kApiConnectTime = absl::Seconds(30);
constexpr uint64_t kMaxAnswerBytes = uint64_t{1} << 30;
constexpr size_t kMaxErrorBytes = size_t{1} << 20;

// One request and its response. Runs on the caller's thread, which looks for a
// stop while it waits.
class ApiCall {
 public:
  ApiCall(const ApiUrl& url, const std::atomic<bool>& stopped)
      : url_(url), stopped_(stopped) {}

  absl::Status Connect();
  absl::Status Send(const std::string& key, std::string body);
  // Reads the answer to a request that was sent.
  absl::Status Receive(ChatEvents* events);

 private:
  // Starts an operation, which calls its argument with the result, and waits
  // for its end.
  template <typename Start>
  absl::Status Await(const char* what, cluster::Deadline deadline,
                     const Start& start);
  void Close() {
    error_code ignored;
    socket().close(ignored);
  }
  tcp::socket& socket() { return tls_ ? tls_->next_layer() : *plain_; }
  // Calls `use` with the stream of the connection.
  template <typename Use>
  void WithStream(const Use& use) {
    if (tls_ != nullptr) {
      use(*tls_);
    } else {
      use(*plain_);
    }
  }

  const ApiUrl& url_;
  const std::atomic<bool>& stopped_;
  asio::io_context io_{1};
  asio::ssl::context tls_context_{asio::ssl::context::tls_client};
  std::unique_ptr<tcp::socket> plain_ = std::make_unique<tcp::socket>(io_);
  std::unique_ptr<asio::ssl::stream<tcp::socket>> tls_;
  boost::beast::flat_buffer buffer_;
};

template <typename Start>
absl::Status ApiCall::Await(const char* what, cluster::Deadline deadline,
                            const Start& start) {
  std::optional<error_code> result;
  start([&result](const error_code& error, auto&&...) { result = error; });
  io_.restart();
  absl::Status ended;
  while (!result.has_value()) {
    io_.run_one_for(kStopLook);
    if (!ended.ok()) continue;
    ended = Interrupt::Get().status();
    if (ended.ok() && stopped_) ended = absl::CancelledError("stopped");
    if (ended.ok() && deadline.Expired()) {
      ended = absl::UnavailableError(
          absl::StrCat("server ", url_.authority, ": ", what,
                       " takes longer "
                       "than ",
                       absl::FormatDuration(kApiConnectTime)));
    }
    if (!ended.ok()) Close();
  }
  RF_RETURN_IF_ERROR(ended);
  if (!*result) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("server ", url_.authority, ": ",
                                             what, ": ", result->message()));
}

absl::Status ApiCall::Connect() {
  const cluster::Deadline deadline = cluster::Deadline::After(kApiConnectTime);
  tcp::resolver resolver(io_);
  tcp::resolver::results_type places;
  RF_RETURN_IF_ERROR(Await("name", deadline, [&](auto done) {
    resolver.async_resolve(
        url_.host, url_.port,
        [&places, done](const error_code& error,
                        const tcp::resolver::results_type& found) mutable {
          places = found;
          done(error);
        });
  }));
  RF_RETURN_IF_ERROR(Await("connection", deadline, [&](auto done) {
    asio::async_connect(*plain_, places, done);
  }));
  error_code ignored;
  plain_->set_option(tcp::no_delay(true), ignored);
  if (!url_.tls) return absl::OkStatus();
  tls_context_.set_default_verify_paths(ignored);
  tls_ = std::make_unique<asio::ssl::stream<tcp::socket>>(std::move(*plain_),
                                                          tls_context_);
  tls_->set_verify_mode(asio::ssl::verify_peer, ignored);
  tls_->set_verify_callback(asio::ssl::host_name_verification(url_.host),
                            ignored);
  SSL_set_tlsext_host_name(tls_->native_handle(), url_.host.c_str());
  return Await("TLS", deadline, [&](auto done) {
    tls_->async_handshake(asio::ssl::stream_base::client, done);
  });
}

absl::Status ApiCall::Send(const std::string& key, std::string body) {
  http::request<http::string_body> request(http::verb::post, url_.target, 11);
  request.set(http::field::host, url_.authority);
  request.set(http::field::content_type, "application/json");
  request.set(http::field::accept, "text/event-stream");
  request.set(http::field::user_agent, "ringfleet");
  if (!key.empty()) {
    request.set(http::field::authorization, absl::StrCat("Bearer ", key));
  }
  request.body() = std::move(body);
  request.prepare_payload();
  return Await(
      "request", cluster::Deadline::After(kApiConnectTime), [&](auto done) {
        WithStream(
            [&](auto& stream) { http::async_write(stream, request, done); });
      });
}

absl::Status ApiCall::Receive(ChatEvents* events) {
  http::response_parser<http::string_body> parser;
  parser.body_limit(kMaxAnswerBytes);
  const auto read = [&](const auto& operation) {
    return Await("answer", cluster::Deadline::Infinite(), [&](auto done) {
      WithStream([&](auto& stream) { operation(stream, done); });
    });
  };
  RF_RETURN_IF_ERROR(read([&](auto& stream, auto done) {
    http::async_read_header(stream, buffer_, parser, done);
  }));
  const auto status = static_cast<int>(parser.get().result_int());
  const bool streams =
      status == 200 &&
      parser.get()[http::field::content_type].starts_with("text/event-stream");
  std::string& body = parser.get().body();
  while (true) {
    if (streams) {
      RF_RETURN_IF_ERROR(events->Add(body));
      body.clear();
      if (events->done()) return absl::OkStatus();
    }
    if (parser.is_done() || body.size() > kMaxErrorBytes) break;
    RF_RETURN_IF_ERROR(read([&](auto& stream, auto done) {
      http::async_read_some(stream, buffer_, parser, done);
    }));
  }
  if (status != 200) return ApiErrorOf(status, body);
  return absl::UnavailableError(
      absl::StrCat("server ", url_.authority,
                   streams ? ": the stream ended early"
                           : ": the answer is no stream of events"));
}

}  // namespace

absl::StatusOr<Generated> HttpBackend::Ask(const v1::GenerateRequest& request,
                                           const OnPiece& on_piece) {
  stopped_ = false;
  Generated generated;
  const absl::Time begin = absl::Now();
  absl::Time first = absl::InfinitePast(), last = begin;
  const OnPiece timed = [&](const AnswerPiece& piece, bool ends) {
    last = absl::Now();
    if (first == absl::InfinitePast()) first = last;
    return on_piece(piece, ends);
  };
  ChatEvents events(timed, &generated);
  ApiCall call(url_, stopped_);
  RF_RETURN_IF_ERROR(call.Connect());
  RF_RETURN_IF_ERROR(call.Send(key_, ChatBodyOf(request, model_)));
  RF_RETURN_IF_ERROR(call.Receive(&events));
  RF_RETURN_IF_ERROR(on_piece({}, /*last=*/true));
  v1::Timings* const timings = generated.finished.mutable_timings();
  if (first == absl::InfinitePast()) first = last;
  timings->set_prompt_ms(absl::ToDoubleMilliseconds(first - begin));
  timings->set_predicted_ms(absl::ToDoubleMilliseconds(last - first));
  return generated;
}

}  // namespace ringfleet::coordinator::cli
