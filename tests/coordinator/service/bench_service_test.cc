// SPDX-License-Identifier: Apache-2.0
// Coordinator.Bench over real gRPC, with fake workers.
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <memory>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/service/coordinator_server.h"
#include "protos/cluster.grpc.pb.h"
#include "tests/testing/connected_channel.h"
#include "tests/testing/fake_worker.h"

namespace ringfleet::coordinator {
namespace {

using cluster::Deadline;
using ringfleet::testing::FakeWorker;
using ringfleet::testing::Gate;
using ::testing::HasSubstr;
using ::testing::SizeIs;

constexpr absl::Duration kLimit = absl::Seconds(30);

class BenchServiceTest : public ::testing::Test {
 protected:
  void Start(std::vector<FakeWorker::Behaviour> behaviours) {
    CoordinatorOptions options;
    options.fleet.settings.set_model(RINGFLEET_SOURCE_DIR
                                     "/tests/models/tiny-v3");
    options.fleet.mesh.tensor = static_cast<int>(behaviours.size());
    options.fleet.lease = absl::Hours(1);
    options.fleet.settings.set_parallel(2);
    auto server = CoordinatorServer::Start(options);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    const auto channel =
        testing::ConnectedChannel(absl::StrCat("127.0.0.1:", server_->port()));
    coordinator_ = v1::Coordinator::NewStub(channel);
    const auto membership = v1::Membership::NewStub(channel);
    for (size_t rank = 0; rank < behaviours.size(); ++rank) {
      workers_.push_back(std::make_unique<FakeWorker>(static_cast<int>(rank),
                                                      behaviours[rank]));
      grpc::ClientContext context;
      v1::RegisterResponse response;
      ASSERT_TRUE(
          membership
              ->Register(&context, workers_.back()->Registration(), &response)
              .ok());
    }
    const absl::Status status = server_->WaitReady(Deadline::After(kLimit));
    ASSERT_TRUE(status.ok()) << status;
  }

  static v1::BenchRequest Request(uint32_t prompt, uint32_t gen,
                                  uint32_t parallel) {
    v1::BenchRequest request;
    v1::BenchTest* test = request.add_tests();
    test->set_n_prompt(prompt);
    test->set_n_gen(gen);
    test->set_n_parallel(parallel);
    request.set_repetitions(2);
    return request;
  }

  struct Outcome {
    v1::BenchProgress::Setup setup;
    std::vector<v1::BenchProgress::Started> started;
    std::vector<v1::BenchProgress::Sample> samples;
    grpc::Status status;
  };
  Outcome Bench(const v1::BenchRequest& request) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() +
                         absl::ToChronoMilliseconds(kLimit));
    const auto reader = coordinator_->Bench(&context, request);
    Outcome outcome;
    v1::BenchProgress progress;
    while (reader->Read(&progress)) {
      if (progress.has_setup()) outcome.setup = progress.setup();
      if (progress.has_started()) outcome.started.push_back(progress.started());
      if (progress.has_sample()) outcome.samples.push_back(progress.sample());
    }
    outcome.status = reader->Finish();
    return outcome;
  }

  // A job's tokens; fails the test unless it succeeds.
  int Generate(int64_t max_tokens) {
    grpc::ClientContext context;
    v1::GenerateRequest request;
    request.mutable_prompt()->mutable_ids()->add_ids(50);
    request.set_max_tokens(max_tokens);
    const auto reader = coordinator_->Generate(&context, request);
    int tokens = 0;
    v1::GenerateEvent event;
    while (reader->Read(&event)) tokens += event.has_token() ? 1 : 0;
    const grpc::Status status = reader->Finish();
    EXPECT_TRUE(status.ok()) << status.error_message();
    return tokens;
  }

  std::vector<std::unique_ptr<FakeWorker>> workers_;
  std::unique_ptr<CoordinatorServer> server_;
  std::unique_ptr<v1::Coordinator::Stub> coordinator_;
};

TEST_F(BenchServiceTest, TimesEveryRepetitionOfEveryTest) {
  Start({{.host = "a"}, {.host = "a"}, {.host = "b"}});
  v1::BenchRequest request = Request(40, 0, 2);
  *request.add_tests() = Request(0, 5, 1).tests(0);
  const Outcome outcome = Bench(request);
  ASSERT_TRUE(outcome.status.ok()) << outcome.status.error_message();
  EXPECT_EQ(outcome.setup.model_type(), "deepseek_v3");
  EXPECT_EQ(outcome.setup.world(), 3u);
  EXPECT_EQ(outcome.setup.hosts(), 2u);
  EXPECT_EQ(outcome.setup.threads(), 3u);
  EXPECT_EQ(outcome.setup.cpu(), "a fake");
  EXPECT_EQ(outcome.setup.weight_bytes(), 600u);
  EXPECT_THAT(outcome.started, SizeIs(2));
  ASSERT_THAT(outcome.samples, SizeIs(4));
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(outcome.samples[i].test(), i / 2u);
    EXPECT_EQ(outcome.samples[i].repetition(), i % 2u);
    EXPECT_GT(outcome.samples[i].time_ns(), 0u);
    // 100, 200 and 300 bytes a step; one step, and five.
    EXPECT_EQ(outcome.samples[i].bytes_read(), i < 2 ? 600u : 3000u);
    // Each worker reads 3 GB in one slice of eight and 1 GB in the others, of
    // 0.1 s each; two of them share a.
    EXPECT_DOUBLE_EQ(outcome.samples[i].host_read_gbps(), (25 + 12.5) / 2);
  }
  EXPECT_EQ(Generate(4), 4);
}

