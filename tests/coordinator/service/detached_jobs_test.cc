// SPDX-License-Identifier: Apache-2.0
#include "coordinator/service/detached_jobs.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "tests/testing/checkpoint_writer.h"
#include "tests/testing/soon.h"

namespace ringfleet::coordinator {
namespace {

class DetachedJobsTest : public ::testing::Test {
 protected:
  void SetUp() override { Start(); }
  void TearDown() override { End(); }
  void Start() {
    StoreOptions options;
    options.folder = dir_.path();
    options.description = "fleet test";
    options.now = [this] { return absl::FromUnixSeconds(now_s_); };
    auto store = Store::Open(std::move(options));
    ASSERT_TRUE(store.ok()) << store.status();
    store_ = *std::move(store);
    detached_ = std::make_unique<DetachedJobs>(
        store_.get(), [this] { return stopping_.load(); });
  }
  // Ends as a coordinator does: the last tokens are written first.
  void End() {
    detached_->Stop();
    store_->Stop();
    detached_.reset();
    store_.reset();
  }
  // Returns the jobs that the next coordinator has.
  std::vector<DetachedJobs::Kept> Restart() {
    End();
    stopping_ = false;
    Start();
    auto kept = detached_->Load();
    EXPECT_TRUE(kept.ok()) << kept.status();
    return kept.ok() ? *std::move(kept) : std::vector<DetachedJobs::Kept>();
  }

  static v1::StoredJob StoredOf(int64_t created_ms) {
    v1::StoredJob stored;
    stored.set_created_unix_ms(created_ms);
    stored.set_model("tiny");
    stored.mutable_request()->set_max_tokens(5);
    return stored;
  }
  std::shared_ptr<Job> Keep(const std::string& id, int64_t created_ms = 1) {
    Request request;
    request.id = id;
    auto job = Job::Make(std::move(request), /*kept=*/true);
    job->HoldUntilStored();
    detached_->Keep(job, StoredOf(created_ms),
                    [job](const absl::Status& kept) { job->OnStored(kept); });
    const auto deadline = testing::Soon();
    while (!job->stored().has_value() && !deadline.Expired()) {
      std::this_thread::yield();
    }
    EXPECT_EQ(job->stored().value_or(absl::UnknownError("not yet")),
              absl::OkStatus());
    return job;
  }
  static void Draw(Job& job, uint32_t first, uint32_t count) {
    for (uint32_t id = first; id < first + count; ++id) {
      job.OnToken({.id = id,
                   .logprob = -0.5F,
                   .top = {{.id = id + 1, .logprob = -0.25F},
                           {.id = id + 2, .logprob = -2}}});
    }
  }

