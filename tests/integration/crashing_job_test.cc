// SPDX-License-Identifier: Apache-2.0
// A job that kills a worker whenever it is admitted ends with the cause. All
// others end right.
#include <string>
#include <vector>

#include "tests/integration/crash_id.h"
#include "tests/integration/fleet_fixture.h"
#include "tests/integration/streamed_jobs.h"

namespace ringfleet::integration {
namespace {

constexpr int kInnocent = 7;

class CrashingJobTest : public HandFleet {
 protected:
  void StartFragileWorker() {
    StartWorker(1, {}, {.path = RINGFLEET_CRASHING_WORKER_BINARY});
  }

  // Greedy and seeded jobs, in turns.
  static v1::GenerateRequest InnocentRequest(int number) {
    v1::GenerateRequest request;
    for (const uint32_t id : {0, 318, 287, 40 + number}) {
      request.mutable_prompt()->mutable_ids()->add_ids(id);
    }
    request.set_max_tokens(kSanitized ? 100 : 300);
    request.set_ignore_eos(true);
    request.set_temperature(number % 2 == 0 ? 0.0f : 0.8f);
    if (number % 2 == 1) request.set_seed(number);
    return request;
  }
};

TEST_F(CrashingJobTest, EndsWithTheCauseAndAlone) {
  ASSERT_NO_FATAL_FAILURE(StartCoordinator(2, {"--parallel", "8"}));
  StartWorker(0);
  StartFragileWorker();
  ASSERT_EQ(WaitForState("ready")["state"], "ready") << coordinator_->errors();
  std::vector<StreamedResult> right;
  {
    StreamedJobs undisturbed(port());
    for (int i = 0; i < kInnocent; ++i) {
      undisturbed.Generate(InnocentRequest(i));
    }
    right = undisturbed.Wait();
    for (const StreamedResult& result : right) {
      ASSERT_EQ(result.code, grpc::StatusCode::OK) << result.message;
    }
  }
  StreamedJobs innocent(port());
  for (int i = 0; i < kInnocent; ++i) innocent.Generate(InnocentRequest(i));
  ASSERT_TRUE(WaitUntil(30, [&] { return innocent.least_tokens() >= 10; }));
  v1::GenerateRequest crashing = InnocentRequest(0);
  crashing.mutable_prompt()->mutable_ids()->set_ids(1, kCrashId);
  StreamedJobs guilty(port());
  guilty.Generate(crashing);
  int crashes = 0;
  EXPECT_TRUE(WaitUntil(60, [&] {
    if (!workers_[1]->Running()) {
      ++crashes;
      StartFragileWorker();
    }
    return guilty.ended() == 1 && innocent.ended() == kInnocent;
  })) << coordinator_->errors();
  EXPECT_EQ(innocent.Wait(1), right);
  const StreamedResult end = guilty.Wait(1)[0];
  EXPECT_EQ(end.code, grpc::StatusCode::UNAVAILABLE);
  EXPECT_THAT(end.message, HasSubstr("worker 1"));
  EXPECT_TRUE(end.ids.empty());
  // Twice beside others, one of these times with all of them in their replays,
  // and three times alone.
  EXPECT_EQ(crashes, 5);
}

}  // namespace
}  // namespace ringfleet::integration
