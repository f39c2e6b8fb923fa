// SPDX-License-Identifier: Apache-2.0
// The server over loopback, with a handler that echoes.
#include "coordinator/http/http_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/http/api_error.h"
#include "kernels/mutex.h"
#include "tests/testing/http_client.h"
#include "tests/testing/soon.h"

namespace ringfleet::coordinator {
namespace {

using ::testing::HasSubstr;
using testing::HttpClient;
using testing::HttpReply;

// GET /echo and POST /echo answer with the body; GET /stream streams until
// the test ends it; /refuse is refused before its body.
class EchoHandler final : public HttpHandler, public HttpExchangeListener {
 public:
  std::optional<HttpResponse> OnHead(const HttpRequest& head,
                                     HttpLogFields*) override {
    if (head.path != "/refuse") return std::nullopt;
    return ErrorResponse({.status = 401, .message = "no"});
  }
  void OnRequest(std::shared_ptr<HttpExchange> exchange) override {
    const HttpRequest& request = exchange->request();
    if (request.path == "/stream") {
      exchange->SetListener(listener_);
      exchange->BeginStream({.content_type = kEventStreamType});
      exchange->Write("data: 1\n\n");
      MutexLock lock(&mu_);
      stream_ = std::move(exchange);
      changed_.NotifyAll();
      return;
    }
    HttpResponse response;
    response.body = request.body.empty() ? request.path : request.body;
    exchange->Respond(std::move(response));
  }
  void AddHeaders(const HttpRequest&, HttpResponse* response) override {
    response->headers.push_back({"X-Test", "yes"});
  }
  void OnSilence() override {
    MutexLock lock(&mu_);
    ++silences_;
    changed_.NotifyAll();
  }
  void OnGone() override {
    MutexLock lock(&mu_);
    gone_ = true;
    changed_.NotifyAll();
  }

  std::shared_ptr<HttpExchange> AwaitStream() {
    MutexLock lock(&mu_);
    while (stream_ == nullptr) {
      if (!changed_.WaitUntil(&mu_, testing::Soon().when())) return nullptr;
    }
    return stream_;
  }
  bool AwaitGone() {
    MutexLock lock(&mu_);
    while (!gone_ && changed_.WaitUntil(&mu_, testing::Soon().when())) {
    }
    return gone_;
  }
  bool AwaitSilence() {
    MutexLock lock(&mu_);
    while (silences_ < 2 && changed_.WaitUntil(&mu_, testing::Soon().when())) {
    }
    return silences_ >= 2;
  }

 private:
  // Servers hold it weakly; the test owns this object.
  const std::shared_ptr<HttpExchangeListener> listener_{
      this, [](HttpExchangeListener*) {}};
  Mutex mu_;
  CondVar changed_;
  std::shared_ptr<HttpExchange> stream_ ABSL_GUARDED_BY(mu_);
  int silences_ ABSL_GUARDED_BY(mu_) = 0;
  bool gone_ ABSL_GUARDED_BY(mu_) = false;
};

class HttpServerTest : public ::testing::Test {
 protected:
  void Start(HttpLimits limits = {}, const std::string& host = "127.0.0.1") {
    auto server = HttpServer::Listen({host, 0}, limits, nullptr);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    server_->Run(&handler_);
  }
  void TearDown() override {
    if (server_ != nullptr) server_->Stop(absl::ZeroDuration());
  }
  int port() const { return server_->port(); }

