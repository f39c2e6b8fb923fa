// SPDX-License-Identifier: Apache-2.0
// `ringfleet call` as a process: arguments, standard streams, exit codes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdio.h>
#include <sys/wait.h>

#include <memory>
#include <string>

#include "cluster/rpc/server.h"
#include "coordinator/cli/command.h"
#include "coordinator/cli/json_output.h"

namespace ringfleet::coordinator::cli {
namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

struct CallResult {
  int exit_code = -1;
  std::string out;
};

constexpr char kErrorsOnly[] = " 2>&1 >/dev/null";

// Runs "ringfleet ARGUMENTS" in a shell; `out` is its standard output.
CallResult RunCli(const std::string& arguments, const std::string& input = "") {
  const std::string command = (input.empty() ? "" : input + " | ") +
                              ("exec " RINGFLEET_BINARY " " + arguments);
  FILE* pipe = popen(command.c_str(), "r");
  CallResult result;
  char buffer[4096];
  size_t size = 0;
  while ((size = fread(buffer, 1, sizeof(buffer), pipe)) > 0) {
    result.out.append(buffer, size);
  }
  const int status = pclose(pipe);
  if (WIFEXITED(status)) result.exit_code = WEXITSTATUS(status);
  return result;
}

class CallTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto started = cluster::DaemonServer::Start({"127.0.0.1", 0}, false,
                                                [](grpc::ServerBuilder&) {});
    ASSERT_TRUE(started.ok()) << started.status();
    server_ = *std::move(started);
    call_ = "call " + cluster::FormatAddress({"127.0.0.1", server_->port()});
  }

  std::unique_ptr<cluster::DaemonServer> server_;
  std::string call_;  // "call HOST:PORT"
};

constexpr char kServing[] = "{\n \"status\": \"SERVING\"\n}\n";

TEST_F(CallTest, ListsByDefault) {
  const std::string services =
      "grpc.health.v1.Health\ngrpc.reflection.v1alpha.ServerReflection\n";
  for (const char* action : {"", " list"}) {
    const CallResult result = RunCli(call_ + action);
    EXPECT_EQ(result.out, services);
    EXPECT_EQ(result.exit_code, 0);
  }
  EXPECT_EQ(RunCli(call_ + " list grpc.health.v1.Health").out,
            "grpc.health.v1.Health.Check\ngrpc.health.v1.Health.Watch\n");
}

TEST_F(CallTest, DescribesOneSymbolOrEveryService) {
  EXPECT_EQ(RunCli(call_ + " describe grpc.health.v1.Health.Watch").out,
            "grpc.health.v1.Health.Watch is a method:\n"
            "rpc Watch(.grpc.health.v1.HealthCheckRequest) returns "
            "(stream .grpc.health.v1.HealthCheckResponse);\n");
  EXPECT_THAT(RunCli(call_ + " describe").out,
              AllOf(StartsWith("grpc.health.v1.Health is a service:\n"),
                    HasSubstr("ServerReflection is a service:\n")));
}

TEST_F(CallTest, TakesTheRequestFromTheArgumentOrStandardInput) {
  const std::string check = call_ + " grpc.health.v1.Health/Check";
  for (const char* argument :
       {"", " '{}'", " '{\"service\":\"\"}'", " ' { } '"}) {
    const CallResult result = RunCli(check + argument);
    EXPECT_EQ(result.out, kServing) << argument;
    EXPECT_EQ(result.exit_code, 0);
  }
  EXPECT_EQ(RunCli(check + " -", "echo '{}'").out, kServing);
  EXPECT_EQ(RunCli(check + " @", "echo '{}'").out, kServing);
  EXPECT_EQ(RunCli(check + " -", "true").out, kServing);
}

TEST_F(CallTest, PrintsRepliesOfAStreamUntilTheTimeout) {
  const std::string watch =
      call_ + " grpc.health.v1.Health/Watch '{}' --timeout 1";
  const CallResult result = RunCli(watch);
  EXPECT_EQ(result.out, kServing);
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_THAT(RunCli(watch + kErrorsOnly).out,
              StartsWith("ringfleet: call: DEADLINE_EXCEEDED: "));
}

