// SPDX-License-Identifier: Apache-2.0
#include "coordinator/http/http_connection.h"

#include <algorithm>
#include <boost/asio/post.hpp>
#include <limits>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cluster/process/log.h"
#include "coordinator/http/api_error.h"

namespace ringfleet::coordinator {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;

// Bytes of one read: heads and short bodies, and long bodies.
constexpr size_t kSmallRead = size_t{4} << 10;
constexpr size_t kLargeRead = size_t{64} << 10;
// Unparsed bytes: those of a next request wait while a response is made.
constexpr size_t kMaxUnparsed = size_t{64} << 10;
constexpr size_t kMaxLoggedPath = 100;

std::chrono::nanoseconds Nanos(absl::Duration duration) {
  return absl::ToChronoNanoseconds(duration);
}

// A path is text from outside: a log line has no room for all of it.
std::string LoggedPath(absl::string_view path) {
  std::string out(path.substr(0, kMaxLoggedPath));
  for (char& c : out) {
    if (!absl::ascii_isgraph(static_cast<unsigned char>(c))) c = '?';
  }
  return out.empty() ? "-" : out;
}

}  // namespace

class HttpConnection::Exchange final : public HttpExchange {
 public:
  explicit Exchange(HttpConnection* connection) : connection_(connection) {}

  const HttpRequest& request() const override { return request_; }
  HttpLogFields& log() override { return log_; }
  absl::Duration age() const override {
    return absl::FromChrono(Clock::now() - begun_);
  }
  void Respond(HttpResponse response) override {
    if (connection_ != nullptr) connection_->Respond(std::move(response));
  }
  void BeginStream(HttpResponse head) override {
    if (connection_ != nullptr) connection_->BeginStream(std::move(head));
  }
  void Write(absl::string_view bytes) override {
    if (connection_ != nullptr) connection_->WriteStream(bytes);
  }
  void WriteBulk(absl::string_view bytes) override {
    if (connection_ == nullptr) return;
    connection_->bulk_bytes_ += bytes.size();
    connection_->WriteStream(bytes);
  }
  void EndStream() override {
    if (connection_ != nullptr) connection_->EndStream();
  }
  void BreakStream(absl::string_view why) override {
    if (connection_ != nullptr) connection_->Close(why);
  }
  void ResumeBody() override {
    if (connection_ != nullptr) connection_->ResumeBody();
  }
  void SetListener(std::weak_ptr<HttpExchangeListener> listener) override {
    listener_ = std::move(listener);
  }

  // The response is complete, or its client has gone.
  void Leave() { connection_ = nullptr; }

  HttpRequest request_;
  HttpLogFields log_;
  Clock::time_point begun_ = Clock::now();
  std::weak_ptr<HttpExchangeListener> listener_;

 private:
  HttpConnection* connection_;  // Null after Leave.
};

HttpConnection::HttpConnection(HttpConnections* owner,
                               HttpTransport::Socket socket,
                               HttpServer::TlsContext tls)
    : owner_(owner),
      transport_(HttpTransport::Make(std::move(socket), std::move(tls))),
      timer_(transport_->executor()) {}

void HttpConnection::Start(HttpConnections* owner, HttpTransport::Socket socket,
                           HttpServer::TlsContext tls) {
  const std::shared_ptr<HttpConnection> connection(
      new HttpConnection(owner, std::move(socket), std::move(tls)));
  connection->self_ = owner->all.insert(owner->all.end(), connection);
  connection->WaitForClient(State::kHandshake, owner->limits.head);
  connection->transport_->Handshake(
      [connection](const boost::system::error_code& error, size_t) {
        if (connection->closed_) return;
        if (error) return connection->Close("handshake failed");
        connection->WaitForClient(State::kIdle,
                                  connection->owner_->limits.idle);
        connection->Read();
      });
}

void HttpConnection::Close(absl::string_view why) {
  if (closed_) return;
  closed_ = true;
  const auto keep = shared_from_this();
  EndBody();
  if (waiting_.has_value()) owner_->waiting.erase(*waiting_);
  waiting_.reset();
  owner_->all.erase(self_);
  timer_.cancel();
  transport_->Close();
  if (exchange_ == nullptr) return;
  const auto exchange = std::move(exchange_);
  exchange->Leave();
  if (state_ == State::kAnswering) {
    exchange_ = exchange;
    LogRequest(why);
    exchange_.reset();
  }
  if (const auto listener = exchange->listener_.lock()) listener->OnGone();
}

