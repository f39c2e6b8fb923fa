// SPDX-License-Identifier: Apache-2.0
#include "coordinator/reflection/reflection_client.h"

#include <gmock/gmock.h>
#include <grpcpp/server_builder.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "cluster/rpc/server.h"
#include "coordinator/cli/command.h"
#include "protos/cluster.grpc.pb.h"
#include "protos/collective.grpc.pb.h"
#include "protos/worker.grpc.pb.h"

namespace ringfleet::coordinator {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;
using ::testing::StartsWith;

// Answers each frame at once with its sequence number increased.
class EchoCollective final : public v1::Collective::Service {
  grpc::Status Link(
      grpc::ServerContext* context,
      grpc::ServerReaderWriter<v1::Frame, v1::Frame>* stream) override {
    v1::Frame frame;
    while (stream->Read(&frame)) {
      frame.set_sequence(frame.sequence() + 1);
      stream->Write(frame);
    }
    return grpc::Status::OK;
  }

  // Answers nothing until the caller goes away.
  grpc::Status Control(
      grpc::ServerContext* context,
      grpc::ServerReaderWriter<v1::ControlMessage, v1::ControlMessage>* stream)
      override {
    v1::ControlMessage message;
    while (stream->Read(&message)) {
    }
    return grpc::Status(grpc::StatusCode::FAILED_PRECONDITION, "epoch 3");
  }
};

class ProgressWorker final : public v1::Worker::Service {
  grpc::Status Load(grpc::ServerContext* context,
                    const v1::LoadRequest* request,
                    grpc::ServerWriter<v1::LoadProgress>* writer) override {
    for (uint64_t i = 1; i <= request->slots(); ++i) {
      v1::LoadProgress progress;
      progress.set_bytes_done(i);
      writer->Write(progress);
    }
    return grpc::Status::OK;
  }
};

class ReflectionClientTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto started = cluster::DaemonServer::Start(
        {"127.0.0.1", 0}, false, [&](grpc::ServerBuilder& builder) {
          builder.RegisterService(&membership_);
          builder.RegisterService(&collective_);
          builder.RegisterService(&worker_);
        });
    ASSERT_TRUE(started.ok()) << started.status();
    server_ = *std::move(started);
    client_ = std::make_unique<ReflectionClient>(
        cluster::ServerAddress{"127.0.0.1", server_->port()},
        cluster::Deadline::After(absl::Seconds(30)));
  }

  // Sends `documents` in order; the replies land in `replies_`.
  absl::Status Call(const std::string& method,
                    std::vector<std::string> documents,
                    bool all_fields = false) {
    replies_.clear();
    size_t next = 0;
    return client_->Call(
        method,
        [&](std::string* document) -> absl::StatusOr<Pull> {
          if (next == documents.size()) return Pull::kEnd;
          *document = documents[next++];
          return Pull::kMessage;
        },
        [&](const std::string& reply) {
          replies_.push_back(reply);
          return absl::OkStatus();
        },
        all_fields);
  }

  std::string DescribeOrError(const std::string& symbol) {
    const auto text = client_->Describe(symbol);
    return text.ok() ? *text : text.status().ToString();
  }

  v1::Membership::Service membership_;
  EchoCollective collective_;
  ProgressWorker worker_;
  std::unique_ptr<cluster::DaemonServer> server_;
  std::unique_ptr<ReflectionClient> client_;
  std::vector<std::string> replies_;
};

TEST_F(ReflectionClientTest, ListsServicesAndTheirMethods) {
  const auto services = client_->ListServices();
  ASSERT_TRUE(services.ok()) << services.status();
  EXPECT_THAT(*services,
              ElementsAre("grpc.health.v1.Health",
                          "grpc.reflection.v1alpha.ServerReflection",
                          "ringfleet.v1.Collective", "ringfleet.v1.Membership",
                          "ringfleet.v1.Worker"));
  const auto methods = client_->ListMethods("ringfleet.v1.Collective");
  ASSERT_TRUE(methods.ok()) << methods.status();
  EXPECT_THAT(*methods, ElementsAre("ringfleet.v1.Collective.Link",
                                    "ringfleet.v1.Collective.Control"));
}

