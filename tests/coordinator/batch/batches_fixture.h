// SPDX-License-Identifier: Apache-2.0
// Batches over a store and jobs that the test plays, with a clock of its own.
#ifndef RINGFLEET_TESTS_COORDINATOR_BATCH_BATCHES_FIXTURE_H_
#define RINGFLEET_TESTS_COORDINATOR_BATCH_BATCHES_FIXTURE_H_

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "coordinator/batch/batch_upload.h"
#include "coordinator/batch/batches.h"
#include "tests/coordinator/http/fake_jobs.h"
#include "tests/testing/checkpoint_writer.h"
#include "tests/testing/soon.h"

namespace ringfleet::coordinator {

inline constexpr char kBatchModel[] = RINGFLEET_TEST_MODELS "/tiny-v3";

// Returns a line of OpenAI's form.
inline std::string ChatLine(const std::string& id,
                            const std::string& text = "hi") {
  return absl::StrCat(
      R"({"custom_id":")", id,
      R"(","method":"POST","url":"/v1/chat/completions","body":{"messages":)",
      R"([{"role":"user","content":")", text, R"("}],"max_tokens":4}})");
}

class BatchesTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    auto model = ServedModel::Load(kBatchModel);
    ASSERT_TRUE(model.ok()) << model.status();
    model_ = model->release();
  }
  static void TearDownTestSuite() {
    delete model_;
    model_ = nullptr;
  }

  void SetUp() override {
    jobs_.AnswerWith(*(*model_->tokenizer())->Encode("ok"),
                     v1::FINISH_REASON_LENGTH);
    Start();
  }
  void Start() {
    StoreOptions options;
    options.folder = dir_.path();
    options.description = "fleet test";
    options.now = [this] {
      MutexLock lock(&mu_);
      return now_;
    };
    auto store = Store::Open(std::move(options));
    ASSERT_TRUE(store.ok()) << store.status();
    store_ = *std::move(store);
    BatchRunnerOptions runner;
    runner.store = store_.get();
    runner.model = model_;
    runner.jobs = &jobs_;
    runner.served_name = served_name_;
    runner.window = window_;
    runner.pause = absl::Milliseconds(10);
    runner.keep_bytes = keep_bytes_;
    batches_ = Batches::Start(runner);
  }
  void TearDown() override { store_->Stop(); }
  void End() {
    store_->Stop();
    batches_.reset();
    store_.reset();
  }
  void Restart() {
    End();
    Start();
  }
  void PassTime(absl::Duration time) {
    MutexLock lock(&mu_);
    now_ += time;
  }

  std::string UploadText(const std::string& text,
                         const std::string& owner = "") {
    FileRecord file;
    file.owner = owner;
    file.purpose = "batch";
    file.name = "in.jsonl";
    auto upload = BatchUpload::Start(store_.get(), file);
    EXPECT_TRUE(upload.ok()) << upload.status();
    EXPECT_EQ((*upload)->Append(text), absl::OkStatus());
    auto done = (*upload)->Finish(batches_->upload_seconds());
    EXPECT_TRUE(done.ok()) << done.status();
    return done->id;
  }
  // Waits for the result of a call that answers through a function.
  static absl::StatusOr<BatchRecord> Await(
      const std::function<void(Batches::Created)>& call) {
    absl::StatusOr<BatchRecord> made = absl::UnknownError("not done");
    Mutex mu;
    CondVar changed;
    bool done = false;
    call([&](absl::StatusOr<BatchRecord> record) {
      MutexLock lock(&mu);
      made = std::move(record);
      done = true;
      changed.NotifyAll();
    });
    MutexLock lock(&mu);
    while (!done && changed.WaitUntil(&mu, testing::Soon().when())) {
    }
    return made;
  }
  absl::StatusOr<BatchRecord> Create(NewBatch batch) {
    return Await([&](Batches::Created done) {
      batches_->Create(std::move(batch), std::move(done));
    });
  }
  absl::StatusOr<BatchRecord> Cancel(const std::string& id) {
    return Await([&](Batches::Created done) {
      batches_->Cancel(id, "", std::move(done));
    });
  }
  BatchRecord CreateOf(const std::string& text) {
    NewBatch batch;
    batch.input_file = UploadText(text);
    auto made = Create(batch);
    EXPECT_TRUE(made.ok()) << made.status();
    return made.ok() ? *made : BatchRecord();
  }
  BatchRecord Find(const std::string& id) {
    BatchRecord batch;
    EXPECT_EQ(store_->Read([&](Database& database) {
      auto found = FindBatch(database, id, "");
      if (found.ok()) batch = *found;
      return found.status();
    }),
              absl::OkStatus());
    return batch;
  }
  void AwaitState(const std::string& id, const char* state) {
    const auto deadline = testing::Soon();
    while (Find(id).state != state && !deadline.Expired()) {
      absl::SleepFor(absl::Milliseconds(5));
    }
    EXPECT_EQ(Find(id).state, state);
  }
  void AwaitCompleted(const std::string& id, int64_t lines) {
    const auto deadline = testing::Soon();
    while (Find(id).completed < lines && !deadline.Expired()) {
      absl::SleepFor(absl::Milliseconds(5));
    }
    EXPECT_EQ(Find(id).completed, lines);
  }
  // Draws a token, and ends.
  static void FinishJob(Job& job, uint32_t cached = 0) {
    job.OnRunning(cached);
    job.OnToken({.id = 300, .logprob = 0, .top = {}});
    job.OnFinished(v1::FINISH_REASON_LENGTH, {.cached_n = cached});
  }
  BatchRecord AwaitEnd(const std::string& id) {
    const auto deadline = testing::Soon();
    uint64_t version = 0;
    while (!Find(id).has_ended() && !deadline.Expired()) {
      batches_->WaitForChange(&version, absl::Milliseconds(50));
    }
    return Find(id);
  }
  std::vector<nlohmann::json> Outputs(
      const std::string& id, std::optional<bool> failed = std::nullopt) {
    std::vector<nlohmann::json> lines;
    EXPECT_EQ(store_->Read([&](Database& database) {
      OutputOptions options;
      options.order = OutputOptions::Order::kInput;
      options.failed = failed;
      auto outputs = ListOutputs(database, id, options);
      if (!outputs.ok()) return outputs.status();
      for (const OutputRecord& output : *outputs) {
        lines.push_back(nlohmann::json::parse(output.text));
      }
      return absl::OkStatus();
    }),
              absl::OkStatus());
    return lines;
  }

  static inline ServedModel* model_ = nullptr;
  testing::TempDir dir_;
  Mutex mu_;
  absl::Time now_ ABSL_GUARDED_BY(mu_) = absl::FromUnixSeconds(1'800'000'000);
  std::string served_name_ = "tiny";
  size_t window_ = 4;
  int64_t keep_bytes_ = BatchRunnerOptions().keep_bytes;
  FakeJobs jobs_;
  std::unique_ptr<Store> store_;
  std::unique_ptr<Batches> batches_;  // Ends before the store.
};

}  // namespace ringfleet::coordinator

#endif  // RINGFLEET_TESTS_COORDINATOR_BATCH_BATCHES_FIXTURE_H_