void HttpConnection::CloseWhenSent(bool await_request) {
  keep_alive_ = false;
  if (await_request && ExpectsRequest()) return;
  if (queued_.empty() && !writing_) Close("the server ends");
}

void HttpConnection::WaitForClient(State state, absl::Duration duration) {
  state_ = state;
  auto& waiting = owner_->waiting;
  if (!waiting_.has_value()) {
    waiting_ = waiting.insert(waiting.end(), this);
  } else if (state == State::kIdle) {
    waiting.splice(waiting.end(), waiting, *waiting_);
  }
  SetDeadline(Clock::now() + Nanos(duration));
}

void HttpConnection::Read() {
  if (reading_ || closed_ || unparsed_.size() >= kMaxUnparsed) return;
  reading_ = true;
  const size_t bytes = state_ == State::kBody ? kLargeRead : kSmallRead;
  if (std::exchange(chunk_bytes_, bytes) != bytes) {
    chunk_.reset(new char[bytes]);
  }
  transport_->Read(
      asio::buffer(chunk_.get(), chunk_bytes_),
      [self = shared_from_this()](const boost::system::error_code& error,
                                  size_t got) { self->OnRead(error, got); });
}

void HttpConnection::OnRead(const boost::system::error_code& error,
                            size_t bytes) {
  reading_ = false;
  if (closed_) return;
  if (error) return Close("client left");
  if (state_ != State::kClosing) {
    unparsed_.append(chunk_.get(), bytes);
    Advance();
  }
  Read();
}

void HttpConnection::Advance() {
  while (!closed_ && Parse()) {
  }
}

bool HttpConnection::Parse() {
  if (state_ == State::kIdle) {
    // The response to the last request is sent first, so that a client that
    // does not read can ask for no more.
    if (unparsed_.empty() || writing_ || !queued_.empty()) return false;
    parser_.emplace();
    parser_->header_limit(static_cast<uint32_t>(owner_->limits.head_bytes));
    // The limit depends on the path, so OnHead and CountBody check it.
    parser_->body_limit(std::numeric_limits<uint64_t>::max());
    WaitForClient(State::kHead, owner_->limits.head);
  }
  if (state_ != State::kHead && state_ != State::kBody) return false;
  if (sink_full_) return false;
  boost::system::error_code error;
  const size_t used = parser_->put(asio::buffer(unparsed_), error);
  unparsed_.erase(0, used);
  if (error == http::error::need_more) {
    // The parser wants a head, or the line before a chunk, in one piece.
    if (unparsed_.size() < kMaxUnparsed) {
      if (state_ == State::kBody) CountBody();
      return false;
    }
    Refuse(400, "a line of the request is too long");
    return false;
  }
  if (error == http::error::header_limit) {
    Refuse(431, absl::StrCat("the head of the request is too long, want at "
                             "most ",
                             owner_->limits.head_bytes, " bytes"));
    return false;
  }
  if (error) {
    Refuse(400, absl::StrCat("not an HTTP/1.1 request: ", error.message()));
    return false;
  }
  if (state_ == State::kHead && parser_->is_header_done()) {
    if (!OnHead()) return false;
    parser_->eager(true);
  }
  if (state_ == State::kBody && !CountBody()) return false;
  if (state_ == State::kBody && parser_->is_done() && !sink_full_) {
    OnBody();
    return false;
  }
  return used > 0 && !unparsed_.empty();
}

bool HttpConnection::TakeHead(HttpRequest* request) {
  const auto& head = parser_->get();
  const auto text = [](boost::beast::string_view view) {
    return std::string(view.data(), view.size());
  };
  request->method = text(head.method_string());
  request->path = text(head.target());
  // A proxy's client sends http://HOST/PATH.
  if (const size_t scheme = request->path.find("://");
      scheme != std::string::npos && !absl::StartsWith(request->path, "/")) {
    const size_t slash = request->path.find('/', scheme + 3);
    request->path =
        slash == std::string::npos ? "/" : request->path.substr(slash);
  }
  if (const size_t mark = request->path.find('?'); mark != std::string::npos) {
    request->query = request->path.substr(mark + 1);
    request->path.resize(mark);
  }
  for (const auto& field : head) {
    request->headers.push_back(
        {text(field.name_string()), text(field.value())});
  }
  request->id = RequestIdOf(*request);
  return absl::StartsWith(request->path, "/") || request->path == "*";
}

