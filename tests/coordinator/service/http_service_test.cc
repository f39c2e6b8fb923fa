// SPDX-License-Identifier: Apache-2.0
// The HTTP port of a whole coordinator, with a fake worker.
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cluster/rpc/listening_sockets.h"
#include "coordinator/service/coordinator_server.h"
#include "protos/cluster.grpc.pb.h"
#include "tests/testing/bundled_model.h"
#include "tests/testing/checkpoint_writer.h"
#include "tests/testing/connected_channel.h"
#include "tests/testing/fake_worker.h"
#include "tests/testing/http_client.h"
#include "tests/testing/soon.h"

namespace ringfleet::coordinator {
namespace {

using nlohmann::json;
using testing::EventsOf;
using testing::FakeWorker;
using ::testing::HasSubstr;
using testing::HttpClient;
using testing::HttpReply;
using testing::Soon;

constexpr char kCompletionsPath[] = "/v1/completions";

// Lets two steps pass, and holds later ones until the gate is open.
class HeldSteps {
 public:
  FakeWorker::StepHook hook() {
    return [this](const v1::StepPlan&, v1::StepResult*) {
      if (++steps_ > 2) gate_.Wait();
      return absl::OkStatus();
    };
  }
  void Open() { gate_.Open(); }
  int steps() const { return steps_; }

 private:
  std::atomic<int> steps_{0};
  testing::Gate gate_;
};

class HttpServiceTest : public ::testing::Test {
 protected:
  void Start(FakeWorker::StepHook on_step = nullptr) {
    CoordinatorOptions options;
    options.fleet.name = "test";
    options.fleet.settings.set_model(testing::BundledModel("tiny-v3"));
    options.fleet.lease = absl::Hours(1);
    options.fleet.settings.set_parallel(1);
    options.http.emplace().listen.port = 0;
    auto server = CoordinatorServer::Start(options);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    worker_ = std::make_unique<FakeWorker>(
        0, FakeWorker::Behaviour{.on_step = std::move(on_step)});
    const auto stub = v1::Membership::NewStub(
        testing::ConnectedChannel(absl::StrCat("127.0.0.1:", server_->port())));
    grpc::ClientContext context;
    v1::RegisterResponse registered;
    ASSERT_TRUE(
        stub->Register(&context, worker_->Registration(), &registered).ok());
    grpc::ClientContext beat_context;
    v1::HeartbeatRequest beat;
    beat.set_member_id(registered.member_id());
    v1::HeartbeatResponse ignored;
    ASSERT_TRUE(stub->Heartbeat(&beat_context, beat, &ignored).ok());
    const absl::Status ready = server_->WaitReady(Soon());
    ASSERT_TRUE(ready.ok()) << ready;
  }
  void TearDown() override {
    if (server_ != nullptr) server_->Shutdown();
  }

  int port() const { return server_->http()->port(); }
  // Waits for the numbers of jobs in slots and of those that wait.
  bool AwaitJobs(uint32_t running, uint32_t waiting) {
    const auto deadline = Soon();
    while (!deadline.Expired()) {
      const v1::ClusterState state = server_->state();
      if (state.requests_running() == running &&
          state.requests_waiting() == waiting) {
        return true;
      }
    }
    return false;
  }

