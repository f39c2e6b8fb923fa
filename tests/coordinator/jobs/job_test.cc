// SPDX-License-Identifier: Apache-2.0
#include "coordinator/jobs/job.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/jobs/job_table.h"
#include "tests/testing/bundled_model.h"

namespace ringfleet::coordinator {
namespace {

using ::testing::ElementsAre;
using ::testing::SizeIs;

std::shared_ptr<Job> MakeKept(const std::string& id) {
  Request request;
  request.id = id;
  request.prompt_ids = {1, 2};
  return Job::Make(std::move(request), /*kept=*/true);
}

struct CountingObserver : JobObserver {
  void OnJobChange() override { ++changes; }
  int changes = 0;
};

TEST(JobTest, KeepsWhatItWasToldAndTellsItsObservers) {
  const auto job = MakeKept("a");
  const auto observer = std::make_shared<CountingObserver>();
  auto gone = std::make_shared<CountingObserver>();
  job->Observe(observer);
  job->Observe(gone);
  gone.reset();
  EXPECT_EQ(job->progress().state, v1::JOB_STATE_WAITING);
  job->OnWaiting("it waits for worker 1");
  EXPECT_EQ(job->progress().waits_for, "it waits for worker 1");
  job->OnRunning(/*cached_n=*/0);
  EXPECT_EQ(job->progress().state, v1::JOB_STATE_RUNNING);
  EXPECT_EQ(job->progress().waits_for, "");
  job->OnToken({.id = 7, .logprob = -1, .top = {}});
  job->OnToken({.id = 8, .logprob = -2, .top = {}});
  EXPECT_THAT(job->TokensFrom(0), SizeIs(2));
  ASSERT_THAT(job->TokensFrom(1), SizeIs(1));
  EXPECT_EQ(job->TokensFrom(1)[0].id, 8u);
  EXPECT_THAT(job->TokensFrom(2), SizeIs(0));
  EXPECT_FALSE(job->progress().has_ended());
  job->OnFinished(v1::FINISH_REASON_STOP, {.predicted_n = 2});
  EXPECT_EQ(job->progress().state, v1::JOB_STATE_COMPLETED);
  EXPECT_EQ(job->progress().timings.predicted_n, 2u);
  EXPECT_TRUE(job->progress().has_ended());
  EXPECT_EQ(observer->changes, 5);
}

TEST(JobTest, AStopStringEndsItAndTheSurplusIsDropped) {
  const auto tokenizer = Tokenizer::Load(testing::BundledModel("tiny-v3"));
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  const auto id = [&](const char* text) {
    return (*tokenizer)->Encode(text)->front();
  };
  Request request;
  request.prompt_ids = {1, 2, 3};
  const auto job =
      Job::Make(std::move(request), /*kept=*/true, {tokenizer->get(), {"bc"}});
  job->OnRunning(/*cached_n=*/0);
  for (const char* text : {"a", "b"}) job->OnToken({.id = id(text)});
  EXPECT_FALSE(job->has_enough());
  EXPECT_FALSE(job->progress().has_ended());
  job->OnToken({.id = id("c")});
  EXPECT_TRUE(job->has_enough());
  // Two plans may be in flight, and the request ends by a cancellation.
  job->OnToken({.id = id("d")});
  job->OnWaiting("it waits");
  job->OnFailed(absl::CancelledError("cancelled"));
  EXPECT_FALSE(job->has_enough());
  EXPECT_THAT(job->TokensFrom(0), SizeIs(3));
  const JobProgress progress = job->progress();
  EXPECT_EQ(progress.state, v1::JOB_STATE_COMPLETED);
  EXPECT_EQ(progress.reason, v1::FINISH_REASON_STOP);
  EXPECT_TRUE(progress.error.ok());
  EXPECT_EQ(progress.timings.prompt_n, 3u);
  EXPECT_EQ(progress.timings.predicted_n, 3u);
}

TEST(JobTest, TheRequestKeepsTheJobAlive) {
  auto job = MakeKept("a");
  const std::weak_ptr<Job> weak = job;
  auto request = Job::RequestOf(job);
  job.reset();
  ASSERT_FALSE(weak.expired());
  request->events->OnFailed(absl::CancelledError("gone"));
  EXPECT_EQ(weak.lock()->progress().state, v1::JOB_STATE_CANCELLED);
  request.reset();
  EXPECT_TRUE(weak.expired());
}

std::vector<std::string> Ids(const JobTable& table) {
  std::vector<std::string> ids;
  for (const auto& listed : table.ListAfter(0)) {
    ids.push_back(listed.job->id());
  }
  return ids;
}

absl::Time InTwoHours() { return absl::Now() + absl::Hours(2); }

TEST(JobTableTest, DropsTheOldestResultsBeyondItsLimits) {
  JobTable table({.ended = 2, .age = absl::Hours(3)}, &absl::Now);
  for (int i = 0; i < 5; ++i) {
    const auto job = MakeKept(absl::StrCat("j", i));
    table.Add(job);
    if (i != 1) job->OnFinished(v1::FINISH_REASON_STOP, {});
  }
  // One that waits or runs is never dropped.
  EXPECT_THAT(Ids(table), ElementsAre("j1", "j3", "j4"));
  EXPECT_EQ(table.Find("j0").status().code(), absl::StatusCode::kNotFound);
  table.Remove("j3");
  EXPECT_THAT(Ids(table), ElementsAre("j1", "j4"));

  JobTable aged({.ended = 9, .age = absl::Hours(1)}, &InTwoHours);
  const auto old = MakeKept("old");
  aged.Add(old);
  aged.Add(MakeKept("running"));
  EXPECT_THAT(Ids(aged), ElementsAre("old", "running"));
  old->OnFailed(absl::UnavailableError("lost"));
  EXPECT_THAT(Ids(aged), ElementsAre("running"));
}

TEST(JobTableTest, AListGoesOnBehindJobsThatHaveLeft) {
  JobTable table;
  for (int i = 0; i < 4; ++i) table.Add(MakeKept(absl::StrCat("j", i)));
  Request line;
  line.id = "line";
  line.listed = false;
  table.Add(Job::Make(std::move(line), /*kept=*/false));
  table.Add(MakeKept("j4"));
  const auto all = table.ListAfter(0);
  ASSERT_EQ(all.size(), 5u);
  const uint64_t told = all[1].number;
  for (const char* gone : {"j0", "j1", "j2"}) table.Remove(gone);
  const auto rest = table.ListAfter(told);
  ASSERT_EQ(rest.size(), 2u);
  EXPECT_EQ(rest[0].job->id(), "j3");
  EXPECT_EQ(rest[1].job->id(), "j4");
  EXPECT_TRUE(table.Find("line").ok());
}

TEST(JobTableTest, IdsAreNew) {
  JobTable first;
  EXPECT_NE(first.NextId(), first.NextId());
  EXPECT_EQ(first.NextId().size(), 8u);
}

}  // namespace
}  // namespace ringfleet::coordinator