TEST_F(ReflectionClientTest, DescribesEveryKindOfSymbolInProtoSyntax) {
  EXPECT_THAT(DescribeOrError("ringfleet.v1.Collective"),
              AllOf(StartsWith("ringfleet.v1.Collective is a service:\n"
                               "service Collective {\n"),
                    HasSubstr("rpc Link(stream .ringfleet.v1.Frame) returns "
                              "(stream .ringfleet.v1.Frame);")));
  const std::string method =
      "ringfleet.v1.Collective.Link is a method:\n"
      "rpc Link(stream .ringfleet.v1.Frame) returns "
      "(stream .ringfleet.v1.Frame);\n";
  EXPECT_EQ(DescribeOrError("ringfleet.v1.Collective.Link"), method);
  EXPECT_EQ(DescribeOrError("ringfleet.v1.Collective/Link"), method);
  EXPECT_EQ(DescribeOrError(".ringfleet.v1.Collective.Link"), method);
  EXPECT_THAT(DescribeOrError("ringfleet.v1.Frame"),
              AllOf(HasSubstr("is a message:\nmessage Frame {"),
                    HasSubstr("  fixed64 epoch = 3;\n"),
                    HasSubstr("  bytes payload = 15;\n")));
  EXPECT_EQ(DescribeOrError("ringfleet.v1.Frame.payload"),
            "ringfleet.v1.Frame.payload is a field:\nbytes payload = 15;\n");
  EXPECT_THAT(DescribeOrError("ringfleet.v1.FleetState"),
              AllOf(HasSubstr("is an enum:\nenum FleetState {"),
                    HasSubstr("FLEET_STATE_READY = 3;")));
  EXPECT_THAT(DescribeOrError("ringfleet.v1.FLEET_STATE_READY"),
              HasSubstr("is an enum value:\nFLEET_STATE_READY = 3;"));
  EXPECT_THAT(DescribeOrError("ringfleet.v1.ControlMessage.body"),
              HasSubstr("is a oneof:\noneof body {"));
  EXPECT_THAT(DescribeOrError("grpc.health.v1.Health"),
              HasSubstr("rpc Check(.grpc.health.v1.HealthCheckRequest)"));
  EXPECT_THAT(DescribeOrError("grpc.reflection.v1alpha.ServerReflection"),
              HasSubstr("rpc ServerReflectionInfo(stream "));
}

TEST_F(ReflectionClientTest, UnknownSymbolsAreNotFound) {
  for (const char* symbol :
       {"ringfleet.v1.Nothing", "Nothing", "ringfleet.v1.Worker.Nothing"}) {
    const auto text = client_->Describe(symbol);
    EXPECT_EQ(text.status().code(), absl::StatusCode::kNotFound);
    EXPECT_THAT(std::string(text.status().message()), HasSubstr(symbol));
    EXPECT_EQ(cli::ExitCode(text.status()), 2);
  }
  for (const char* symbol : {"", "a b", "\xff\xfe", "a;b"}) {
    EXPECT_EQ(client_->Describe(symbol).status().code(),
              absl::StatusCode::kInvalidArgument);
  }
}

TEST_F(ReflectionClientTest, CallsHealthUnderBothSpellings) {
  for (const char* method :
       {"grpc.health.v1.Health/Check", "grpc.health.v1.Health.Check",
        "/grpc.health.v1.Health/Check"}) {
    ASSERT_TRUE(Call(method, {"{}"}).ok());
    EXPECT_THAT(replies_, ElementsAre("{\n \"status\": \"SERVING\"\n}\n"));
  }
  ASSERT_TRUE(Call("grpc.health.v1.Health/Check", {}).ok());
  EXPECT_THAT(replies_, ElementsAre(HasSubstr("SERVING")));
}

TEST_F(ReflectionClientTest, ReadsServerStreams) {
  const absl::Status status =
      Call("ringfleet.v1.Worker/Load", {R"({"slots": 3})"});
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_THAT(replies_, ElementsAre(HasSubstr(R"("bytesDone": "1")"),
                                    HasSubstr(R"("bytesDone": "2")"),
                                    HasSubstr(R"("bytesDone": "3")")));
}

TEST_F(ReflectionClientTest, SendsManyMessagesBothWays) {
  std::vector<std::string> documents;
  for (int i = 0; i < 500; ++i) {
    documents.push_back("{\"sequence\": " + std::to_string(i) +
                        ", \"payload\": \"" + std::string(4000, 'A') + "\"}");
  }
  // 3000 bytes each way and message: more than the windows hold, so that a
  // client that wrote everything before reading would never end.
  const absl::Status status = Call("ringfleet.v1.Collective/Link", documents);
  ASSERT_TRUE(status.ok()) << status;
  ASSERT_THAT(replies_, SizeIs(500));
  for (int i = 0; i < 500; ++i) {
    EXPECT_THAT(replies_[i],
                HasSubstr("\"sequence\": \"" + std::to_string(i + 1) + "\""));
  }
  ASSERT_TRUE(Call("ringfleet.v1.Collective/Link", {}).ok());
  EXPECT_THAT(replies_, IsEmpty());
}

// The reply to one request must arrive while the source has no further one.
TEST_F(ReflectionClientTest, RepliesArriveWhileTheSourceWaits) {
  int sent = 0;
  int received = 0;
  const absl::Status status = client_->Call(
      "ringfleet.v1.Collective/Link",
      [&](std::string* document) -> absl::StatusOr<Pull> {
        if (received < sent) return Pull::kNotYet;
        if (sent == 3) return Pull::kEnd;
        ++sent;
        *document = "{}";
        return Pull::kMessage;
      },
      [&](const std::string&) {
        ++received;
        return absl::OkStatus();
      });
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(received, 3);
}

