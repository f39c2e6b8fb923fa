// SPDX-License-Identifier: Apache-2.0
#include "cluster/rpc/server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <memory>
#include <string>
#include <thread>

#include "cluster/process/process_limits.h"
#include "protos/health.grpc.pb.h"
#include "tests/testing/connected_channel.h"

namespace ringfleet::cluster {
namespace {

using ::grpc::health::v1::HealthCheckRequest;
using ::grpc::health::v1::HealthCheckResponse;
using ::testing::HasSubstr;

const ServerAddress kAnyPort = {"127.0.0.1", 0};

void NoServices(grpc::ServerBuilder&) {}

void SetDeadline(grpc::ClientContext& context) {
  context.set_deadline(std::chrono::system_clock::now() +
                       std::chrono::seconds(20));
}

class HealthClient {
 public:
  explicit HealthClient(const DaemonServer& server,
                        const std::string& host = "127.0.0.1")
      : stub_(grpc::health::v1::Health::NewStub(
            testing::ConnectedChannel(FormatAddress({host, server.port()})))) {}

  // The answer, or UNKNOWN and the error in `error`.
  HealthCheckResponse::ServingStatus Check(const std::string& service,
                                           grpc::Status* error = nullptr) {
    grpc::ClientContext context;
    SetDeadline(context);
    HealthCheckRequest request;
    request.set_service(service);
    HealthCheckResponse response;
    const grpc::Status status = stub_->Check(&context, request, &response);
    if (error != nullptr) *error = status;
    return response.status();
  }

  grpc::health::v1::Health::Stub& stub() { return *stub_; }