  std::unique_ptr<CoordinatorServer> server_;
  HeldSteps held_;  // Outlives the worker.
  std::unique_ptr<FakeWorker> worker_;
};

TEST_F(HttpServiceTest, AnswersStreamedAndWhole) {
  Start();
  HttpClient client(port());
  json request = {{"prompt", {70}}, {"max_tokens", 6}};
  const json whole =
      json::parse(client.Call("POST", kCompletionsPath, request.dump()).body);
  const auto tokenizer = Tokenizer::Load(testing::BundledModel("tiny-v3"));
  EXPECT_EQ(whole["choices"][0]["text"],
            (*tokenizer)->Decode({71, 72, 73, 74, 75, 76}, false));
  EXPECT_EQ(whole["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(whole["usage"]["completion_tokens"], 6);
  request["stream"] = true;
  const HttpReply stream =
      client.Call("POST", kCompletionsPath, request.dump());
  std::string text;
  for (const std::string& event : EventsOf(stream.body)) {
    if (event == "[DONE]") break;
    text += json::parse(event)["choices"][0]["text"].get<std::string>();
  }
  EXPECT_EQ(whole["choices"][0]["text"], text);
  EXPECT_TRUE(AwaitJobs(0, 0));
}

TEST_F(HttpServiceTest, AClientThatLeavesFreesItsSlot) {
  Start(held_.hook());
  const std::string request =
      R"({"prompt": [70], "max_tokens": 60, "stream": true})";
  {
    HttpClient running(port());
    running.SendRequest("POST", kCompletionsPath, request);
    ASSERT_TRUE(running.ReadUntil("data: "));
    {
      HttpClient waiting(port());
      waiting.SendRequest("POST", kCompletionsPath, request);
      ASSERT_TRUE(AwaitJobs(1, 1));
    }
    // It would have the slot of the other if it were the second to be noticed.
    ASSERT_TRUE(AwaitJobs(1, 0));
  }
  held_.Open();
  EXPECT_TRUE(AwaitJobs(0, 0));
  EXPECT_EQ(worker_->admissions().size(), 1u);
  EXPECT_LT(held_.steps(), 30);
}

TEST_F(HttpServiceTest, AnAnswerEndsWithItsTimeout) {
  Start(held_.hook());
  HttpClient running(port());
  running.SendRequest("POST", kCompletionsPath,
                      R"({"prompt": [70], "max_tokens": 60, "stream": true})");
  ASSERT_TRUE(running.ReadUntil("data: "));
  // It waits for the only slot.
  const HttpReply late = HttpClient(port()).Call(
      "POST", kCompletionsPath,
      R"({"prompt": [70], "stream": true, "timeout": 0.05})");
  EXPECT_EQ(late.status, 408);
  EXPECT_THAT(late.body, HasSubstr("timeout has passed"));
  EXPECT_TRUE(AwaitJobs(1, 0));
  held_.Open();
}

TEST_F(HttpServiceTest, TheEndIsToldToAnswersThatStillRun) {
  Start(held_.hook());
  HttpClient client(port());
  client.SendRequest("POST", kCompletionsPath,
                     R"({"prompt": [70], "max_tokens": 60, "stream": true})");
  ASSERT_TRUE(client.ReadUntil("data: "));
  server_->DrainHttp(cluster::Deadline::After(absl::ZeroDuration()));
  EXPECT_EQ(HttpClient(port()).Call("GET", "/ready").status, 503);
  server_->Shutdown();
  held_.Open();
  const HttpReply reply = client.Read();
  EXPECT_TRUE(reply.whole);
  EXPECT_THAT(EventsOf(reply.body).back(), HasSubstr("{\"error\":"));
}

// A store is not taken from another process by one that cannot listen.
TEST(CoordinatorServerTest, PortsComeBeforeTheStore) {
  auto taken = cluster::ListeningSockets::Open({"127.0.0.1", 0});
  ASSERT_TRUE(taken.ok()) << taken.status();
  testing::TempDir dir;
  for (const bool http : {false, true}) {
    CoordinatorOptions options;
    options.fleet.settings.set_model(testing::BundledModel("tiny-v3"));
    options.state.folder = dir.File("state");
    options.http.emplace().listen.port = http ? taken->port() : 0;
    options.listen.port = http ? 0 : taken->port();
    const absl::Status status = CoordinatorServer::Start(options).status();
    EXPECT_TRUE(absl::IsUnavailable(status)) << status;
    EXPECT_FALSE(std::filesystem::exists(dir.File("state")));
  }
}

// Batches that a default folder has do not seem to be lost; one that cannot be
// used and has none is passed over.
TEST(CoordinatorServerTest, AStoreThatIsThereMustOpen) {
  testing::TempDir dir;
  CoordinatorOptions options;
  options.fleet.settings.set_model(testing::BundledModel("tiny-v3"));
  options.state.folder = dir.File("state");
  std::filesystem::create_directory(options.state.folder);
  testing::WriteFile(dir.File("state/state.db"), "hello");
  const absl::Status damaged = CoordinatorServer::Start(options).status();
  EXPECT_TRUE(absl::IsDataLoss(damaged)) << damaged;
  EXPECT_THAT(damaged.message(), HasSubstr(dir.File("state/state.db")));
  testing::WriteFile(dir.File("file"), "");
  options.state.folder = dir.File("file");
  EXPECT_EQ(CoordinatorServer::Start(options).status(), absl::OkStatus());
  options.state.required = true;
  EXPECT_NE(CoordinatorServer::Start(options).status(), absl::OkStatus());
}

}  // namespace
}  // namespace ringfleet::coordinator