TEST_F(ReflectionClientTest, AllFieldsIncludeDefaults) {
  ASSERT_TRUE(Call("ringfleet.v1.Collective/Link", {"{}"}, true).ok());
  EXPECT_THAT(replies_, ElementsAre(HasSubstr("\"offsetBytes\": \"0\"")));
  ASSERT_TRUE(Call("ringfleet.v1.Collective/Link", {"{}"}, false).ok());
  EXPECT_THAT(replies_, ElementsAre(Not(HasSubstr("offsetBytes"))));
}

TEST_F(ReflectionClientTest, ServerErrorsKeepCodeAndMessage) {
  absl::Status status = Call("ringfleet.v1.Membership/Heartbeat", {"{}"});
  EXPECT_EQ(status, absl::UnimplementedError("UNIMPLEMENTED: (no message)"));
  EXPECT_EQ(cli::ExitCode(status), 1);
  status = Call("ringfleet.v1.Collective/Control", {"{}"});
  EXPECT_EQ(status,
            absl::FailedPreconditionError("FAILED_PRECONDITION: epoch 3"));
  EXPECT_EQ(cli::ExitCode(status), 3);
}

TEST_F(ReflectionClientTest, BadJsonIsNamedWithItsPlace) {
  const struct {
    const char* json;
    const char* why;
  } cases[] = {
      {"{\"slots\" 1}", "line 1, column 10"},
      {"{\"slots\":\n 1", "line 2, column 3"},
      {"{'slots': 1}", "line 1, column 2"},
      {"}", "line 1, column 1"},
      {"{\"slot\": 1}", "slot"},
      {"{\"slots\": \"many\"}", "slots"},
      {"{\"slots\": -1}", "slots"},
      {"{\"dtype\": \"DTYPE_F99\"}", "dtype"},
      {"{\"layout\": 5}", "layout"},
      {"\"\xff\"", "invalid"},
  };
  for (const auto& c : cases) {
    const absl::Status status = Call("ringfleet.v1.Worker/Load", {c.json});
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << c.json;
    EXPECT_THAT(std::string(status.message()),
                AllOf(StartsWith("request 1, a ringfleet.v1.LoadRequest: "),
                      HasSubstr(c.why)));
    EXPECT_THAT(replies_, IsEmpty());
    EXPECT_EQ(cli::ExitCode(status), 2);
  }
  // In the midst of a stream.
  const absl::Status status =
      Call("ringfleet.v1.Collective/Link", {"{}", "{}", "{]"});
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), StartsWith("request 3, "));
}

TEST_F(ReflectionClientTest, AUnaryMethodTakesOneRequest) {
  const absl::Status status = Call("grpc.health.v1.Health/Check", {"{}", "{}"});
  EXPECT_EQ(status,
            absl::InvalidArgumentError("grpc.health.v1.Health.Check takes one "
                                       "request and got a second"));
}

TEST_F(ReflectionClientTest, UnknownMethodsNameTheKnownOnes) {
  absl::Status status = Call("ringfleet.v1.Collective/Lnk", {"{}"});
  EXPECT_EQ(status,
            absl::NotFoundError(
                "no method \"ringfleet.v1.Collective/Lnk\"; the service has: "
                "ringfleet.v1.Collective.Link, "
                "ringfleet.v1.Collective.Control"));
  status = Call("ringfleet.v1.Colective/Link", {"{}"});
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("no service \"ringfleet.v1.Colective\""),
                    HasSubstr("ringfleet.v1.Collective, ")));
  EXPECT_EQ(Call("Link", {"{}"}).code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(ReflectionClientTest, ADeadPortIsUnavailable) {
  const int port = server_->port();
  server_.reset();
  ReflectionClient client({"127.0.0.1", port},
                          cluster::Deadline::After(absl::Seconds(30)));
  const auto services = client.ListServices();
  EXPECT_EQ(services.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(
      std::string(services.status().message()),
      AllOf(StartsWith("UNAVAILABLE: "), HasSubstr(std::to_string(port))));
  EXPECT_EQ(cli::ExitCode(services.status()), 3);
}

TEST_F(ReflectionClientTest, TheDeadlineEndsACallThatNeverAnswers) {
  ReflectionClient client({"127.0.0.1", server_->port()},
                          cluster::Deadline::After(absl::Milliseconds(500)));
  const absl::Status status = client.Call(
      "ringfleet.v1.Collective/Control",
      [](std::string*) -> absl::StatusOr<Pull> { return Pull::kNotYet; },
      [](const std::string&) { return absl::OkStatus(); });
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
  EXPECT_EQ(cli::ExitCode(status), 3);
}

TEST_F(ReflectionClientTest, AnErrorOfTheSinkCancelsTheCall) {
  const absl::Status status = client_->Call(
      "ringfleet.v1.Collective/Link",
      [](std::string* document) -> absl::StatusOr<Pull> {
        *document = "{}";
        return Pull::kMessage;
      },
      [](const std::string&) { return absl::DataLossError("enough"); });
  EXPECT_EQ(status, absl::DataLossError("enough"));
}

}  // namespace
}  // namespace ringfleet::coordinator