TEST_F(BenchServiceTest, RefusesWhatTheFleetCannotDo) {
  Start({{}});
  const auto code = [this](const v1::BenchRequest& request) {
    const grpc::Status status = Bench(request).status;
    EXPECT_FALSE(status.ok());
    return status.error_code();
  };
  EXPECT_EQ(code(Request(1, 1, 3)), grpc::INVALID_ARGUMENT);   // Slots.
  EXPECT_EQ(code(Request(0, 64, 1)), grpc::INVALID_ARGUMENT);  // Context.
  EXPECT_EQ(code({}), grpc::INVALID_ARGUMENT);
  v1::BenchRequest request = Request(1, 1, 1);
  request.set_repetitions(0);
  EXPECT_EQ(code(request), grpc::INVALID_ARGUMENT);
  EXPECT_TRUE(Bench(Request(0, 63, 2)).status.ok());
}

TEST_F(BenchServiceTest, AWorkerWithoutMemoryIsNamedAndTheFleetGoesOn) {
  Start({{}, {.memory_error = absl::ResourceExhaustedError("no memory")}});
  const grpc::Status status = Bench(Request(0, 5, 1)).status;
  EXPECT_EQ(status.error_code(), grpc::RESOURCE_EXHAUSTED);
  EXPECT_THAT(status.error_message(), HasSubstr("worker 1"));
  EXPECT_EQ(Generate(4), 4);
  v1::BenchRequest request = Request(0, 5, 1);
  request.set_no_memory_test(true);
  const Outcome outcome = Bench(request);
  EXPECT_TRUE(outcome.status.ok()) << outcome.status.error_message();
  ASSERT_THAT(outcome.samples, SizeIs(2));
  EXPECT_EQ(outcome.samples[0].host_read_gbps(), 0);
}

TEST_F(BenchServiceTest, OnlyAnIdleFleetIsMeasured) {
  const auto hold = std::make_shared<Gate>();
  const auto reached = std::make_shared<Gate>();
  Start({{.on_step = [=](const v1::StepPlan&, v1::StepResult*) {
    reached->Open();
    hold->Wait();
    return absl::OkStatus();
  }}});
  std::thread job([this] { EXPECT_EQ(Generate(3), 3); });
  ASSERT_TRUE(reached->Wait());
  const grpc::Status status = Bench(Request(0, 5, 1)).status;
  EXPECT_EQ(status.error_code(), grpc::FAILED_PRECONDITION);
  EXPECT_THAT(status.error_message(), HasSubstr("1 jobs run and 0 wait"));
  hold->Open();
  job.join();
  EXPECT_TRUE(Bench(Request(0, 5, 1)).status.ok());
}

// A job that comes meanwhile waits, a second benchmark is refused.
TEST_F(BenchServiceTest, OthersWaitForABenchmark) {
  const auto hold = std::make_shared<Gate>();
  const auto reached = std::make_shared<Gate>();
  Start({{.on_step = [=](const v1::StepPlan&, v1::StepResult*) {
    reached->Open();
    hold->Wait();
    return absl::OkStatus();
  }}});
  Outcome outcome;
  std::thread bench([&] { outcome = Bench(Request(0, 5, 2)); });
  ASSERT_TRUE(reached->Wait());
  EXPECT_EQ(Bench(Request(0, 5, 1)).status.error_code(),
            grpc::FAILED_PRECONDITION);
  std::thread job([this] { EXPECT_EQ(Generate(3), 3); });
  const Deadline deadline = Deadline::After(kLimit);
  while (server_->state().requests_waiting() == 0 && !deadline.Expired()) {
    std::this_thread::yield();
  }
  EXPECT_EQ(server_->state().requests_waiting(), 1u);
  hold->Open();
  bench.join();
  job.join();
  EXPECT_TRUE(outcome.status.ok()) << outcome.status.error_message();
  EXPECT_THAT(outcome.samples, SizeIs(2));
}

TEST_F(BenchServiceTest, ACallerThatLeavesFreesEverySlot) {
  Start({{}});
  for (int repeat = 0; repeat < 3; ++repeat) {
    grpc::ClientContext context;
    v1::BenchRequest request = Request(0, 50, 2);
    request.set_repetitions(1000);
    const auto reader = coordinator_->Bench(&context, request);
    v1::BenchProgress progress;
    while (reader->Read(&progress) && !progress.has_sample()) {
    }
    ASSERT_TRUE(progress.has_sample());
    context.TryCancel();
    EXPECT_EQ(reader->Finish().error_code(), grpc::CANCELLED);
  }
  // Takes both slots.
  const Outcome outcome = Bench(Request(0, 50, 2));
  EXPECT_TRUE(outcome.status.ok()) << outcome.status.error_message();
  EXPECT_EQ(Generate(4), 4);
}

TEST_F(BenchServiceTest, AFailureOfTheFleetEndsIt) {
  Start({{.on_step = [](const v1::StepPlan& plan, v1::StepResult*) {
    return plan.step() < 5 ? absl::OkStatus()
                           : absl::DataLossError("a bit fell over");
  }}});
  const grpc::Status status = Bench(Request(0, 50, 2)).status;
  EXPECT_EQ(status.error_code(), grpc::DATA_LOSS);
  EXPECT_THAT(status.error_message(), HasSubstr("a bit fell over"));
}

}  // namespace
}  // namespace ringfleet::coordinator