bool HttpConnection::OnHead() {
  exchange_ = std::make_shared<Exchange>(this);
  HttpRequest& request = exchange_->request_;
  http_1_0_ = parser_->get().version() < 11;
  keep_alive_ = parser_->keep_alive() && !owner_->close_after_responses;
  if (!TakeHead(&request)) {
    Refuse(400, "the target of the request is no path");
    return false;
  }
  if (auto refusal = owner_->handler->OnHead(request, &exchange_->log_);
      refusal.has_value()) {
    state_ = State::kAnswering;
    // The rest of this request must not be taken for a next one.
    if (!parser_->is_done()) keep_alive_ = false;
    Respond(*std::move(refusal));
    return false;
  }
  sink_ = owner_->handler->OpenBody(exchange_);
  if (exchange_ == nullptr) return false;  // It is answered.
  sink_full_ = false;
  passed_bytes_ = 0;
  most_body_bytes_ =
      sink_ != nullptr ? sink_->most_bytes() : owner_->limits.body_bytes;
  if (!CheckLength(parser_->content_length().value_or(0))) return false;
  if (absl::EqualsIgnoreCase(request.Header("expect"), "100-continue") &&
      !parser_->is_done()) {
    queued_ += "HTTP/1.1 100 Continue\r\n\r\n";
    Send();
  }
  WaitForClient(State::kBody, owner_->limits.body);
  return true;
}

bool HttpConnection::CheckLength(uint64_t bytes) {
  if (bytes <= most_body_bytes_) return true;
  Refuse(413, absl::StrCat("the body is too long, want at most ",
                           most_body_bytes_, " bytes"));
  return false;
}

bool HttpConnection::CountBody() {
  const size_t come = parser_->get().body().size();
  if (!CheckLength(passed_bytes_ + come)) return false;
  if (sink_ != nullptr) {
    PassBody();
    return state_ == State::kBody;
  }
  owner_->body_bytes += come - counted_body_;
  counted_body_ = come;
  if (owner_->body_bytes <= owner_->limits.all_body_bytes) return true;
  Refuse(503, "too many long requests arrive at a time; try again later");
  return false;
}

void HttpConnection::PassBody() {
  std::string bytes = std::exchange(parser_->get().body(), {});
  if (bytes.empty()) return;
  const auto sink = sink_;  // Take may answer, which ends the body.
  const uint64_t step = owner_->limits.body_bytes;
  const uint64_t before = passed_bytes_;
  passed_bytes_ += bytes.size();
  if (passed_bytes_ / step > before / step) ExtendBody();
  if (sink->Take(std::move(bytes)) || state_ != State::kBody) return;
  sink_full_ = true;
  ExtendBody();
}

void HttpConnection::ExtendBody() {
  owner_->waiting.splice(owner_->waiting.end(), owner_->waiting, *waiting_);
  SetDeadline(Clock::now() + Nanos(owner_->limits.body));
}

void HttpConnection::ResumeBody() {
  if (state_ != State::kBody || !std::exchange(sink_full_, false)) return;
  ExtendBody();
  // A body that has come as a whole has no more bytes to parse.
  if (parser_->is_done()) return OnBody();
  Advance();
  Read();
}

void HttpConnection::EndBody() {
  owner_->body_bytes -= std::exchange(counted_body_, 0);
  parser_.reset();
  sink_.reset();
}

void HttpConnection::OnBody() {
  exchange_->request_.body = std::move(parser_->get().body());
  parser_.reset();
  owner_->waiting.erase(*waiting_);
  waiting_.reset();
  state_ = State::kAnswering;
  exchange_->begun_ = Clock::now();
  silent_at_ = exchange_->begun_ + Nanos(owner_->limits.silence);
  SetAnsweringDeadline();
  if (const auto sink = std::move(sink_)) {
    sink->OnEnd();
  } else {
    owner_->handler->OnRequest(exchange_);
  }
}

