// SPDX-License-Identifier: Apache-2.0
// Bodies that are taken in pieces, and streams that wait for their client, over
// loopback.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/http/api_error.h"
#include "coordinator/http/http_server.h"
#include "kernels/mutex.h"
#include "tests/testing/http_client.h"
#include "tests/testing/soon.h"

namespace ringfleet::coordinator {
namespace {

using ::testing::HasSubstr;
using testing::HttpClient;
using testing::HttpReply;

constexpr size_t kMostHeld = 100'000;

// Holds up to kMostHeld bytes and the last piece, until the test takes them.
// Answers with the length of a body, or at once to one that begins with "bad".
class HeldSink final : public HttpBodySink, public HttpExchangeListener {
 public:
  HeldSink(std::shared_ptr<HttpExchange> exchange, HttpLoop* loop, bool held)
      : exchange_(std::move(exchange)), loop_(loop), held_(held) {}

  uint64_t most_bytes() const override { return uint64_t{8} << 20; }
  bool Take(std::string bytes) override {
    if (bytes.substr(0, 3) == "bad") {
      exchange_->Respond(ErrorResponse({.status = 400, .message = "bad"}));
      return true;
    }
    MutexLock lock(&mu_);
    total_ += bytes.size();
    waiting_ += bytes.size();
    most_waiting_ = std::max(most_waiting_, waiting_);
    changed_.NotifyAll();
    return !held_ || waiting_ < kMostHeld;
  }
  void OnEnd() override {
    size_t total;
    {
      MutexLock lock(&mu_);
      ended_ = true;
      changed_.NotifyAll();
      total = total_;
    }
    HttpResponse response;
    response.body = absl::StrCat(total);
    exchange_->Respond(std::move(response));
  }
  void OnSilence() override {}
  void OnGone() override {
    MutexLock lock(&mu_);
    gone_ = true;
    changed_.NotifyAll();
  }

  // Waits until the sink is full. Returns false if the body ends instead.
  bool AwaitFull() {
    MutexLock lock(&mu_);
    while (waiting_ < kMostHeld && !ended_ &&
           changed_.WaitUntil(&mu_, testing::Soon().when())) {
    }
    return waiting_ >= kMostHeld;
  }
  bool AwaitGone() {
    MutexLock lock(&mu_);
    while (!gone_ && changed_.WaitUntil(&mu_, testing::Soon().when())) {
    }
    return gone_;
  }
  void TakeHeld() {
    {
      MutexLock lock(&mu_);
      waiting_ = 0;
    }
    loop_->Post([exchange = exchange_] { exchange->ResumeBody(); });
  }
  size_t most_waiting() const {
    MutexLock lock(&mu_);
    return most_waiting_;
  }

