// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "cluster/process/status.h"
#include "cluster/rpc/server.h"
#include "protos/host.grpc.pb.h"
#include "tests/testing/connected_channel.h"

namespace ringfleet::cluster {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// Fails every call as it is told.
class FailingHost final : public v1::Host::Service {
 public:
  explicit FailingHost(absl::Status status) : status_(std::move(status)) {}
  grpc::Status ReadClock(grpc::ServerContext*, const v1::ReadClockRequest*,
                         v1::ClockReading*) override {
    return ToGrpc(status_);
  }

 private:
  const absl::Status status_;
};

// Returns what a caller over loopback gets in place of `status`.
absl::Status Travelled(const absl::Status& status) {
  FailingHost host(status);
  const auto server = DaemonServer::Start(
      {"127.0.0.1", 0}, /*allow_insecure=*/false,
      [&](grpc::ServerBuilder& builder) { builder.RegisterService(&host); });
  if (!server.ok()) return server.status();
  const auto stub = v1::Host::NewStub(testing::ConnectedChannel(
      FormatAddress({"127.0.0.1", (*server)->port()})));
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() +
                       std::chrono::seconds(60));
  v1::ClockReading reading;
  return FromGrpc(stub->ReadClock(&context, v1::ReadClockRequest(), &reading));
}

TEST(StatusMessageTest, ALongMessageKeepsItsCodeAndBothEnds) {
  const std::string text =
      absl::StrCat("layer 3: ", std::string(100'000, 'x'), ": no such file");
  const absl::Status got = Travelled(absl::DataLossError(text));
  EXPECT_EQ(got.code(), absl::StatusCode::kDataLoss);
  const std::string message(got.message());
  EXPECT_THAT(message, StartsWith("layer 3: xxx"));
  EXPECT_THAT(message, EndsWith("xxx: no such file"));
  EXPECT_LE(message.size(), kMaxStatusBytes);
  EXPECT_GT(message.size(), kMaxStatusBytes - 64);
  const size_t mark = message.find("...[");
  ASSERT_NE(mark, std::string::npos);
  const size_t left_out = std::stoul(message.substr(mark + 4));
  const std::string note =
      absl::StrCat("...[", left_out, " bytes left out]...");
  EXPECT_THAT(message, HasSubstr(note));
  EXPECT_EQ(message.size() - note.size() + left_out, text.size());
}

// gRPC writes each byte of these characters as three.
TEST(StatusMessageTest, CharactersStayWhole) {
  std::string text;
  for (int i = 0; i < 20'000; ++i) text += "\u20ac%\n";
  const absl::Status got = Travelled(absl::InternalError(text));
  EXPECT_EQ(got.code(), absl::StatusCode::kInternal);
  std::string message(got.message());
  EXPECT_GT(message.size(), kMaxStatusBytes / 3 - 64);
  const size_t mark = message.find("...[");
  const size_t end = message.find("]...");
  ASSERT_NE(mark, std::string::npos);
  ASSERT_NE(end, std::string::npos);
  message.erase(mark, end + 4 - mark);
  while (message.find("\u20ac") == 0 || message.find('%') == 0 ||
         message.find('\n') == 0) {
    message.erase(0, message[0] == '%' || message[0] == '\n' ? 1 : 3);
  }
  EXPECT_EQ(message, "");
}

TEST(StatusMessageTest, AMessageThatFitsIsWhole) {
  for (const std::string& text :
       {std::string(), std::string("plain"), std::string(kMaxStatusBytes, 'x'),
        std::string(kMaxStatusBytes / 3, '\n')}) {
    const absl::Status status = absl::AbortedError(text);
    EXPECT_EQ(Travelled(status), status);
  }
}

}  // namespace
}  // namespace ringfleet::cluster