void HttpConnection::Refuse(int status, absl::string_view message) {
  if (exchange_ == nullptr) {
    exchange_ = std::make_shared<Exchange>(this);
    exchange_->request_.id = RequestIdOf({});
  }
  const auto listener = exchange_->listener_.lock();
  ApiError error;
  error.status = status;
  error.message = std::string(message);
  if (status == 503) error.retry_after_s = 1;
  Respond(ErrorResponse(error));
  if (listener != nullptr) listener->OnGone();
}

void HttpConnection::AppendHead(const HttpResponse& head,
                                std::optional<uint64_t> body_bytes) {
  status_ = head.status;
  chunked_ = !body_bytes.has_value() && !http_1_0_;
  absl::StrAppend(&queued_, "HTTP/1.1 ", head.status, " ",
                  ReasonOf(head.status), "\r\n");
  if (!head.content_type.empty()) {
    absl::StrAppend(&queued_, "Content-Type: ", head.content_type, "\r\n");
  }
  for (const HttpHeader& header : head.headers) {
    absl::StrAppend(&queued_, header.name, ": ", header.value, "\r\n");
  }
  if (body_bytes.has_value()) {
    absl::StrAppend(&queued_, "Content-Length: ", *body_bytes, "\r\n");
  } else if (chunked_) {
    queued_ += "Transfer-Encoding: chunked\r\n";
  } else {
    keep_alive_ = false;  // The connection's end ends the body.
  }
  absl::StrAppend(&queued_, "x-request-id: ", exchange_->request_.id,
                  "\r\nConnection: ", keep_alive_ ? "keep-alive" : "close",
                  "\r\n\r\n");
}

bool HttpConnection::has_body() const {
  return exchange_->request_.method != "HEAD";
}

void HttpConnection::Respond(HttpResponse response) {
  // The rest of a body must not be taken for a next request.
  if (state_ != State::kAnswering) keep_alive_ = false;
  state_ = State::kAnswering;
  owner_->handler->AddHeaders(exchange_->request_, &response);
  AppendHead(response, response.body.size());
  if (has_body()) {
    queued_ += response.body;
    body_bytes_ = response.body.size();
  }
  Send();
  EndResponse();
}

void HttpConnection::BeginStream(HttpResponse head) {
  owner_->handler->AddHeaders(exchange_->request_, &head);
  AppendHead(head, head.stream_bytes);
  Send();
}

void HttpConnection::WriteStream(absl::string_view bytes) {
  if (bytes.empty()) return;
  if (!has_body()) return Send();
  const size_t unsent = queued_.size() + sending_.size() - sent_;
  if (unsent + bytes.size() > owner_->limits.queued_bytes + bulk_bytes_) {
    // Later: the caller of this function may be about to write more.
    asio::post(transport_->executor(), [self = shared_from_this()] {
      self->Close("client does not read");
    });
    return;
  }
  body_bytes_ += bytes.size();
  if (chunked_) absl::StrAppend(&queued_, absl::Hex(bytes.size()), "\r\n");
  absl::StrAppend(&queued_, bytes, chunked_ ? "\r\n" : "");
  silent_at_ = Clock::now() + Nanos(owner_->limits.silence);
  Send();
}

void HttpConnection::EndStream() {
  if (chunked_ && has_body()) queued_ += "0\r\n\r\n";
  Send();
  EndResponse();
}

void HttpConnection::LogRequest(absl::string_view end) {
  const HttpRequest& request = exchange_->request_;
  const HttpLogFields& log = exchange_->log_;
  std::string line =
      absl::StrCat("http ", request.id, " ", LoggedPath(request.method), " ",
                   LoggedPath(request.path), " ", status_);
  if (!log.key_name.empty()) absl::StrAppend(&line, " key=", log.key_name);
  if (log.prompt_tokens.has_value()) {
    absl::StrAppend(&line, " prompt=", *log.prompt_tokens,
                    " completion=", log.completion_tokens);
  }
  if (log.first_token.has_value()) {
    absl::StrAppend(&line,
                    absl::StrFormat(" ttft=%.3fs",
                                    absl::ToDoubleSeconds(*log.first_token)));
  }
  absl::StrAppend(
      &line,
      absl::StrFormat(" took=%.3fs", absl::ToDoubleSeconds(exchange_->age())),
      " bytes=", body_bytes_);
  if (!end.empty()) absl::StrAppend(&line, " (", end, ")");
  RF_LOG(kInfo, line);
  owner_->handler->OnEnd(request, status_, exchange_->age());
}

