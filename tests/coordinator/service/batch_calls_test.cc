// SPDX-License-Identifier: Apache-2.0
#include "coordinator/service/batch_calls.h"

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "tests/coordinator/http/fake_jobs.h"
#include "tests/testing/checkpoint_writer.h"

namespace ringfleet::coordinator {
namespace {

// Batches of a model that is not served, so that the test plays their lines.
class BatchCallsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    StoreOptions options = {.folder = dir_.path(), .description = "test"};
    // The time of the records below: none is too old to be kept.
    options.now = [] { return absl::FromUnixMillis(10); };
    auto store = Store::Open(options);
    ASSERT_TRUE(store.ok()) << store.status();
    store_ = *std::move(store);
    auto model = ServedModel::Load(RINGFLEET_TEST_MODELS "/tiny-v3");
    ASSERT_TRUE(model.ok()) << model.status();
    model_ = *std::move(model);
    BatchRunnerOptions runner;
    runner.store = store_.get();
    runner.model = model_.get();
    runner.jobs = &jobs_;
    runner.served_name = "served";
    batches_ = Batches::Start(runner);
    calls_.Set(batches_.get());
  }
  void TearDown() override { store_->Stop(); }

  void Change(const Store::Operation& operation) {
    ASSERT_EQ(store_->WriteNow(operation), absl::OkStatus());
  }
  // Makes a batch in progress with lines from 1 on.
  void Begin(const std::string& id, int64_t lines, int64_t created_ms = 1) {
    Change([=](Database& database) {
      BatchRecord batch;
      batch.id = id;
      batch.model = "other";
      batch.created_ms = created_ms;
      absl::Status status = InsertBatch(database, batch);
      std::vector<LineRecord> records;
      for (int64_t i = 1; i <= lines; ++i) records.push_back({.number = i});
      status.Update(BeginBatch(database, id, records, 2));
      return status;
    });
  }
  void Commit(const std::string& id, int64_t number, bool failed = false) {
    Change([=](Database& database) {
      return InsertOutput(
          database, id,
          {.number = number, .failed = failed, .text = absl::StrCat(number)},
          {});
    });
  }
  void Finish(const std::string& id) {
    Change([=](Database& database) {
      absl::Status status =
          FailOpenLines(database, id, 1000,
                        [](const LineRecord&) { return std::string("-"); });
      status.Update(FinishBatch(database, id, kBatchCompleted, 9));
      return status;
    });
  }
  // Streams results and lists their texts. Before each look at the store,
  // `looks` calls the next one of `steps`; behind the last one the caller
  // leaves.
  std::string Stream(const v1::StreamResultsRequest& request,
                     const std::vector<std::function<void()>>& steps = {}) {
    size_t looks = 0;
    const absl::Status status = calls_.StreamResults(
        request,
        [&] {
          if (steps.empty()) return false;
          if (looks == steps.size()) return true;
          steps[looks++]();
          return false;
        },
        [&](const v1::StreamResultsResponse& response) {
          for (const auto& result : response.results()) {
            told_ += result.text();
            last_ = result;
          }
          return true;
        });
    return absl::StrCat(std::exchange(told_, ""), " ",
                        absl::StatusCodeToString(status.code()));
  }
  static v1::StreamResultsRequest RequestOf(const std::string& id) {
    v1::StreamResultsRequest request;
    request.set_id(id);
    request.set_order(v1::StreamResultsRequest::ORDER_INPUT);
    return request;
  }

  testing::TempDir dir_;
  FakeJobs jobs_;
  std::unique_ptr<ServedModel> model_;
  std::unique_ptr<Store> store_;
  std::unique_ptr<Batches> batches_;
  BatchCalls calls_;
  std::string told_;
  v1::StreamResultsResponse::Result last_;
};

TEST_F(BatchCallsTest, AFollowerSeesTheOrderOfTheInput) {
  Begin("batch_1", 4);
  v1::StreamResultsRequest request = RequestOf("batch_1");
  request.set_follow(true);
  std::string seen;
  EXPECT_EQ(Stream(request, {[this] { Commit("batch_1", 3); },
                             [this] { Commit("batch_1", 1); },
                             [&] {
                               seen = told_;
                               Commit("batch_1", 2);
                             },
                             [this] { Finish("batch_1"); }, [] {}}),
            "123- OK");
  EXPECT_EQ(seen, "1");
  // Without a follower, what there is.
  Begin("batch_2", 3);
  Commit("batch_2", 3);
  Commit("batch_2", 1);
  EXPECT_EQ(Stream(RequestOf("batch_2")), "13 OK");
}

