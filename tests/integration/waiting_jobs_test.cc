// SPDX-License-Identifier: Apache-2.0
// A thousand clients whose jobs wait take neither threads nor heartbeats from
// the fleet.
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/integration/fleet_fixture.h"
#include "tests/integration/streamed_jobs.h"
#include "tests/testing/process.h"
#include "tests/testing/task_cgroup.h"

namespace ringfleet::integration {
namespace {

// Sanitizers slow every call. Fewer of them reach the same code.
constexpr int kWaitingJobs = kSanitized ? 200 : 1000;
constexpr int kWatchers = kSanitized ? 40 : 200;
// A connection for most jobs, as if each had a process of its own.
constexpr int kConnections = kWaitingJobs / 2;

// Threads of a coordinator. gRPC has pools that grow with the machine's CPUs.
int MostThreads() {
  const long cpus = sysconf(_SC_NPROCESSORS_CONF);
  return 40 + static_cast<int>(std::max(cpus - 8, 0l) * 3 / 2);
}

class WaitingJobsTest : public HandFleet {
 protected:
  void StartOneWorker(const RunOptions& options = {}) {
    ASSERT_NO_FATAL_FAILURE(StartCoordinator(1, {"--parallel", "16"}, options));
    StartWorker(0);
    ASSERT_EQ(WaitForState("ready")["state"], "ready")
        << coordinator_->errors();
    stub_ = v1::Coordinator::NewStub(
        grpc::CreateChannel("127.0.0.1:" + std::to_string(port()),
                            grpc::InsecureChannelCredentials()));
  }

  // Makes jobs wait until EndBenchmark().
  void BeginBenchmark() {
    v1::BenchRequest request;
    request.set_repetitions(1000);
    request.set_no_memory_test(true);
    v1::BenchTest* test = request.add_tests();
    test->set_n_gen(500);
    test->set_n_parallel(1);
    bench_context_ = std::make_unique<grpc::ClientContext>();
    bench_context_->set_wait_for_ready(true);
    bench_ = stub_->Bench(bench_context_.get(), request);
    v1::BenchProgress progress;
    do {
      ASSERT_TRUE(bench_->Read(&progress)) << bench_->Finish().error_message();
    } while (!progress.has_started());
  }
  void EndBenchmark() {
    bench_context_->TryCancel();
    v1::BenchProgress ignored;
    while (bench_->Read(&ignored)) {
    }
    bench_->Finish();
  }

  // Lets many jobs wait and be watched while `seconds` pass, then run.
  void ExpectNobodyIsMissed(double seconds) {
    ASSERT_NO_FATAL_FAILURE(BeginBenchmark());
    StreamedJobs jobs(port(), kConnections);
    for (int i = 0; i < kWaitingJobs; ++i) {
      v1::GenerateRequest request;
      for (const uint32_t id : {0, 318, 1 + i % 250}) {
        request.mutable_prompt()->mutable_ids()->add_ids(id);
      }
      request.set_max_tokens(2);
      request.set_ignore_eos(true);
      jobs.Generate(request);
    }
    ASSERT_TRUE(WaitUntil(60, [&] { return jobs.accepted() == kWaitingJobs; }))
        << jobs.accepted();
    StreamedJobs watchers(port(), kWatchers);
    for (int i = 0; i < kWatchers; ++i) watchers.Watch(jobs.id(i));
    ASSERT_TRUE(WaitUntil(60, [&] { return watchers.accepted() == kWatchers; }))
        << watchers.accepted();
    const json before = Status();
    EXPECT_EQ(before["requests"]["waiting"], kWaitingJobs);
    int threads = 0;
    json now;
    EXPECT_FALSE(WaitUntil(seconds, [&] {
      threads = std::max(threads, testing::ThreadCount(coordinator_->pid()));
      now = Status();
      return now["state"] != "ready" || now["epoch"] != before["epoch"];
    })) << now;
    EXPECT_LE(threads, MostThreads());
    RecordProperty("threads", threads);
    EndBenchmark();
    const std::vector<StreamedResult> results = jobs.Wait();
    for (const StreamedResult& result : results) {
      EXPECT_EQ(result.code, grpc::StatusCode::OK) << result.message;
      EXPECT_EQ(result.ids.size(), 2u);
    }
    const std::vector<StreamedResult> watched = watchers.Wait();
    for (int i = 0; i < kWatchers; ++i) EXPECT_EQ(watched[i], results[i]);
    EXPECT_EQ(Status()["epoch"], before["epoch"]);
    // A worker notes a heartbeat without an answer.
    EXPECT_THAT(workers_[0]->errors(),
                ::testing::Not(HasSubstr("trying again")));
  }