TEST_F(CallTest, ErrorsAreOneLineAndHaveTheirExitCode) {
  const struct {
    std::string arguments;
    int exit_code;
    std::string line;  // Its beginning.
  } cases[] = {
      {"", 2, "ringfleet: usage: no verb"},
      {"nothing", 2, "ringfleet: usage: "},
      {"call", 2, "ringfleet: usage: address is required"},
      {"call localhost", 2, "ringfleet: call: address \"localhost\": no port"},
      {call_ + " list a b", 2, "ringfleet: usage: "},
      {call_ + " --timeout 0", 2, "ringfleet: usage: --timeout"},
      {call_ + " call", 2, "ringfleet: call: method \"call\": want "},
      {call_ + " describe no.Such", 2, "ringfleet: call: 127.0.0.1:"},
      {call_ + " grpc.health.v1.Health/Check '{\"a\" 1}'", 2,
       "ringfleet: call: request 1, a grpc.health.v1.HealthCheckRequest: parse "
       "error at line 1, column 6"},
      {call_ + " grpc.health.v1.Health/Check '{\"service\":\"x\"}'", 2,
       "ringfleet: call: NOT_FOUND: "},
  };
  for (const auto& c : cases) {
    const CallResult result = RunCli(c.arguments + kErrorsOnly);
    EXPECT_EQ(result.exit_code, c.exit_code) << c.arguments;
    EXPECT_THAT(result.out, AllOf(StartsWith(c.line), EndsWith("\n")));
    EXPECT_EQ(result.out.find('\n'), result.out.size() - 1) << result.out;
  }
  server_.reset();
  const CallResult dead = RunCli(call_ + kErrorsOnly);
  EXPECT_EQ(dead.exit_code, 3);
  EXPECT_THAT(dead.out,
              StartsWith("ringfleet: call: no connection with 127.0.0.1:"));
}

TEST_F(CallTest, JsonIsOneDocument) {
  const auto document = [](const std::string& arguments, int exit_code) {
    const CallResult result = RunCli(arguments + " --json 2>/dev/null");
    EXPECT_EQ(result.exit_code, exit_code) << arguments;
    return Json::parse(result.out, nullptr, /*allow_exceptions=*/false);
  };
  const Json services = {"grpc.health.v1.Health",
                         "grpc.reflection.v1alpha.ServerReflection"};
  EXPECT_EQ(document(call_, 0), (Json{{"services", services}}));
  EXPECT_EQ(
      document(call_ + " list grpc.health.v1.Health", 0),
      (Json{{"methods",
             {"grpc.health.v1.Health.Check", "grpc.health.v1.Health.Watch"}}}));
  const Json symbols = document(call_ + " describe", 0)["symbols"];
  ASSERT_EQ(symbols.size(), 2u);
  EXPECT_EQ(symbols[0]["name"], services[0]);
  EXPECT_THAT(symbols[0]["text"].get<std::string>(),
              StartsWith("grpc.health.v1.Health is a service:\n"));
  const Json serving = {{"replies", {{{"status", "SERVING"}}}}};
  EXPECT_EQ(document(call_ + " grpc.health.v1.Health/Check", 0), serving);
  // The replies of a stream that ends with an error are the one document.
  EXPECT_EQ(document(call_ + " grpc.health.v1.Health/Watch --timeout 1", 3),
            serving);
  EXPECT_EQ(document(call_ + " describe no.Such", 2)["error"]["code"],
            "NOT_FOUND");
  EXPECT_THAT(document("--version", 0)["version"].get<std::string>(),
              HasSubstr("."));
}

TEST_F(CallTest, HelpAndVersionSucceed) {
  EXPECT_THAT(RunCli("--help").out, HasSubstr("Fleet:\n  up "));
  EXPECT_THAT(RunCli("call --help").out, HasSubstr("Examples:\n"));
  EXPECT_THAT(RunCli("--version").out, StartsWith("ringfleet "));
  for (const char* arguments : {"--help", "call --help", "--version"}) {
    EXPECT_EQ(RunCli(arguments).exit_code, 0);
  }
}

TEST(PrintErrorTest, IsOneLineWithoutControlCharacters) {
  ::testing::internal::CaptureStderr();
  ::testing::internal::CaptureStdout();
  PrintError(absl::AbortedError("worker 2: a\nb\x1b[31m \xc3\xa9"), true);
  EXPECT_EQ(::testing::internal::GetCapturedStderr(),
            "ringfleet: worker 2: a b [31m \xc3\xa9\n");
  EXPECT_EQ(::testing::internal::GetCapturedStdout(),
            "{\"error\":{\"code\":\"ABORTED\",\"message\":\"worker 2: "
            "a\\nb\\u001b[31m \xc3\xa9\"}}\n");
}

TEST(ExitCodeTest, TellsTheKindsOfFailureApart) {
  EXPECT_EQ(ExitCode(absl::OkStatus()), 0);
  EXPECT_EQ(ExitCode(absl::InternalError("")), 1);
  EXPECT_EQ(ExitCode(absl::ResourceExhaustedError("")), 1);
  EXPECT_EQ(ExitCode(absl::OutOfRangeError("")), 2);
  EXPECT_EQ(ExitCode(absl::AbortedError("")), 3);
  EXPECT_EQ(ExitCode(absl::DataLossError("")), 4);
  EXPECT_EQ(ExitCode(absl::CancelledError("")), 130);
}

}  // namespace
}  // namespace ringfleet::coordinator::cli
