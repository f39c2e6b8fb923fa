// SPDX-License-Identifier: Apache-2.0
// `ringfleet ... --trace` as a process, with a coordinator that loses a worker
// before the trace is whole.
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/wait.h>

#include <filesystem>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "coordinator/cli/json_output.h"
#include "protos/coordinator.grpc.pb.h"
#include "tests/testing/checkpoint_writer.h"

namespace ringfleet::coordinator::cli {
namespace {

using ::ringfleet::testing::ReadFile;

constexpr char kLost[] = "worker 1 (127.0.0.1:9, pid 7) was lost";

class LosingCoordinator : public v1::Coordinator::Service {
 public:
  grpc::Status DescribeCluster(grpc::ServerContext*,
                               const v1::DescribeClusterRequest*,
                               v1::ClusterState* state) override {
    state->set_name("fleet");
    state->set_model("/none");
    return grpc::Status::OK;
  }
  grpc::Status Generate(
      grpc::ServerContext*, const v1::GenerateRequest*,
      grpc::ServerWriter<v1::GenerateEvent>* writer) override {
    v1::GenerateEvent event;
    event.mutable_token()->set_id(5);
    event.mutable_token()->set_text("five");
    writer->Write(event);
    event.mutable_finished()->set_reason(v1::FINISH_REASON_LENGTH);
    writer->Write(event);
    return grpc::Status::OK;
  }
  grpc::Status Score(grpc::ServerContext*, const v1::ScoreRequest*,
                     grpc::ServerWriter<v1::ScoreEvent>* writer) override {
    v1::ScoreEvent event;
    event.mutable_result()->add_ids(4);
    event.mutable_result()->mutable_score()->add_top_ids(5);
    event.mutable_result()->mutable_score()->add_top_logprobs(-1);
    writer->Write(event);
    return grpc::Status::OK;
  }
  grpc::Status Trace(
      grpc::ServerContext*,
      grpc::ServerReaderWriter<v1::TraceProgress, v1::TraceRequest>* stream)
      override {
    v1::TraceRequest request;
    stream->Read(&request);
    v1::TraceProgress progress;
    progress.mutable_started()->set_unix_ms(1);
    stream->Write(progress);
    while (stream->Read(&request)) {
    }
    return {grpc::StatusCode::UNAVAILABLE, kLost};
  }
};

class LostTraceTest : public ::testing::Test {
 protected:
  LostTraceTest() {
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(),
                             &port);
    builder.RegisterService(&coordinator_);
    server_ = builder.BuildAndStart();
    testing::WriteFile(
        folder_.File("fleet.yaml"),
        absl::StrCat("model: /none\ncoordinator: {port: ", port,
                     "}\nworkers:\n  - {port: 9}\n  - {port: 10}\n"));
  }
  ~LostTraceTest() override { server_->Shutdown(); }

  // Of "ringfleet ARGUMENTS", which is to end with the trace's error; its
  // stdout.
  std::string OutputOf(const std::string& arguments) {
    const std::string command = absl::StrCat(
        "exec " RINGFLEET_BINARY " ", arguments, " --cluster ",
        folder_.File("fleet.yaml"), " --trace ", folder_.File("trace.json"),
        " >", folder_.File("out"), " 2>", folder_.File("err"));
    const int status = system(command.c_str());
    EXPECT_EQ(WIFEXITED(status) ? WEXITSTATUS(status) : -1, 3);
    const std::string errors = ReadFile(folder_.File("err"));
    EXPECT_THAT(errors,
                ::testing::EndsWith(absl::StrCat("ringfleet: ", kLost, "\n")));
    EXPECT_FALSE(std::filesystem::exists(folder_.File("trace.json")));
    return ReadFile(folder_.File("out"));
  }

  const testing::TempDir folder_;
  LosingCoordinator coordinator_;
  std::unique_ptr<grpc::Server> server_;
};

// What was computed is not lost with the trace of it.
TEST_F(LostTraceTest, TheResultComesBeforeTheError) {
  const Json generated = Json::parse(OutputOf("generate -p x --json"));
  EXPECT_EQ(generated.value("ids", Json()), Json::array({5}));
  EXPECT_EQ(OutputOf("generate -p x"), "five\n");
  const Json scored = Json::parse(OutputOf("score --ids 4 --json"));
  EXPECT_EQ(scored.value("top_ids", Json()), Json::array({5}));
  EXPECT_EQ(OutputOf("score --ids 4"), "next: 5 (-1.0000)\n");
}

}  // namespace
}  // namespace ringfleet::coordinator::cli