 private:
  std::unique_ptr<grpc::health::v1::Health::Stub> stub_;
};

TEST(ParseAddressTest, ReadsNamesAndBothFamilies) {
  for (const char* text : {"127.0.0.1:50052", "node-3.rack_1.example:1",
                           "localhost:0", "[::1]:65535", "0.0.0.0:80"}) {
    const auto address = ParseAddress(text);
    ASSERT_TRUE(address.ok()) << address.status();
    EXPECT_EQ(FormatAddress(*address), text);
  }
  EXPECT_EQ(ParseAddress("[::1]:7")->host, "::1");
}

TEST(ParseAddressTest, NamesWhatIsWrong) {
  const struct {
    const char* text;
    const char* why;
  } cases[] = {
      {"", "no port"},
      {"localhost", "no port"},
      {":80", "no host"},
      {"::1:80", "needs brackets"},
      {"[::1]", "needs brackets"},
      {"[]:80", "no IPv6 address"},
      {"[127.0.0.1]:80", "no IPv6 address"},
      {"host:", "port \"\""},
      {"host:65536", "port \"65536\""},
      {"host:99999999999999999999", "is not a number of 0 to 65535"},
      {"host:-1", "port \"-1\""},
      {"host:+1", "port \"+1\""},
      {"host: 1", "port \" 1\""},
      {"a b:1", "characters"},
      {"unix:/tmp/x:1", "needs brackets"},
      {"h/x:1", "characters"},
  };
  for (const auto& c : cases) {
    const auto address = ParseAddress(c.text);
    ASSERT_FALSE(address.ok()) << c.text;
    EXPECT_EQ(address.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(address.status().message()), HasSubstr(c.why));
    EXPECT_THAT(std::string(address.status().message()), HasSubstr(c.text));
  }
}

TEST(IsLoopbackTest, OnlyAddressesThatNeverLeaveTheHost) {
  for (const char* host : {"127.0.0.1", "127.9.8.7", "::1", "localhost",
                           "LOCALHOST", "::ffff:127.0.0.1"}) {
    EXPECT_TRUE(IsLoopback(host)) << host;
  }
  for (const char* host :
       {"0.0.0.0", "::", "10.0.0.1", "127.example.com", "128.0.0.1",
        "localhost.example.com", "::2", "::ffff:10.0.0.1", ""}) {
    EXPECT_FALSE(IsLoopback(host)) << host;
  }
}

TEST(IsWildcardTest, InEverySpelling) {
  for (const char* host : {"0.0.0.0", "0", "0.0", "0x0", "::", "0::0",
                           "0:0:0:0:0:0:0:0", "::ffff:0.0.0.0"}) {
    EXPECT_TRUE(IsWildcard(host)) << host;
  }
  for (const char* host : {"127.0.0.1", "10.0.0.0", "::1", "::ffff:10.0.0.1",
                           "localhost", "node0", "1", ""}) {
    EXPECT_FALSE(IsWildcard(host)) << host;
  }
}

TEST(IsAnotherMachineTest, ByItsAddresses) {
  EXPECT_TRUE(IsAnotherMachine("203.0.113.7"));  // TEST-NET-3 (RFC 5737).
  for (const char* host : {"127.0.0.1", "127.3.2.1", "localhost", "0.0.0.0",
                           "no-such-host.invalid"}) {
    EXPECT_FALSE(IsAnotherMachine(host)) << host;
  }
}

TEST(DaemonServerTest, ReportsTheRealPort) {
  const auto server = DaemonServer::Start(kAnyPort, false, NoServices);
  ASSERT_TRUE(server.ok()) << server.status();
  EXPECT_GT((*server)->port(), 0);
}

TEST(DaemonServerTest, RefusesAPortThatAnotherDaemonHas) {
  const auto first = DaemonServer::Start(kAnyPort, false, NoServices);
  ASSERT_TRUE(first.ok()) << first.status();
  const int port = (*first)->port();
  bool registered = false;
  const auto second =
      DaemonServer::Start({"127.0.0.1", port}, false,
                          [&](grpc::ServerBuilder&) { registered = true; });
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.status(),
            absl::UnavailableError("port " + std::to_string(port) +
                                   " on 127.0.0.1 is in use"));
  EXPECT_FALSE(registered);
}

TEST(DaemonServerTest, APortIsFreeAfterShutdown) {
  auto first = DaemonServer::Start(kAnyPort, false, NoServices);
  ASSERT_TRUE(first.ok()) << first.status();
  const int port = (*first)->port();
  EXPECT_EQ(HealthClient(**first).Check(""), HealthCheckResponse::SERVING);
  (*first)->Shutdown(absl::ZeroDuration());
  (*first)->Shutdown(absl::InfiniteDuration());  // The second one does nothing.
  first->reset();
  const auto second =
      DaemonServer::Start({"127.0.0.1", port}, false, NoServices);
  EXPECT_TRUE(second.ok()) << second.status();
}

TEST(DaemonServerTest, OtherHostsNeedInsecure) {
  for (const char* host : {"0.0.0.0", "::", "10.1.2.3"}) {
    const auto server = DaemonServer::Start({host, 0}, false, NoServices);
    ASSERT_FALSE(server.ok());
    EXPECT_EQ(server.status(),
              absl::InvalidArgumentError(std::string("binding ") + host +
                                         " needs --insecure: there is no "
                                         "encryption or authentication"));
  }
  const auto server = DaemonServer::Start({"0.0.0.0", 0}, true, NoServices);
  EXPECT_TRUE(server.ok()) << server.status();
}

TEST(DaemonServerTest, ListensForBothFamiliesOnAnyAddress) {
  const auto server = DaemonServer::Start({"0.0.0.0", 0}, true, NoServices);
  ASSERT_TRUE(server.ok()) << server.status();
  EXPECT_EQ(HealthClient(**server).Check(""), HealthCheckResponse::SERVING);
  const auto six = DaemonServer::Start({"::1", 0}, false, NoServices);
  if (!six.ok()) GTEST_SKIP() << "no IPv6 here: " << six.status();
  EXPECT_EQ(HealthClient(**server, "::1").Check(""),
            HealthCheckResponse::SERVING);
  EXPECT_EQ(HealthClient(**six, "::1").Check(""), HealthCheckResponse::SERVING);
}

TEST(DaemonServerTest, SaysWhyAnAddressCannotBeUsed) {
  // TEST-NET-3 (RFC 5737) is no machine's address.
  const auto foreign =
      DaemonServer::Start({"203.0.113.7", 0}, true, NoServices);
  EXPECT_EQ(foreign.status(),
            absl::InvalidArgumentError(
                "host 203.0.113.7 is not an address of this machine"));
  const auto unknown =
      DaemonServer::Start({"no-such-host.invalid", 0}, true, NoServices);
  EXPECT_EQ(unknown.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(unknown.status().message()),
              HasSubstr("no-such-host.invalid does not resolve"));
}

TEST(DaemonServerTest, HealthFollowsWhatTheDaemonSays) {
  const auto server = DaemonServer::Start(kAnyPort, false, NoServices);
  ASSERT_TRUE(server.ok()) << server.status();
  HealthClient client(**server);
  EXPECT_EQ(client.Check(""), HealthCheckResponse::SERVING);
  (*server)->SetServing("", false);
  EXPECT_EQ(client.Check(""), HealthCheckResponse::NOT_SERVING);

  grpc::Status error;
  client.Check("ringfleet.v1.Worker", &error);
  EXPECT_EQ(error.error_code(), grpc::StatusCode::NOT_FOUND);
  (*server)->SetServing("ringfleet.v1.Worker", true);
  EXPECT_EQ(client.Check("ringfleet.v1.Worker"), HealthCheckResponse::SERVING);
}

// Watch never ends by itself: without the cancellation, Shutdown would hang.
TEST(DaemonServerTest, ShutdownReportsNotServingThenCancels) {
  const auto server = DaemonServer::Start(kAnyPort, false, NoServices);
  ASSERT_TRUE(server.ok()) << server.status();
  HealthClient client(**server);
  grpc::ClientContext context;
  SetDeadline(context);
  const auto watch = client.stub().Watch(&context, HealthCheckRequest());
  HealthCheckResponse response;
  ASSERT_TRUE(watch->Read(&response));
  EXPECT_EQ(response.status(), HealthCheckResponse::SERVING);

  std::thread stopper([&] { (*server)->Shutdown(absl::Milliseconds(200)); });
  ASSERT_TRUE(watch->Read(&response));
  EXPECT_EQ(response.status(), HealthCheckResponse::NOT_SERVING);
  EXPECT_FALSE(watch->Read(&response));
  stopper.join();
  const grpc::StatusCode code = watch->Finish().error_code();
  EXPECT_TRUE(code == grpc::StatusCode::CANCELLED ||
              code == grpc::StatusCode::UNAVAILABLE)
      << code;
}

// Runs in a process of its own: a signal to this one may reach a thread that
// another test's gRPC left behind, which blocks nothing.
TEST(SignalsDeathTest, BlockedSignalsReachTheWaiter) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  for (const int signal : {SIGTERM, SIGINT}) {
    EXPECT_EXIT(
        {
          BlockTerminationSignals();
          int received = 0;
          std::thread waiter([&] { received = WaitForSignal(); });
          if (kill(getpid(), signal) != 0) exit(1);
          waiter.join();
          exit(received == signal ? 0 : 2);
        },
        ::testing::ExitedWithCode(0), "");
  }
}