  EchoHandler handler_;
  std::unique_ptr<HttpServer> server_;
};

TEST_F(HttpServerTest, KeepsConnectionsAndAnswersPipelinedRequestsInOrder) {
  Start();
  HttpClient client(port());
  EXPECT_EQ(client.Call("GET", "/one").body, "/one");
  std::string many;
  for (int i = 0; i < 20; ++i) {
    absl::StrAppend(&many, "GET /", i, "?x=/y HTTP/1.1\r\nHost: a\r\n\r\n");
  }
  ASSERT_TRUE(client.Send(many));
  for (int i = 0; i < 20; ++i) {
    const HttpReply reply = client.Read();
    EXPECT_EQ(reply.body, absl::StrCat("/", i));
    EXPECT_EQ(reply.headers.at("connection"), "keep-alive");
    EXPECT_EQ(reply.headers.at("x-test"), "yes");
  }
}

TEST_F(HttpServerTest, ReadsBodiesOfAnyFraming) {
  Start();
  const std::string body(200'000, 'x');
  HttpClient client(port());
  EXPECT_EQ(client.Call("POST", "/echo", body).body, body);
  ASSERT_TRUE(
      client.Send("POST /e HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: "
                  "chunked\r\n\r\n3;a=b\r\nabc\r\n2\r\nde\r\n0\r\nT: "
                  "v\r\n\r\n"));
  EXPECT_EQ(client.Read().body, "abcde");
  // Byte by byte.
  const std::string slow =
      "POST /e HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nab";
  for (const char c : slow) ASSERT_TRUE(client.Send({&c, 1}));
  EXPECT_EQ(client.Read().body, "ab");
}

TEST_F(HttpServerTest, ExpectIsAnsweredBeforeTheBody) {
  Start();
  HttpClient client(port());
  ASSERT_TRUE(
      client.Send("POST /e HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\n"
                  "Content-Length: 3\r\n\r\n"));
  EXPECT_EQ(client.Read().status, 100);
  ASSERT_TRUE(client.Send("abc"));
  EXPECT_EQ(client.Read().body, "abc");
  // A refused body is not asked for.
  ASSERT_TRUE(
      client.Send("POST /refuse HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\n"
                  "Content-Length: 3\r\n\r\n"));
  const HttpReply refused = client.Read();
  EXPECT_EQ(refused.status, 401);
  EXPECT_EQ(refused.headers.at("connection"), "close");
  EXPECT_EQ(client.ReadToEnd(), "");
}

TEST_F(HttpServerTest, HeadHasTheHeadOnlyAndOldClientsAreServed) {
  Start();
  HttpClient client(port());
  const HttpReply head = client.Call("HEAD", "/long");
  EXPECT_EQ(head.status, 200);
  EXPECT_EQ(head.headers.at("content-length"), "5");
  EXPECT_EQ(client.Call("GET", "/next").body, "/next");
  HttpClient old(port());
  ASSERT_TRUE(old.Send("GET /stream HTTP/1.0\r\n\r\n"));
  const auto stream = handler_.AwaitStream();
  ASSERT_NE(stream, nullptr);
  server_->loop()->Post([stream] { stream->EndStream(); });
  const std::string all = old.ReadToEnd();
  EXPECT_THAT(all, HasSubstr("\r\n\r\ndata: 1\n\n"));
  EXPECT_EQ(all.find("chunked"), std::string::npos);
}

TEST_F(HttpServerTest, RequestIdsAreTakenOverOrMade) {
  Start();
  HttpClient client(port());
  EXPECT_EQ(client.Call("GET", "/", "", "X-Request-Id: my-id.1\r\n")
                .headers.at("x-request-id"),
            "my-id.1");
  const std::string made =
      client.Call("GET", "/", "", "X-Request-Id: no spaces\r\n")
          .headers.at("x-request-id");
  EXPECT_THAT(made, HasSubstr("req-"));
  EXPECT_NE(client.Call("GET", "/").headers.at("x-request-id"), made);
}

TEST_F(HttpServerTest, MalformedRequestsAreErrorsAndCloseTheConnection) {
  HttpLimits limits;
  limits.body_bytes = 1000;
  limits.linger = absl::Milliseconds(100);
  Start(limits);
  const std::string get = "GET / HTTP/1.1\r\nHost: a\r\n";
  const std::string post = "POST / HTTP/1.1\r\nHost: a\r\n";
  const std::string chunked = post + "Transfer-Encoding: chunked\r\n\r\n";
  const std::pair<std::string, int> cases[] = {
      {"nonsense\r\n\r\n", 400},
      {"GET nopath HTTP/1.1\r\nHost: a\r\n\r\n", 400},
      {"GET / HTTP/9.9\r\n\r\n", 400},
      {get + "bad header\r\n\r\n", 400},
      {get + std::string("a: \0\r\n\r\n", 8), 400},
      {get + "a: " + std::string(40'000, 'b') + "\r\n\r\n", 431},
      {"GET /" + std::string(100'000, 'a'), 431},
      {post + "Content-Length: 1001\r\n\r\n", 413},
      {post + "Content-Length: -1\r\n\r\n", 400},
      {post + "Content-Length: 99999999999999999999\r\n\r\n", 400},
      {post + "Content-Length: 3\r\nContent-Length: 4\r\n\r\nabcd", 400},
      {post + "Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n", 400},
      {chunked + "zz\r\n", 400},
      {chunked + "3\r\nabcde\r\n", 400},
      {chunked + "fffffffffffffffff\r\n", 400},
      {chunked + "400\r\n" + std::string(1024, 'a') + "\r\n", 413},
      {chunked + "1;" + std::string(100'000, 'x'), 400},
  };
  for (const auto& [bytes, status] : cases) {
    SCOPED_TRACE(bytes.substr(0, 80));
    HttpClient client(port());
    client.Send(bytes);
    HttpReply reply = client.Read();
    EXPECT_EQ(reply.status, status);
    EXPECT_THAT(reply.body, HasSubstr("{\"error\":{\"message\":"));
    EXPECT_EQ(reply.headers["connection"], "close");
    EXPECT_EQ(client.ReadToEnd(), "");
  }
  EXPECT_EQ(HttpClient(port()).Call("GET", "/still").body, "/still");
}

TEST_F(HttpServerTest, SlowRequestsTimeOutAndIdleConnectionsEnd) {
  HttpLimits limits;
  limits.idle = absl::Milliseconds(80);
  limits.head = absl::Milliseconds(80);
  limits.body = absl::Milliseconds(80);
  limits.linger = absl::Milliseconds(10);
  Start(limits);
  EXPECT_EQ(HttpClient(port()).ReadToEnd(), "");  // Never asks.
  HttpClient head(port());
  head.Send("GET / HT");
  EXPECT_EQ(head.Read().status, 408);
  HttpClient body(port());
  body.Send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nabc");
  EXPECT_EQ(body.Read().status, 408);
}

TEST_F(HttpServerTest, LongBodiesShareALimit) {
  HttpLimits limits;
  limits.all_body_bytes = 1000;
  Start(limits);
  const std::string head =
      "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 600\r\n\r\n";
  HttpClient first(port());
  ASSERT_TRUE(first.Send(head + std::string(500, 'y')));
  HttpReply second;
  do {  // Until the first one's bytes have been read.
    HttpClient client(port());
    client.SendRequest("POST", "/", std::string(600, 'x'));
    second = client.Read();
  } while (second.status == 200);
  EXPECT_EQ(second.status, 503);
  ASSERT_TRUE(first.Send(std::string(100, 'y')));
  EXPECT_EQ(first.Read().body.size(), 600u);
  EXPECT_EQ(HttpClient(port()).Call("POST", "/", std::string(600, 'x')).status,
            200);
}

// Clients that send nothing of what they announce keep nobody out.
TEST_F(HttpServerTest, AnnouncedBodiesTakeNoRoom) {
  HttpLimits limits;
  limits.all_body_bytes = 1000;
  Start(limits);
  const std::string post = "POST / HTTP/1.1\r\nHost: a\r\n";
  std::vector<std::unique_ptr<HttpClient>> slow;
  for (const char* const framing :
       {"Content-Length: 900\r\n\r\nsome",
        "Transfer-Encoding: chunked\r\n\r\n4\r\nsome\r\n"}) {
    for (int i = 0; i < 10; ++i) {
      slow.push_back(std::make_unique<HttpClient>(port()));
      // The answer to the first request shows that this client has been read.
      ASSERT_TRUE(slow.back()->Send(
          absl::StrCat("GET /first HTTP/1.1\r\nHost: a\r\n\r\n", post,
                       "Expect: 100-continue\r\n", framing)));
      EXPECT_EQ(slow.back()->Read().body, "/first");
      EXPECT_EQ(slow.back()->Read().status, 100);
      EXPECT_EQ(
          HttpClient(port()).Call("POST", "/", std::string(600, 'x')).status,
          200);
    }
  }
}

TEST_F(HttpServerTest, NewConnectionsTakeThePlaceOfIdleOnes) {
  HttpLimits limits;
  limits.connections = 4;
  Start(limits);
  HttpClient stream(port());
  stream.SendRequest("GET", "/stream");
  ASSERT_NE(handler_.AwaitStream(), nullptr);
  std::vector<std::unique_ptr<HttpClient>> clients;
  for (int i = 0; i < 20; ++i) {
    clients.push_back(std::make_unique<HttpClient>(port()));
    EXPECT_EQ(clients.back()->Call("GET", "/x").status, 200);
  }
  EXPECT_EQ(clients[0]->ReadToEnd(), "");
  EXPECT_TRUE(stream.ReadUntil("data: 1"));
}

TEST_F(HttpServerTest, ADisconnectIsNoticedWhileAResponseIsMade) {
  Start();
  {
    HttpClient client(port());
    client.SendRequest("GET", "/stream");
    ASSERT_TRUE(client.ReadUntil("data: 1"));
  }
  EXPECT_TRUE(handler_.AwaitGone());
  // Writes to a client that has gone do nothing.
  const auto stream = handler_.AwaitStream();
  server_->loop()->Post([stream] {
    stream->Write("data: 2\n\n");
    stream->EndStream();
  });
  EXPECT_EQ(HttpClient(port()).Call("GET", "/on").body, "/on");
}

TEST_F(HttpServerTest, AClientThatDoesNotReadIsCutOff) {
  Start();
  HttpClient client(port());
  client.SendRequest("GET", "/stream");
  const auto stream = handler_.AwaitStream();
  ASSERT_NE(stream, nullptr);
  // Far more than the kernel's buffers and the queue hold.
  for (int i = 0; i < 2000; ++i) {
    server_->loop()->Post(
        [stream] { stream->Write(std::string(16'000, 'x')); });
  }
  EXPECT_TRUE(handler_.AwaitGone());
}

TEST_F(HttpServerTest, SilenceIsTold) {
  HttpLimits limits;
  limits.silence = absl::Milliseconds(20);
  Start(limits);
  HttpClient client(port());
  client.SendRequest("GET", "/stream");
  EXPECT_TRUE(handler_.AwaitSilence());
}

TEST_F(HttpServerTest, EndsInOrder) {
  HttpLimits limits;
  limits.linger = absl::Milliseconds(10);
  Start(limits);
  HttpClient client(port());
  EXPECT_EQ(client.Call("GET", "/a").headers.at("connection"), "keep-alive");
  client.SendRequest("GET", "/stream");
  const auto stream = handler_.AwaitStream();
  server_->CloseAfterResponses();
  EXPECT_EQ(HttpClient(port()).Call("GET", "/b").headers.at("connection"),
            "close");
  server_->loop()->Post([stream] {
    stream->Write("data: last\n\n");
    stream->EndStream();
  });
  ASSERT_TRUE(client.ReadUntil("data: last"));
  server_->Stop(absl::Seconds(30));
  EXPECT_THAT(client.ReadToEnd(), HasSubstr("0\r\n\r\n"));
}

// A proxy's request that finds the port open must not be lost.
TEST_F(HttpServerTest, AnswersRequestsThatAreOnTheirWayAtTheEnd) {
  HttpLimits limits;
  limits.last_request = absl::Hours(1);
  limits.linger = absl::Milliseconds(10);
  auto server = HttpServer::Listen({"127.0.0.1", 0}, limits, nullptr);
  ASSERT_TRUE(server.ok()) << server.status();
  server_ = *std::move(server);
  // Connections that nobody has accepted: with a request, with the half of
  // one, and without.
  std::vector<HttpClient> whole;
  for (int i = 0; i < 5; ++i) {
    whole.emplace_back(port());
    ASSERT_TRUE(whole.back().SendRequest("GET", "/whole"));
  }
  HttpClient half(port()), silent(port());
  ASSERT_TRUE(half.Send("POST /half HTTP/1.1\r\nContent-Length: 4\r\n"));
  server_->Run(&handler_);
  std::thread end([this] { server_->Stop(absl::Seconds(60)); });
  for (HttpClient& client : whole) EXPECT_EQ(client.Read().body, "/whole");
  EXPECT_TRUE(half.Send("Host: a\r\n\r\nhalf"));
  EXPECT_EQ(half.Read().body, "half");
  // A connection that has its answer is kept until the end begins.
  const auto deadline = testing::Soon();
  while (whole[0].Call("GET", "/whole").headers["connection"] == "keep-alive" &&
         !deadline.Expired()) {
  }
  HttpReply last = silent.Call("GET", "/silent");
  EXPECT_EQ(last.body, "/silent");
  EXPECT_EQ(last.headers["connection"], "close");
  EXPECT_EQ(silent.ReadToEnd(), "");
  end.join();
}

TEST_F(HttpServerTest, ListensOnIpv6) {
  const auto server = HttpServer::Listen({"::1", 0}, {}, nullptr);
  if (!server.ok()) GTEST_SKIP() << server.status();
  EXPECT_GT((*server)->port(), 0);
}

TEST_F(HttpServerTest, RandomBytesHarmNothing) {
  HttpLimits limits;
  limits.linger = absl::Milliseconds(10);
  limits.head = absl::Milliseconds(200);
  limits.body = absl::Milliseconds(200);
  Start(limits);
  std::mt19937 random(1);
  const std::string seed =
      "POST /e HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\n"
      "abc\r\n0\r\n\r\nGET /x HTTP/1.1\r\nContent-Length: 2\r\n\r\nab";
  for (int i = 0; i < 300; ++i) {
    std::string bytes = seed;
    for (int k = 0; k < 4; ++k) {
      bytes[random() % bytes.size()] = static_cast<char>(random());
    }
    HttpClient(port()).Send(bytes);
  }
  EXPECT_EQ(HttpClient(port()).Call("GET", "/still").body, "/still");
}

}  // namespace
}  // namespace ringfleet::coordinator