  testing::TempDir dir_;
  // Jobs end by the system's clock.
  std::atomic<int64_t> now_s_{absl::ToUnixSeconds(absl::Now())};
  std::atomic<bool> stopping_{false};
  std::unique_ptr<Store> store_;
  std::unique_ptr<DetachedJobs> detached_;
};

TEST_F(DetachedJobsTest, TokensOutliveSeveralCoordinators) {
  auto job = Keep("b", /*created_ms=*/2);
  const auto other = Keep("a", /*created_ms=*/3);
  Draw(*job, 0, 3);
  auto kept = Restart();
  for (uint32_t tokens = 3; tokens < 9; tokens += 2) {
    ASSERT_EQ(kept.size(), 2u);
    EXPECT_EQ(kept[1].id, "a");
    EXPECT_TRUE(kept[1].tokens.empty());
    ASSERT_EQ(kept[0].id, "b");
    EXPECT_FALSE(kept[0].job.has_end());
    EXPECT_EQ(kept[0].job.model(), "tiny");
    EXPECT_EQ(kept[0].job.request().max_tokens(), 5u);
    ASSERT_EQ(kept[0].tokens.size(), tokens);
    for (uint32_t i = 0; i < tokens; ++i) {
      const DrawnToken& token = kept[0].tokens[i];
      EXPECT_EQ(token.id, i);
      EXPECT_EQ(token.logprob, -0.5F);
      ASSERT_EQ(token.top.size(), 2u);
      EXPECT_EQ(token.top[1].id, i + 2);
      EXPECT_EQ(token.top[1].logprob, -2);
    }
    Request request;
    request.id = "b";
    job = Job::Restore(std::move(request), {}, absl::FromUnixMillis(2), {},
                       kept[0].tokens, {});
    detached_->GoOn(job, kept[0].job, kept[0].tokens.size());
    Draw(*job, tokens, 2);
    kept = Restart();
  }
}

TEST_F(DetachedJobsTest, AnEndIsStored) {
  const auto completed = Keep("a", 1);
  Draw(*completed, 0, 2);
  completed->OnFinished(v1::FINISH_REASON_STOP, {.prompt_n = 7});
  const auto failed = Keep("b", 2);
  failed->OnFailed(absl::DataLossError("NaN"));
  const auto kept = Restart();
  ASSERT_EQ(kept.size(), 2u);
  EXPECT_EQ(kept[0].tokens.size(), 2u);
  EXPECT_EQ(kept[0].job.end().reason(), v1::FINISH_REASON_STOP);
  EXPECT_EQ(kept[0].job.end().error_code(), 0u);
  EXPECT_EQ(kept[0].job.end().timings().prompt_n(), 7u);
  EXPECT_GT(kept[0].job.end().ended_unix_ms(), 0);
  EXPECT_EQ(kept[1].job.end().error(), "NaN");
  EXPECT_EQ(kept[1].job.end().error_code(),
            static_cast<uint32_t>(absl::StatusCode::kDataLoss));
}

// A job that fails because its coordinator ends goes on with the next one.
TEST_F(DetachedJobsTest, TheEndOfACoordinatorEndsNoJob) {
  const auto cut = Keep("a", 1);
  const auto failed = Keep("b", 2);
  Draw(*cut, 0, 1);
  stopping_ = true;
  cut->OnFailed(absl::UnavailableError("the coordinator stops"));
  failed->OnFailed(absl::DataLossError("NaN"));
  const auto kept = Restart();
  ASSERT_EQ(kept.size(), 2u);
  EXPECT_FALSE(kept[0].job.has_end());
  EXPECT_EQ(kept[0].tokens.size(), 1u);
  EXPECT_TRUE(kept[1].job.has_end());
}

// The coordinator may be killed before the job has ended.
TEST_F(DetachedJobsTest, ACancelledJobDoesNotComeBack) {
  const auto job = Keep("a");
  EXPECT_EQ(detached_->NoteCancelled("a"), absl::OkStatus());
  EXPECT_EQ(detached_->NoteCancelled("none"), absl::OkStatus());
  auto loaded = detached_->Load();
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  ASSERT_EQ(loaded->size(), 1u);
  EXPECT_EQ(loaded->at(0).job.end().error_code(),
            static_cast<uint32_t>(absl::StatusCode::kCancelled));
  EXPECT_EQ(loaded->at(0).job.end().ended_unix_ms(), now_s_ * 1000);
  EXPECT_EQ(Restart().size(), 1u);
  now_s_ += 25 * 3600;  // It has ended for the limits, too.
  EXPECT_TRUE(Restart().empty());
}

TEST_F(DetachedJobsTest, EndedJobsAreForgottenAfterADay) {
  const auto ended = Keep("a", 1);
  Draw(*ended, 0, 2);
  ended->OnFinished(v1::FINISH_REASON_LENGTH, {});
  const auto open = Keep("b", 2);
  now_s_ += 23 * 3600;
  EXPECT_EQ(Restart().size(), 2u);
  now_s_ += 2 * 3600;
  const auto kept = Restart();
  ASSERT_EQ(kept.size(), 1u);
  EXPECT_EQ(kept[0].id, "b");
}

TEST_F(DetachedJobsTest, ARemovedJobIsGone) {
  const auto job = Keep("a");
  Draw(*job, 0, 2);
  detached_->Remove("a");
  EXPECT_TRUE(Restart().empty());
}

TEST_F(DetachedJobsTest, AJobThatCannotBeStoredIsToldSo) {
  store_->Stop();
  Request request;
  request.id = "a";
  absl::Status told;
  detached_->Keep(Job::Make(std::move(request), /*kept=*/true), StoredOf(1),
                  [&told](const absl::Status& status) { told = status; });
  EXPECT_TRUE(absl::IsCancelled(told)) << told;
}

}  // namespace
}  // namespace ringfleet::coordinator