void HttpConnection::EndResponse() {
  LogRequest("");
  has_answered_ = true;
  exchange_->Leave();
  exchange_.reset();
  EndBody();
  status_ = 0;
  body_bytes_ = 0;
  bulk_bytes_ = 0;
  if (!keep_alive_) return SetAnsweringDeadline();  // OnAllSent closes it.
  WaitForClient(State::kIdle, owner_->limits.idle);
}

void HttpConnection::Send() {
  if (writing_ || send_posted_ || closed_) return;
  send_posted_ = true;
  asio::post(transport_->executor(), [self = shared_from_this()] {
    self->send_posted_ = false;
    self->Write();
  });
}

void HttpConnection::Write() {
  if (writing_ || closed_) return;
  if (sent_ == sending_.size()) {
    sending_.clear();
    sent_ = 0;
    if (queued_.size() > kLargeRead) {
      sending_ = std::exchange(queued_, {});  // Memory goes with it.
    } else {
      sending_.swap(queued_);
    }
    if (sending_.empty()) return OnAllSent();
  }
  writing_ = true;
  stalls_at_ = Clock::now() + Nanos(owner_->limits.stall);
  if (state_ == State::kAnswering) SetAnsweringDeadline();
  transport_->Write(
      asio::buffer(sending_.data() + sent_, sending_.size() - sent_),
      [self = shared_from_this()](const boost::system::error_code& error,
                                  size_t bytes) {
        self->OnWritten(error, bytes);
      });
}

void HttpConnection::OnWritten(const boost::system::error_code& error,
                               size_t bytes) {
  writing_ = false;
  if (closed_) return;
  if (error) return Close("client left");
  sent_ += bytes;
  Write();
}

void HttpConnection::OnAllSent() {
  if (state_ == State::kClosing) return;
  if (exchange_ != nullptr) {
    if (const auto listener = exchange_->listener_.lock()) listener->OnSent();
    return;
  }
  if (!keep_alive_) return Linger();
  Advance();  // A request that came meanwhile.
  Read();
}

void HttpConnection::Linger() {
  // Closing at once while bytes of the client are unread would reset the
  // connection, and the client might lose the response.
  WaitForClient(State::kClosing, owner_->limits.linger);
  unparsed_.clear();
  transport_->EndWrites(
      [self = shared_from_this()](const boost::system::error_code&, size_t) {});
  Read();
}

void HttpConnection::SetAnsweringDeadline() {
  const auto never = Clock::time_point::max();
  SetDeadline(std::min(writing_ ? stalls_at_ : never,
                       exchange_ != nullptr ? silent_at_ : never));
}

void HttpConnection::SetDeadline(Clock::time_point when) {
  deadline_ = when;
  if (when < timer_at_) AwaitTimer();
}

void HttpConnection::AwaitTimer() {
  timer_at_ = deadline_;
  if (timer_at_ == Clock::time_point::max()) return;
  timer_.expires_at(timer_at_);
  timer_.async_wait(
      [self = shared_from_this()](const boost::system::error_code& error) {
        if (error || self->closed_) return;
        self->timer_at_ = Clock::time_point::max();
        if (Clock::now() < self->deadline_) return self->AwaitTimer();
        self->OnDeadline();
      });
}

void HttpConnection::OnDeadline() {
  switch (state_) {
    case State::kHandshake:
    case State::kIdle:
    case State::kClosing:
      return Close("idle");
    case State::kBody:
      if (sink_full_) {
        return Refuse(503, "the body is stored too slowly; try again later");
      }
      [[fallthrough]];
    case State::kHead:
      return Refuse(408, "the request did not arrive in time");
    case State::kAnswering:
      break;
  }
  const auto now = Clock::now();
  if (writing_ && now >= stalls_at_) return Close("client does not read");
  if (exchange_ != nullptr && now >= silent_at_) {
    silent_at_ = now + Nanos(owner_->limits.silence);
    SetAnsweringDeadline();
    if (const auto listener = exchange_->listener_.lock()) {
      listener->OnSilence();
    }
    return;
  }
  SetAnsweringDeadline();
}

}  // namespace ringfleet::coordinator