 private:
  std::unique_ptr<v1::Coordinator::Stub> stub_;
  std::unique_ptr<grpc::ClientContext> bench_context_;
  std::unique_ptr<grpc::ClientReader<v1::BenchProgress>> bench_;
};

TEST_F(WaitingJobsTest, HoldNoThreads) {
  ASSERT_NO_FATAL_FAILURE(StartOneWorker());
  ExpectNobodyIsMissed(0.5);
}

// Longer than a worker waits for the answer to a heartbeat.
constexpr double kHeartbeatSeconds = 6 / testing::kSlowdown;

TEST_F(WaitingJobsTest, NeedNoThreadsThatAUserMayNotHave) {
  // The user has to find the programs, and writes the port's file.
  std::filesystem::permissions(File(""), std::filesystem::perms::all);
  const RunOptions limited = {.threads = MostThreads()};
  if (Run("/usr/bin/test", {"-x", RINGFLEET_COORDINATOR_BINARY}, limited)
              .code != 0 ||
      Run("/usr/bin/test", {"-r", Model() + "/config.json"}, limited).code !=
          0) {
    GTEST_SKIP() << "needs root, and a build that other users may read";
  }
  ASSERT_NO_FATAL_FAILURE(StartOneWorker(limited));
  ExpectNobodyIsMissed(kHeartbeatSeconds);
}

TEST_F(WaitingJobsTest, NeedNoThreadsBeyondPidsMax) {
  ASSERT_NO_FATAL_FAILURE(StartOneWorker());
  const testing::TaskCgroup cgroup(MostThreads());
  if (!cgroup.Add(coordinator_->pid())) {
    GTEST_SKIP() << "needs a cgroup with pids.max that it may write";
  }
  ExpectNobodyIsMissed(kHeartbeatSeconds);
  coordinator_->Signal(SIGTERM);
  EXPECT_EQ(coordinator_->Wait(10), 0) << coordinator_->errors();
}

// A watcher is sent the next event when it has taken the last one. Measured:
// 4 MiB for 200 watchers. Their events would take 20 MiB or more.
TEST_F(WaitingJobsTest, WatchersWhoReadNothingTakeNoMemory) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer's shadow is no measure";
  constexpr uint32_t kTokens = 500;
  constexpr uint64_t kMostBytes = 8 << 20;
  ASSERT_NO_FATAL_FAILURE(StartOneWorker());
  StreamedJobs job(port());
  v1::GenerateRequest request;
  request.mutable_prompt()->mutable_ids()->add_ids(318);
  request.set_detach(true);  // It is kept when it has ended.
  request.set_max_tokens(kTokens);
  request.set_ignore_eos(true);
  job.Generate(request);
  ASSERT_TRUE(WaitUntil(30, [&] { return job.accepted() == 1; }));
  const uint64_t before = testing::StatusBytes(coordinator_->pid(), "RssAnon");
  StreamedJobs watchers(port());
  for (int i = 0; i < kWatchers; ++i) watchers.Watch(job.id(0), /*held=*/true);
  ASSERT_TRUE(WaitUntil(30, [&] { return watchers.accepted() == kWatchers; }));
  ASSERT_EQ(job.Wait()[0].ids.size(), kTokens);
  const uint64_t after = testing::StatusBytes(coordinator_->pid(), "RssAnon");
  EXPECT_LE(after, before + kMostBytes);
  EXPECT_EQ(watchers.ended(), 0u);
}

}  // namespace
}  // namespace ringfleet::integration