TEST_F(BatchCallsTest, ResultsGoOnBehindTheLastOne) {
  Begin("batch_1", 5);
  v1::StreamResultsRequest request = RequestOf("batch_1");
  request.set_order(v1::StreamResultsRequest::ORDER_COMMITS);
  Commit("batch_1", 4);
  Commit("batch_1", 2, /*failed=*/true);
  EXPECT_EQ(Stream(request), "42 OK");
  request.set_after(last_.sequence());
  Commit("batch_1", 5);
  Commit("batch_1", 1);
  EXPECT_EQ(Stream(request), "51 OK");
  request = RequestOf("batch_1");
  request.set_after(2);
  EXPECT_EQ(Stream(request), "45 OK");
  request.set_after(0);
  request.set_failed(true);
  EXPECT_EQ(Stream(request), "2 OK");
  EXPECT_EQ(last_.line(), 2);
  EXPECT_TRUE(last_.failed());
  request.set_completed(true);  // Both kinds.
  EXPECT_EQ(Stream(request), "1245 OK");
  request.set_failed(false);
  EXPECT_EQ(Stream(request), "145 OK");
  request.set_follow(true);  // Line 3 is open.
  EXPECT_EQ(Stream(request, {[] {}}), "1 CANCELLED");
  EXPECT_EQ(Stream(RequestOf("batch_none")), " NOT_FOUND");
}

TEST_F(BatchCallsTest, ListsHavePagesOfTheOldestFirst) {
  for (int i = 1; i <= 3; ++i) Begin(absl::StrCat("batch_", i), i, i);
  v1::ListJobsResponse page;
  std::string next;
  ASSERT_EQ(calls_.List("", 2, &page, &next), absl::OkStatus());
  ASSERT_EQ(page.jobs_size(), 2);
  EXPECT_EQ(page.jobs(0).id(), "batch_1");
  EXPECT_EQ(page.jobs(1).batch().total(), 2);
  EXPECT_EQ(page.jobs(1).waits_for(), "waits for the model other");
  EXPECT_EQ(next, "batch_2");
  page.Clear();
  ASSERT_EQ(calls_.List(next, 2, &page, &next), absl::OkStatus());
  ASSERT_EQ(page.jobs_size(), 1);
  EXPECT_EQ(page.jobs(0).id(), "batch_3");
  EXPECT_EQ(next, "");
  page.Clear();
  ASSERT_EQ(calls_.List("", 3, &page, &next), absl::OkStatus());
  EXPECT_EQ(page.jobs_size(), 3);
  EXPECT_EQ(next, "");
}

TEST_F(BatchCallsTest, ATimeoutIsTheWindow) {
  const auto expiry = [this](uint32_t timeout_ms) {
    int messages = 0;
    v1::GetJobResponse made;
    const absl::Status status = calls_.Submit(
        [&](v1::SubmitBatchRequest* message) {
          if (messages == 0)
            message->mutable_batch()->set_timeout_ms(timeout_ms);
          if (messages == 1) message->set_data("nonsense");
          return ++messages <= 2;
        },
        [] { return false; }, &made);
    EXPECT_EQ(status, absl::OkStatus());
    EXPECT_EQ(made.job().created_unix_ms(), 10);
    return made.job().batch().expires_unix_ms();
  };
  EXPECT_EQ(expiry(0), 0);
  EXPECT_EQ(expiry(1), 1010);
  EXPECT_EQ(expiry(30'000), 30'010);
  EXPECT_EQ(expiry(UINT32_MAX), 10 + 4'294'968'000);
}

TEST_F(BatchCallsTest, AnEndedBatchIsNotCancelled) {
  Begin("batch_1", 1);
  Finish("batch_1");
  EXPECT_TRUE(absl::IsFailedPrecondition(calls_.Cancel("batch_1")));
  EXPECT_TRUE(absl::IsNotFound(calls_.Cancel("batch_none")));
  v1::GetJobResponse told;
  ASSERT_EQ(calls_.Get("batch_1", &told), absl::OkStatus());
  EXPECT_EQ(told.job().state(), v1::JOB_STATE_COMPLETED);
  EXPECT_EQ(told.job().batch().failed(), 1);
}

}  // namespace
}  // namespace ringfleet::coordinator