 private:
  const std::shared_ptr<HttpExchange> exchange_;
  HttpLoop* const loop_;
  const bool held_;
  mutable Mutex mu_;
  CondVar changed_;
  size_t total_ ABSL_GUARDED_BY(mu_) = 0;
  size_t waiting_ ABSL_GUARDED_BY(mu_) = 0;
  size_t most_waiting_ ABSL_GUARDED_BY(mu_) = 0;
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
  bool gone_ ABSL_GUARDED_BY(mu_) = false;
};

// A stream of pieces, each written when the one before is sent.
class PacedStream final : public HttpExchangeListener,
                          public std::enable_shared_from_this<PacedStream> {
 public:
  static constexpr int kPieces = 40;
  static constexpr size_t kPiece = 200'000;

  explicit PacedStream(std::shared_ptr<HttpExchange> exchange)
      : exchange_(std::move(exchange)) {}

  void Begin() {
    self_ = shared_from_this();
    exchange_->SetListener(self_);
    exchange_->BeginStream({});
    exchange_->WriteBulk("begin");
  }
  void OnSilence() override {}
  void OnSent() override {
    if (left_-- > 0) {
      exchange_->WriteBulk(std::string(kPiece, 'x'));
    } else if (exchange_->request().path == "/broken") {
      exchange_->BreakStream("test");
    } else {
      exchange_->EndStream();
      self_.reset();
    }
  }
  void OnGone() override { self_.reset(); }

 private:
  const std::shared_ptr<HttpExchange> exchange_;
  int left_ = kPieces;
  std::shared_ptr<PacedStream> self_;
};

// POST /sink and /held go to sinks, /paced and /broken are streams. Other paths
// answer with their parameter `x`.
class SinkHandler final : public HttpHandler {
 public:
  std::optional<HttpResponse> OnHead(const HttpRequest&,
                                     HttpLogFields*) override {
    return std::nullopt;
  }
  std::shared_ptr<HttpBodySink> OpenBody(
      const std::shared_ptr<HttpExchange>& exchange) override {
    const std::string& path = exchange->request().path;
    if (path == "/answered") {
      exchange->Respond({.status = 429});
      return nullptr;
    }
    if (path != "/sink" && path != "/held") return nullptr;
    auto sink = std::make_shared<HeldSink>(exchange, loop, path == "/held");
    exchange->SetListener(sink);
    MutexLock lock(&mu_);
    sink_ = sink;
    changed_.NotifyAll();
    return sink;
  }
  void OnRequest(std::shared_ptr<HttpExchange> exchange) override {
    const std::string& path = exchange->request().path;
    if (path == "/paced" || path == "/broken") {
      return std::make_shared<PacedStream>(std::move(exchange))->Begin();
    }
    HttpResponse response;
    response.body = exchange->request().Parameter("x").value_or("none");
    exchange->Respond(std::move(response));
  }
  void AddHeaders(const HttpRequest&, HttpResponse*) override {}

  std::shared_ptr<HeldSink> AwaitSink() {
    MutexLock lock(&mu_);
    while (sink_ == nullptr) {
      if (!changed_.WaitUntil(&mu_, testing::Soon().when())) return nullptr;
    }
    return std::exchange(sink_, nullptr);
  }

  HttpLoop* loop = nullptr;

 private:
  Mutex mu_;
  CondVar changed_;
  std::shared_ptr<HeldSink> sink_ ABSL_GUARDED_BY(mu_);
};

class BodySinkTest : public ::testing::Test {
 protected:
  void Start(HttpLimits limits = {}) {
    limits.body_bytes = 1'000'000;  // A sink has a limit of its own.
    auto server = HttpServer::Listen({"127.0.0.1", 0}, limits, nullptr);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    handler_.loop = server_->loop();
    server_->Run(&handler_);
  }
  void TearDown() override {
    if (server_ != nullptr) server_->Stop(absl::ZeroDuration());
  }
  int port() const { return server_->port(); }
  static std::string Head(absl::string_view path, absl::string_view fields) {
    return absl::StrCat("POST ", path, " HTTP/1.1\r\nHost: a\r\n", fields,
                        "\r\n\r\n");
  }

