// SPDX-License-Identifier: Apache-2.0
// The upkeep of a store: it forgets what is too old or too much.
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <string>
#include <thread>

#include "coordinator/batch/batches.h"
#include "tests/coordinator/batch/batches_fixture.h"

namespace ringfleet::coordinator {
namespace {

class BatchLimitsTest : public BatchesTest {
 protected:
  bool Exists(const std::string& id) {
    return store_
        ->Read([&id](Database& database) {
          return FindBatch(database, id, "").status();
        })
        .ok();
  }
  void AwaitForgotten(const std::string& id) {
    const auto deadline = testing::Soon();
    while (Exists(id) && !deadline.Expired()) {
      absl::SleepFor(absl::Milliseconds(5));
    }
    EXPECT_FALSE(Exists(id));
  }
};

// A process that was killed leaves files that no record names.
TEST_F(BatchLimitsTest, OldFilesOfNobodyAreRemoved) {
  const std::string folder = store_->FilePath("");
  const auto age = [&folder](const std::string& name) {
    std::filesystem::last_write_time(
        folder + name,
        std::filesystem::file_time_type::clock::now() - std::chrono::hours(48));
  };
  const std::string kept = UploadText(ChatLine("a"));
  End();  // Its first look may not know the upload yet.
  age(kept);
  for (const char* const name : {"file-old", "file-young"}) {
    testing::WriteFile(folder + name, "x");
  }
  age("file-old");
  Start();
  const auto deadline = testing::Soon();
  while (std::filesystem::exists(store_->FilePath("file-old")) &&
         !deadline.Expired()) {
    std::this_thread::yield();
  }
  EXPECT_FALSE(std::filesystem::exists(store_->FilePath("file-old")));
  EXPECT_TRUE(std::filesystem::exists(store_->FilePath("file-young")));
  EXPECT_TRUE(std::filesystem::exists(store_->FilePath(kept)));
  // A batch shares the bytes of its upload, and is young.
  jobs_.RefuseWith(absl::UnavailableError("no worker"));
  NewBatch batch;
  batch.input_file = kept;
  const auto made = Create(batch);
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_GT(
      std::filesystem::last_write_time(store_->FilePath(made->id)),
      std::filesystem::file_time_type::clock::now() - std::chrono::hours(1));
}

TEST_F(BatchLimitsTest, OldBatchesAndUploadsAreForgotten) {
  const BatchRecord old = CreateOf(ChatLine("a"));
  ASSERT_EQ(AwaitEnd(old.id).state, kBatchCompleted);
  PassTime(absl::Hours(24 * 20));
  const BatchRecord young = CreateOf(ChatLine("b"));
  ASSERT_EQ(AwaitEnd(young.id).state, kBatchCompleted);
  PassTime(absl::Hours(24 * 11));
  Restart();  // Limits are kept at the start.
  AwaitForgotten(old.id);
  EXPECT_TRUE(Exists(young.id));
  EXPECT_TRUE(Outputs(old.id).empty());
  EXPECT_EQ(Outputs(young.id).size(), 1);
}

TEST_F(BatchLimitsTest, TheOldestBatchIsForgottenForItsBytes) {
  const BatchRecord old = CreateOf(ChatLine("a"));
  ASSERT_EQ(AwaitEnd(old.id).state, kBatchCompleted);
  // Its output needs many pages.
  ASSERT_EQ(store_->WriteNow([](Database& database) {
    return database.Run(
        "UPDATE outputs SET text = printf('%.*c', 100000, 'x')");
  }),
            absl::OkStatus());
  PassTime(absl::Hours(1));
  const BatchRecord young = CreateOf(ChatLine("b"));
  ASSERT_EQ(AwaitEnd(young.id).state, kBatchCompleted);
  jobs_.AnswerWith({}, v1::FINISH_REASON_UNSPECIFIED);
  const BatchRecord running = CreateOf(ChatLine("c"));
  AwaitState(running.id, kBatchInProgress);
  ASSERT_EQ(store_->Read([this](Database& database) {
    const auto used = UsedBytes(database);
    keep_bytes_ = used.ok() ? *used - 1 : 0;
    return used.status();
  }),
            absl::OkStatus());
  Restart();  // Limits are kept at the start.
  AwaitForgotten(old.id);
  EXPECT_TRUE(Exists(young.id));
  keep_bytes_ = 0;
  Restart();
  AwaitForgotten(young.id);
  EXPECT_TRUE(Exists(running.id));
}

// Bytes of uploads count, and the oldest of everything goes first.
TEST_F(BatchLimitsTest, TheOldestUploadIsForgottenForItsBytes) {
  const std::string old = UploadText(std::string(200'000, ' ') + ChatLine("a"));
  PassTime(absl::Hours(1));
  const BatchRecord made = CreateOf(ChatLine("b"));
  ASSERT_EQ(AwaitEnd(made.id).state, kBatchCompleted);
  PassTime(absl::Hours(1));
  const std::string young = UploadText(ChatLine("c"));
  ASSERT_EQ(store_->Read([this](Database& database) {
    const auto used = UsedBytes(database);
    keep_bytes_ = used.ok() ? *used - 100'000 : 0;
    return used.status();
  }),
            absl::OkStatus());
  Restart();
  const auto has = [this](const std::string& id) {
    return store_
        ->Read([&id](Database& database) {
          return FindFile(database, id, "").status();
        })
        .ok();
  };
  const auto deadline = testing::Soon();
  while (has(old) && !deadline.Expired()) absl::SleepFor(absl::Milliseconds(5));
  EXPECT_FALSE(has(old));
  EXPECT_TRUE(has(young));
  EXPECT_TRUE(Exists(made.id));
}

TEST_F(BatchLimitsTest, ExpiredFilesAreRemoved) {
  auto upload = BatchUpload::Start(store_.get(), {.purpose = "batch"});
  ASSERT_TRUE(upload.ok()) << upload.status();
  ASSERT_EQ((*upload)->Append("x"), absl::OkStatus());
  const auto expiring = (*upload)->Finish(/*seconds=*/3600);
  ASSERT_TRUE(expiring.ok()) << expiring.status();
  EXPECT_EQ(expiring->expires_ms, store_->now_ms() + 3'600'000);
  NewBatch batch;
  batch.input_file = UploadText(ChatLine("a"));
  batch.output_seconds = 3600;
  const auto made = Create(batch);
  ASSERT_TRUE(made.ok()) << made.status();
  const std::string output = AwaitEnd(made->id).output_file;
  const auto has = [this](const std::string& id) {
    return store_
        ->Read([&id](Database& database) {
          return FindFile(database, id, "").status();
        })
        .ok();
  };
  EXPECT_TRUE(has(output));
  PassTime(absl::Hours(1));
  Restart();
  const auto deadline = testing::Soon();
  while (has(output) && !deadline.Expired()) {
    absl::SleepFor(absl::Milliseconds(5));
  }
  EXPECT_FALSE(has(output));
  EXPECT_FALSE(has(expiring->id));
  EXPECT_TRUE(has(batch.input_file));
  EXPECT_EQ(Find(made->id).output_file, "");
  EXPECT_TRUE(Outputs(made->id).empty());
}

}  // namespace
}  // namespace ringfleet::coordinator
