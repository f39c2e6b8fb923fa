// SPDX-License-Identifier: Apache-2.0
// Verbs as processes that talk to a running fleet: whose it is, and what state
// it is in.
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/cli/json_output.h"
#include "protos/coordinator.grpc.pb.h"
#include "tests/testing/checkpoint_writer.h"
#include "tests/testing/process.h"

namespace ringfleet::coordinator::cli {
namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

// The coordinator of fleet w, which serves /m/a.
class FakeCoordinator : public v1::Coordinator::Service {
 public:
  FakeCoordinator() {
    state_.set_name("w");
    state_.set_model("/m/a");
    state_.set_state(v1::FLEET_STATE_READY);
    state_.set_world_size(2);
    state_.mutable_mesh()->set_data(2);
    state_.mutable_mesh()->set_expert(1);
    state_.mutable_mesh()->set_tensor(1);
  }
  grpc::Status DescribeCluster(grpc::ServerContext*,
                               const v1::DescribeClusterRequest*,
                               v1::ClusterState* state) override {
    *state = state_;
    return grpc::Status::OK;
  }
  grpc::Status Generate(
      grpc::ServerContext*, const v1::GenerateRequest*,
      grpc::ServerWriter<v1::GenerateEvent>* writer) override {
    v1::GenerateEvent event;
    event.mutable_accepted()->set_id("job");
    writer->Write(event);
    event.mutable_token()->set_id(5);
    event.mutable_token()->set_text("five");
    writer->Write(event);
    event.mutable_finished()->set_reason(v1::FINISH_REASON_LENGTH);
    event.mutable_finished()->mutable_timings()->set_load_ms(90);
    writer->Write(event);
    return grpc::Status::OK;
  }
  grpc::Status Tokenize(grpc::ServerContext*, const v1::TokenizeRequest*,
                        v1::TokenizeResponse* response) override {
    response->add_ids(7);
    response->add_pieces("x");
    return grpc::Status::OK;
  }

  v1::ClusterState state_;  // Set it while no verb runs.
};

struct Ended {
  int code = -1;
  std::string output;
  std::string errors;
};

class RunningFleetTest : public ::testing::Test {
 protected:
  RunningFleetTest() {
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(),
                             &port);
    builder.RegisterService(&coordinator_);
    server_ = builder.BuildAndStart();
    address_ = absl::StrCat("127.0.0.1:", port);
  }
  ~RunningFleetTest() override { server_->Shutdown(); }

  std::string File() const { return folder_.File("fleet.yaml"); }
  // Writes a file whose coordinator is the fake one.
  void WriteFile(const std::string& name, const std::string& model) {
    testing::WriteFile(
        File(), absl::StrCat("name: ", name, "\nmodel: ", model,
                             "\ncoordinator: {port: ", address_.substr(10),
                             "}\nworkers: [{port: 9}, {port: 10}]\n"));
  }

  Ended Run(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), RINGFLEET_BINARY);
    testing::Process process(
        {.command = std::move(arguments),
         .environment = {{"XDG_STATE_HOME", folder_.File("state")}},
         .capture = folder_.File("capture")});
    return {process.Wait(60).value_or(-1), process.output(), process.errors()};
  }
  Ended RunOn(const std::vector<std::string>& fleet,
              std::vector<std::string> arguments) {
    arguments.insert(arguments.end(), fleet.begin(), fleet.end());
    return Run(std::move(arguments));
  }

  const testing::TempDir folder_;
  FakeCoordinator coordinator_;
  std::unique_ptr<grpc::Server> server_;
  std::string address_;  // HOST:PORT of the fake coordinator.
};

