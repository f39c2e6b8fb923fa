// SPDX-License-Identifier: Apache-2.0
// One connection of a client: reads requests, sends responses in their order.
// Only the files of the server include this: it brings Beast.
//
//   handshake -> idle -> head -> body -> answering -> idle ... -> closing
//
// A read is pending in every state, so that a client that leaves is noticed
// while its response is made. Bytes of a next request wait in the buffer.
#ifndef RINGFLEET_COORDINATOR_HTTP_HTTP_CONNECTION_H_
#define RINGFLEET_COORDINATOR_HTTP_HTTP_CONNECTION_H_

#include <boost/asio/buffer.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/http/basic_parser.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/optional.hpp>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "coordinator/http/http_exchange.h"
#include "coordinator/http/http_server.h"
#include "coordinator/http/http_transport.h"

namespace ringfleet::coordinator {

class HttpConnection;

// Text of a body. Takes memory for bytes that have come, whatever length the
// head announces.
struct ArrivingBody {
  using value_type = std::string;

  class reader {
   public:
    template <typename Head>
    reader(Head&, value_type& body) : body_(body) {}
    void init(const boost::optional<uint64_t>&,
              boost::system::error_code& error) {
      error = {};
    }
    template <typename Buffers>
    size_t put(const Buffers& buffers, boost::system::error_code& error) {
      error = {};
      const size_t before = body_.size();
      for (auto it = boost::asio::buffer_sequence_begin(buffers);
           it != boost::asio::buffer_sequence_end(buffers); ++it) {
        const boost::asio::const_buffer piece = *it;
        body_.append(static_cast<const char*>(piece.data()), piece.size());
      }
      return body_.size() - before;
    }
    void finish(boost::system::error_code& error) { error = {}; }

   private:
    value_type& body_;
  };
};

// State that the connections of a server share. For the I/O thread.
struct HttpConnections {
  HttpLimits limits;
  HttpHandler* handler = nullptr;
  bool close_after_responses = false;
  // Bytes that have come of bodies whose responses have not ended.
  size_t body_bytes = 0;
  std::list<std::shared_ptr<HttpConnection>> all;
  // Those that wait for their client, longest first.
  std::list<HttpConnection*> waiting;
};

// For the I/O thread.
class HttpConnection final
    : public std::enable_shared_from_this<HttpConnection> {
 public:
  using Clock = std::chrono::steady_clock;

  // Adds a connection to `owner->all` and begins to read.
  static void Start(HttpConnections* owner, HttpTransport::Socket socket,
                    HttpServer::TlsContext tls);

  // Ends the connection. The client of a response that is not complete is
  // told to have left. Later calls do nothing.
  void Close(absl::string_view why);
  // Closes once everything queued is sent. With `await_request` the connection
  // stays while a request may be on its way: before the first one ends, or in
  // the middle of one.
  void CloseWhenSent(bool await_request);

 private:
  class Exchange;
  enum class State { kHandshake, kIdle, kHead, kBody, kAnswering, kClosing };
  using Parser = boost::beast::http::request_parser<ArrivingBody>;

  HttpConnection(HttpConnections* owner, HttpTransport::Socket socket,
                 HttpServer::TlsContext tls);

  // Returns true before the first request ends, and in the middle of one.
  bool ExpectsRequest() const {
    return state_ == State::kHandshake || state_ == State::kHead ||
           state_ == State::kBody || (state_ == State::kIdle && !has_answered_);
  }
  // Enters a state in which the client has `duration` to go on.
  void WaitForClient(State state, absl::Duration duration);
  void Read();
  void OnRead(const boost::system::error_code& error, size_t bytes);
  // Parses what was read, as far as the state allows.
  void Advance();
  // Parses once. Returns whether to go on.
  bool Parse();
  // Each returns false if the request was refused.
  bool OnHead();
  bool CountBody();
  bool CheckLength(uint64_t most);
  bool TakeHead(HttpRequest* request);
  // Passes what has come to the sink.
  void PassBody();
  // Gives the client of a streamed body time for its next part.
  void ExtendBody();
  void ResumeBody();
  void OnBody();
  void Refuse(int status, absl::string_view message);
  void EndBody();

  // For the exchange.
  void Respond(HttpResponse response);
  void BeginStream(HttpResponse head);
  void WriteStream(absl::string_view bytes);
  void EndStream();
  bool has_body() const;  // A response to HEAD has none.
  void EndResponse();
  void AppendHead(const HttpResponse& head, std::optional<uint64_t> body_bytes);
  void LogRequest(absl::string_view end);

  void Send();   // Soon, together with what else is queued until then.
  void Write();  // Sends queued bytes.
  void OnWritten(const boost::system::error_code& error, size_t bytes);
  void OnAllSent();
  void Linger();

  void SetDeadline(Clock::time_point when);
  void SetAnsweringDeadline();
  void AwaitTimer();
  void OnDeadline();

  HttpConnections* const owner_;
  const std::unique_ptr<HttpTransport> transport_;
  std::list<std::shared_ptr<HttpConnection>>::iterator self_;
  State state_ = State::kHandshake;
  bool closed_ = false;
  std::optional<std::list<HttpConnection*>::iterator> waiting_;

  // A read fills `chunk_`, also while a response is made. Its bytes wait in
  // `unparsed_`.
  std::unique_ptr<char[]> chunk_;
  size_t chunk_bytes_ = 0;
  std::string unparsed_;
  bool reading_ = false;
  std::optional<Parser> parser_;
  size_t counted_body_ = 0;             // In owner_->body_bytes.
  std::shared_ptr<HttpBodySink> sink_;  // Null: the body is collected.
  bool sink_full_ = false;
  uint64_t most_body_bytes_ = 0;
  uint64_t passed_bytes_ = 0;  // To the sink.
  bool keep_alive_ = true;     // After this response.
  bool http_1_0_ = false;
  bool chunked_ = false;  // The body of the response.
  bool has_answered_ = false;

  std::shared_ptr<Exchange> exchange_;  // From the head to the response's end.
  int status_ = 0;
  size_t body_bytes_ = 0;

  std::string queued_, sending_;
  size_t sent_ = 0;        // A first part of sending_.
  size_t bulk_bytes_ = 0;  // This stream's, beyond queued_bytes.
  bool writing_ = false;
  bool send_posted_ = false;
  Clock::time_point stalls_at_, silent_at_;

  boost::asio::steady_timer timer_;
  Clock::time_point deadline_ = Clock::time_point::max();
  Clock::time_point timer_at_ = Clock::time_point::max();
};

}  // namespace ringfleet::coordinator

#endif  // RINGFLEET_COORDINATOR_HTTP_HTTP_CONNECTION_H_