TEST(ConfigureGrpcProcessTest, KeepsWhatTheUserChose) {
  setenv("GRPC_VERBOSITY", "INFO", 1);
  unsetenv("GRPC_POLL_STRATEGY");
  ConfigureGrpcProcess();
  EXPECT_STREQ(getenv("GRPC_VERBOSITY"), "INFO");
  EXPECT_STREQ(getenv("GRPC_POLL_STRATEGY"), "poll");
  EXPECT_STREQ(getenv("GRPC_EXPERIMENTS"),
               "tcp_frame_size_tuning,tcp_rcv_lowat,-tcp_read_chunks");
}

TEST(ProcessLimitsTest, ChecksAndRaisesTheOpenFiles) {
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit low = before;
  low.rlim_cur = 16;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &low), 0);
  EXPECT_TRUE(CheckOpenFiles(16).ok());
  EXPECT_EQ(CheckOpenFiles(64),
            absl::ResourceExhaustedError("open files: limit 16, want at least "
                                         "64; raise it with ulimit -n"));
  RaiseOpenFileLimit();
  rlimit raised;
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &raised), 0);
  EXPECT_EQ(raised.rlim_cur, before.rlim_max);
  setrlimit(RLIMIT_NOFILE, &before);
}

}  // namespace
}  // namespace ringfleet::cluster