const std::vector<std::vector<std::string>> kVerbs = {
    {"submit", "--prompt-ids", "0,318", "-n", "4"},
    {"generate", "--prompt-ids", "0,318", "-n", "4"},
    {"score", "--ids", "0,5,6"},
    {"tokenize", "-p", "def"},
    {"detokenize", "--ids", "7"},
    {"bench", "-p", "8", "-n", "0", "-r", "1", "--no-memory-test"},
    {"jobs"},
    {"show", "5e2f0001"},
    {"cancel", "5e2f0001"},
    {"status"},
    {"rebalance", "--dry-run"},
    {"doctor"},
    {"up"},
};

TEST_F(RunningFleetTest, NoVerbUsesAFleetOfAnotherName) {
  WriteFile("mine", "/m/a");
  std::vector<std::vector<std::string>> verbs = kVerbs;
  verbs.push_back({"down"});
  for (const std::vector<std::string>& verb : verbs) {
    SCOPED_TRACE(verb[0]);
    const Ended ended = RunOn({"--cluster", File()}, verb);
    EXPECT_EQ(ended.code, 2);
    EXPECT_EQ(ended.output, "");
    EXPECT_THAT(ended.errors,
                EndsWith(absl::StrCat(
                    ": coordinator: ", address_,
                    " belongs to fleet w with model /m/a, want fleet mine "
                    "with model /m/a\n")));
  }
}

TEST_F(RunningFleetTest, NoVerbUsesAFleetOfAnotherModel) {
  WriteFile("w", "/m/b");
  for (const std::vector<std::string>& verb : kVerbs) {
    SCOPED_TRACE(verb[0]);
    const Ended ended = RunOn({"--cluster", File()}, verb);
    EXPECT_EQ(ended.code, 2);
    EXPECT_EQ(ended.output, "");
    EXPECT_THAT(ended.errors,
                HasSubstr(" belongs to fleet w with model /m/a, want fleet w "
                          "with model /m/b"));
  }
  EXPECT_THAT(RunOn({"--cluster", File()}, {"up"}).errors,
              HasSubstr("; `ringfleet down --cluster "));
}

// The file may be edited while the fleet runs, so the model does not count. But
// no process is recorded in this state folder.
TEST_F(RunningFleetTest, DownSaysThatTheFleetStillAnswers) {
  WriteFile("w", "/m/b");
  const Ended ended = RunOn({"--cluster", File()}, {"down"});
  EXPECT_EQ(ended.code, 3);
  EXPECT_EQ(ended.output, "");
  EXPECT_THAT(
      ended.errors,
      HasSubstr(absl::StrCat("down: the coordinator of fleet w still answers "
                             "at ",
                             address_)));
}

TEST_F(RunningFleetTest, AnAddressNeedsNoFile) {
  const std::vector<std::string> fleet = {"--coordinator", address_};
  const Ended tokenized = RunOn(fleet, {"tokenize", "-p", "x", "--json"});
  EXPECT_EQ(tokenized.code, 0) << tokenized.errors;
  EXPECT_EQ(Json::parse(tokenized.output).value("ids", Json()),
            Json::array({7}));
  for (const char* verb : {"submit", "generate"}) {
    const Ended generated = RunOn(fleet, {verb, "--prompt-ids", "1"});
    EXPECT_EQ(generated.code, 0) << generated.errors;
    EXPECT_EQ(generated.output, "five\n");
    // The weights were loaded long before this job.
    EXPECT_THAT(generated.errors, StartsWith("prompt "));
  }
  const Ended status = RunOn(fleet, {"status"});
  EXPECT_EQ(status.code, 0) << status.errors;
  EXPECT_THAT(status.output, StartsWith("fleet w: ready, epoch 0\n"));
  // A model beside it must be the fleet's.
  EXPECT_EQ(RunOn(fleet, {"tokenize", "-p", "x", "-m", "/m/a"}).code, 0);
  EXPECT_EQ(RunOn(fleet, {"tokenize", "-p", "x", "-m", "/m/b"}).code, 2);
}