  SinkHandler handler_;
  std::unique_ptr<HttpServer> server_;
};

TEST_F(BodySinkTest, TakesBodiesOfAnyFramingAndKeepsTheConnection) {
  Start();
  HttpClient client(port());
  EXPECT_EQ(client.Call("POST", "/sink", std::string(5'000'000, 'x')).body,
            "5000000");
  EXPECT_EQ(client.Call("POST", "/sink").body, "0");
  ASSERT_TRUE(client.Send(Head("/sink", "Transfer-Encoding: chunked") +
                          "3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"));
  EXPECT_EQ(client.Read().body, "5");
  EXPECT_EQ(client.Call("GET", "/?y=1&x=a%2fb+c").body, "a/b c");
}

// A sink that is full stops its client, and nobody else.
TEST_F(BodySinkTest, AFullSinkHoldsItsClientBack) {
  Start();
  HttpClient client(port());
  const std::string body(6'000'000, 'x');
  std::thread sender([&] { client.SendRequest("POST", "/held", body); });
  const auto sink = handler_.AwaitSink();
  ASSERT_NE(sink, nullptr);
  while (sink->AwaitFull()) {
    EXPECT_EQ(HttpClient(port()).Call("GET", "/?x=on").body, "on");
    sink->TakeHeld();
  }
  sender.join();
  EXPECT_EQ(client.Read().body, "6000000");
  // A parse sees what was read before, and one more read.
  EXPECT_LE(sink->most_waiting(), kMostHeld + 130'000);
}

TEST_F(BodySinkTest, TooLongBodiesAreRefused) {
  HttpLimits limits;
  limits.linger = absl::Milliseconds(100);
  Start(limits);
  HttpClient announced(port());
  ASSERT_TRUE(announced.Send(
      Head("/sink", "Expect: 100-continue\r\nContent-Length: 8388609")));
  EXPECT_EQ(announced.Read().status, 413);
  EXPECT_TRUE(handler_.AwaitSink()->AwaitGone());
  HttpClient chunked(port());
  const std::string chunk =
      absl::StrCat("100000\r\n", std::string(1 << 20, 'x'), "\r\n");
  chunked.Send(Head("/sink", "Transfer-Encoding: chunked"));
  for (int i = 0; i < 8; ++i) ASSERT_TRUE(chunked.Send(chunk));
  chunked.Send("1\r\nx\r\n");
  const HttpReply reply = chunked.Read();
  EXPECT_EQ(reply.status, 413);
  EXPECT_THAT(reply.body, HasSubstr("want at most 8388608 bytes"));
  EXPECT_TRUE(handler_.AwaitSink()->AwaitGone());
}

TEST_F(BodySinkTest, ASinkLearnsOfClientsThatLeaveOrAreSlow) {
  HttpLimits limits;
  limits.body = absl::Milliseconds(100);
  limits.linger = absl::Milliseconds(10);
  Start(limits);
  std::shared_ptr<HeldSink> sink;
  {
    HttpClient client(port());
    ASSERT_TRUE(client.Send(Head("/sink", "Content-Length: 10") + "abc"));
    sink = handler_.AwaitSink();
  }
  EXPECT_TRUE(sink->AwaitGone());
  HttpClient slow(port());
  ASSERT_TRUE(slow.Send(Head("/sink", "Content-Length: 10") + "abc"));
  EXPECT_EQ(slow.Read().status, 408);
  EXPECT_TRUE(handler_.AwaitSink()->AwaitGone());
  // Here the server is slow.
  HttpClient held(port());
  ASSERT_TRUE(held.Send(Head("/held", "Content-Length: 200000") +
                        std::string(150'000, 'x')));
  EXPECT_EQ(held.Read().status, 503);
  EXPECT_TRUE(handler_.AwaitSink()->AwaitGone());
  HttpClient malformed(port());
  ASSERT_TRUE(malformed.Send(Head("/sink", "Transfer-Encoding: chunked") +
                             "3\r\nabcde\r\n"));
  EXPECT_EQ(malformed.Read().status, 400);
  EXPECT_TRUE(handler_.AwaitSink()->AwaitGone());
}

TEST_F(BodySinkTest, ASinkMayAnswerBeforeTheBodyHasCome) {
  HttpLimits limits;
  limits.linger = absl::Milliseconds(100);
  Start(limits);
  for (const char* const path : {"/sink", "/answered"}) {
    HttpClient client(port());
    ASSERT_TRUE(client.Send(Head(path, "Content-Length: 1000") + "bad"));
    HttpReply reply = client.Read();
    EXPECT_EQ(reply.status, path[1] == 's' ? 400 : 429);
    EXPECT_EQ(reply.headers["connection"], "close");
    EXPECT_EQ(client.ReadToEnd(), "");
  }
}

TEST_F(BodySinkTest, AStreamGoesOnWhenItsClientHasTakenAPiece) {
  Start();
  HttpClient client(port());
  const HttpReply reply = client.Call("GET", "/paced");
  EXPECT_TRUE(reply.whole);
  EXPECT_EQ(reply.body.size(), 5 + PacedStream::kPieces * PacedStream::kPiece);
  EXPECT_FALSE(HttpClient(port()).Call("GET", "/broken").whole);
  // The response to HEAD is a head.
  ASSERT_TRUE(client.SendRequest("HEAD", "/paced"));
  EXPECT_EQ(client.Read(/*head_only=*/true).status, 200);
  EXPECT_EQ(client.Call("GET", "/?x=next").body, "next");
}

}  // namespace
}  // namespace ringfleet::coordinator