TEST_F(RunningFleetTest, TheChoiceIsOneFleet) {
  WriteFile("w", "/m/a");
  const std::vector<std::string> both = {"--cluster", File(), "--coordinator",
                                         address_};
  for (std::vector<std::string> verb : kVerbs) {
    if (verb[0] == "up") continue;
    SCOPED_TRACE(verb[0]);
    const Ended ended = RunOn(both, verb);
    EXPECT_EQ(ended.code, 2);
    EXPECT_THAT(ended.errors,
                AllOf(HasSubstr("--cluster"), HasSubstr("excludes"),
                      HasSubstr("--coordinator")));
    for (const char* wrong : {"127.0.0.1", "127.0.0.1:0", "a b:1"}) {
      const Ended address = RunOn({"--coordinator", wrong}, verb);
      EXPECT_EQ(address.code, 2);
      EXPECT_THAT(address.errors,
                  StartsWith("ringfleet: usage: --coordinator"));
    }
  }
  for (const std::vector<std::string>& verb :
       {kVerbs[0], {"status"}, {"rebalance"}}) {
    const Ended neither = Run(verb);
    EXPECT_EQ(neither.code, 2);
    EXPECT_EQ(neither.errors,
              "ringfleet: usage: no fleet, want --cluster FILE or "
              "--coordinator HOST:PORT\n");
  }
  // Settings of a local fleet are the running fleet's business.
  const Ended dtype =
      Run({"generate", "--coordinator", address_, "-p", "x", "--dtype", "f32"});
  EXPECT_EQ(dtype.code, 2);
  EXPECT_THAT(dtype.errors, HasSubstr("--dtype"));
}

TEST_F(RunningFleetTest, NothingListensThere) {
  server_->Shutdown();
  const Ended ended = Run({"status", "--coordinator", address_});
  EXPECT_EQ(ended.code, 3);
  EXPECT_THAT(ended.errors, AllOf(HasSubstr(address_), Not(HasSubstr("up"))));
}

TEST_F(RunningFleetTest, StatusOfAFleetThatServesInPart) {
  coordinator_.state_.mutable_mesh()->set_data(1);
  const Ended text = Run({"status", "--coordinator", address_});
  EXPECT_EQ(text.code, 0) << text.errors;
  EXPECT_THAT(
      text.output,
      StartsWith("fleet w: ready, degraded: 1 of 2 data groups, epoch 0\n"));
  const Ended json = Run({"status", "--coordinator", address_, "-o", "json"});
  EXPECT_EQ(json.code, 0) << json.errors;
  const Json document = Json::parse(json.output);
  EXPECT_EQ(document["state"], "ready");
  EXPECT_EQ(document["data_groups"], (Json{{"serving", 1}, {"total", 2}}));
}

TEST_F(RunningFleetTest, StatusOfAFailedFleetIsAnError) {
  coordinator_.state_.set_state(v1::FLEET_STATE_FAILED);
  coordinator_.state_.set_error("worker 1 was lost");
  coordinator_.state_.set_error_code(14);
  for (const char* format : {"text", "json"}) {
    const Ended ended =
        Run({"status", "--coordinator", address_, "-o", format});
    EXPECT_EQ(ended.code, 3);
    EXPECT_EQ(ended.errors,
              "ringfleet: status: fleet w is failed: worker 1 was lost\n");
    if (format[0] == 't') {
      EXPECT_THAT(ended.output, StartsWith("fleet w: failed, epoch 0\n"));
      continue;
    }
    // One document, also beside the error.
    const Json document = Json::parse(ended.output);
    EXPECT_EQ(document["state"], "failed");
    EXPECT_EQ(document["error"], "worker 1 was lost");
    EXPECT_EQ(document["data_groups"], (Json{{"serving", 0}, {"total", 2}}));
  }
  for (const v1::FleetState starting :
       {v1::FLEET_STATE_WAITING, v1::FLEET_STATE_LOADING}) {
    coordinator_.state_.set_state(starting);
    EXPECT_EQ(Run({"status", "--coordinator", address_}).code, 0);
  }
}

}  // namespace
}  // namespace ringfleet::coordinator::cli
