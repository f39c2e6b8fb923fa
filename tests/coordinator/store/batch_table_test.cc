// SPDX-License-Identifier: Apache-2.0
#include "coordinator/store/batch_table.h"

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "coordinator/store/schema.h"
#include "tests/testing/checkpoint_writer.h"

namespace ringfleet::coordinator {
namespace {

class BatchTableTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto database =
        Database::Open(dir_.File("t.db"), Database::Access::kReadWrite);
    ASSERT_TRUE(database.ok()) << database.status();
    database_ = *std::move(database);
    ASSERT_EQ(MigrateSchema("t.db", *database_), absl::OkStatus());
    // One transaction, which is quick.
    ASSERT_EQ(database_->Run("BEGIN"), absl::OkStatus());
  }

  void Insert(const std::string& id, int64_t created_ms = 1,
              const std::string& owner = "") {
    BatchRecord batch;
    batch.id = id;
    batch.owner = owner;
    batch.created_ms = created_ms;
    ASSERT_EQ(InsertBatch(*database_, batch), absl::OkStatus());
  }
  // Makes a batch in progress with lines from 1 on.
  void Begin(const std::string& id, int lines, int64_t created_ms = 1) {
    ASSERT_NO_FATAL_FAILURE(Insert(id, created_ms));
    std::vector<LineRecord> records;
    for (int i = 1; i <= lines; ++i) {
      records.push_back({.number = i, .custom_id = absl::StrCat("id-", i)});
    }
    ASSERT_EQ(BeginBatch(*database_, id, records, 2), absl::OkStatus());
  }
  void Commit(const std::string& id, int64_t number, bool failed,
              const std::string& text, const BatchUsage& usage = {}) {
    ASSERT_EQ(
        InsertOutput(*database_, id,
                     {.number = number, .failed = failed, .text = text}, usage),
        absl::OkStatus());
  }
  void Finish(const std::string& id, const char* state, int64_t now_ms) {
    ASSERT_EQ(FailOpenLines(*database_, id, 100'000,
                            [state](const LineRecord& line) {
                              return absl::StrCat(state, " ", line.custom_id,
                                                  "\n");
                            }),
              absl::OkStatus());
    ASSERT_EQ(FinishBatch(*database_, id, state, now_ms), absl::OkStatus());
  }
  BatchRecord Find(const std::string& id) {
    auto batch = FindBatch(*database_, id, "");
    EXPECT_TRUE(batch.ok()) << batch.status();
    return batch.ok() ? *batch : BatchRecord();
  }
  FileRecord FileOf(const std::string& id) {
    auto file = FindFile(*database_, id, "");
    EXPECT_TRUE(file.ok()) << file.status();
    return file.ok() ? *file : FileRecord();
  }
  std::string Texts(const std::string& id, const OutputOptions& options) {
    std::string texts;
    const auto outputs = ListOutputs(*database_, id, options);
    EXPECT_TRUE(outputs.ok()) << outputs.status();
    for (const OutputRecord& output : *outputs) texts += output.text;
    return texts;
  }
  int64_t Rows(const std::string& table) {
    Statement query =
        database_->Prepare(absl::StrCat("SELECT COUNT(*) FROM ", table));
    EXPECT_TRUE(query.Next()) << query.status();
    return query.Integer(0);
  }
  static std::vector<std::string> IdsOf(
      const absl::StatusOr<std::vector<BatchRecord>>& batches) {
    EXPECT_TRUE(batches.ok()) << batches.status();
    std::vector<std::string> ids;
    for (const BatchRecord& batch : *batches) ids.push_back(batch.id);
    return ids;
  }
  using Ids = std::vector<std::string>;

  testing::TempDir dir_;
  std::unique_ptr<Database> database_;
};

TEST_F(BatchTableTest, ALineHasOneOutcome) {
  Begin("b", 2);
  Commit("b", 1, false, "first\n",
         {.prompt_tokens = 5, .cached_tokens = 2, .completion_tokens = 3});
  Commit("b", 1, true, "second\n",
         {.prompt_tokens = 100, .cached_tokens = 0, .completion_tokens = 100});
  Commit("b", 9, false, "no such line\n");
  const BatchRecord batch = Find("b");
  EXPECT_EQ(batch.total, 2);
  EXPECT_EQ(batch.completed, 1);
  EXPECT_EQ(batch.failed, 0);
  EXPECT_EQ(batch.prompt_tokens, 5);
  EXPECT_EQ(batch.cached_tokens, 2);
  EXPECT_EQ(batch.completion_tokens, 3);
  EXPECT_EQ(Texts("b", {}), "first\n");
  EXPECT_EQ(*FirstOpenLine(*database_, "b"), 2);
  Commit("b", 2, true, "other\n");
  EXPECT_EQ(Find("b").failed, 1);
  EXPECT_EQ(*FirstOpenLine(*database_, "b"), 0);
}

TEST_F(BatchTableTest, AnEndIsTheLastWord) {
  Begin("b", 2);
  Commit("b", 2, false, "two\n");
  ASSERT_EQ(CancelBatch(*database_, "b", 10), absl::OkStatus());
  Finish("b", kBatchCancelled, 20);
  Finish("b", kBatchCompleted, 30);
  Commit("b", 1, false, "late\n");
  ASSERT_EQ(CancelBatch(*database_, "b", 40), absl::OkStatus());
  const BatchRecord batch = Find("b");
  EXPECT_EQ(batch.state, kBatchCancelled);
  EXPECT_EQ(batch.cancelling_ms, 10);
  EXPECT_EQ(batch.cancelled_ms, 20);
  EXPECT_EQ(batch.completed_ms, 0);
  EXPECT_EQ(batch.completed, 1);
  EXPECT_EQ(batch.failed, 1);
  EXPECT_EQ(Texts("b", {.order = OutputOptions::Order::kInput}),
            "cancelled id-1\ntwo\n");
  EXPECT_EQ(Rows("files"), 2);
}

// Validation may end behind a cancellation.
TEST_F(BatchTableTest, ACancelledBatchNeitherBeginsNorFails) {
  Insert("b");
  ASSERT_EQ(CancelBatch(*database_, "b", 10), absl::OkStatus());
  ASSERT_EQ(CancelBatch(*database_, "b", 11), absl::OkStatus());
  EXPECT_TRUE(absl::IsFailedPrecondition(
      BeginBatch(*database_, "b", {{.number = 1}}, 12)));
  EXPECT_TRUE(absl::IsFailedPrecondition(FailBatch(*database_, "b", "[]", 13)));
  const BatchRecord batch = Find("b");
  EXPECT_EQ(batch.state, kBatchCancelling);
  EXPECT_EQ(batch.cancelling_ms, 10);
  EXPECT_EQ(batch.in_progress_ms, 0);
  EXPECT_EQ(batch.failed_ms, 0);
  EXPECT_EQ(Rows("lines"), 0);
}

// More lines than an end takes at a time.
TEST_F(BatchTableTest, AnEndGivesEachOpenLineAnOutcome) {
  constexpr int kLines = 2500;
  Begin("b", kLines);
  for (const int number : {1, 1000, 2500}) Commit("b", number, false, "x\n");
  Finish("b", kBatchExpired, 77);
  const BatchRecord batch = Find("b");
  EXPECT_EQ(batch.state, kBatchExpired);
  EXPECT_EQ(batch.finalizing_ms, 77);
  EXPECT_EQ(batch.expired_ms, 77);
  EXPECT_EQ(batch.completed, 3);
  EXPECT_EQ(batch.failed, kLines - 3);
  EXPECT_EQ(Rows("outputs"), kLines);
  EXPECT_EQ(*FirstOpenLine(*database_, "b"), 0);
  const FileRecord outputs = FileOf(batch.output_file);
  EXPECT_EQ(outputs.bytes, 6);
  EXPECT_FALSE(outputs.errors);
  EXPECT_EQ(outputs.expires_ms, 0);
  const FileRecord errors = FileOf(batch.error_file);
  EXPECT_TRUE(errors.errors);
  EXPECT_EQ(errors.bytes,
            static_cast<int64_t>(Texts("b", {.failed = true,
                                             .most_bytes = int64_t{1} << 30,
                                             .limit = kLines})
                                     .size()));
}

// As OpenAI has it: the anchor is the file's creation, not the batch's.
TEST_F(BatchTableTest, OutputsExpireAfterTheyWereMade) {
  BatchRecord batch;
  batch.id = "b";
  batch.created_ms = 1000;
  batch.output_seconds = 3600;
  ASSERT_EQ(InsertBatch(*database_, batch), absl::OkStatus());
  ASSERT_EQ(BeginBatch(*database_, "b", {{.number = 1}, {.number = 2}}, 2000),
            absl::OkStatus());
  Commit("b", 1, false, "x\n");
  Finish("b", kBatchExpired, 90'000'000);
  for (const std::string& id : {Find("b").output_file, Find("b").error_file}) {
    EXPECT_EQ(FileOf(id).created_ms, 90'000'000);
    EXPECT_EQ(FileOf(id).expires_ms, 93'600'000);
  }
}

TEST_F(BatchTableTest, ResultsGoOnBehindAnyOfThem) {
  Begin("other", 1);
  Begin("b", 4);
  Commit("b", 3, false, "three\n");
  Commit("other", 1, false, "strange\n");
  Commit("b", 1, true, "one\n");
  Commit("b", 4, false, "four\n");
  const auto all = ListOutputs(*database_, "b", {});
  ASSERT_TRUE(all.ok()) << all.status();
  ASSERT_EQ(all->size(), 3u);
  EXPECT_EQ((*all)[1].number, 1);
  EXPECT_TRUE((*all)[1].failed);
  EXPECT_EQ(Texts("b", {}), "three\none\nfour\n");
  EXPECT_EQ(Texts("b", {.after = (*all)[0].sequence}), "one\nfour\n");
  EXPECT_EQ(Texts("b", {.after = (*all)[2].sequence}), "");
  constexpr auto kInput = OutputOptions::Order::kInput;
  EXPECT_EQ(Texts("b", {.order = kInput}), "one\nthree\nfour\n");
  EXPECT_EQ(Texts("b", {.order = kInput, .after = 1}), "three\nfour\n");
  EXPECT_EQ(Texts("b", {.order = kInput, .after = 2}), "three\nfour\n");
  EXPECT_EQ(Texts("b", {.failed = true}), "one\n");
  EXPECT_EQ(Texts("b", {.order = kInput, .failed = false}), "three\nfour\n");
  EXPECT_EQ(Texts("b", {.order = kInput, .limit = 2}), "one\nthree\n");
  // A page has one result at least, and else so many bytes.
  EXPECT_EQ(Texts("b", {.order = kInput, .most_bytes = 1}), "one\n");
  EXPECT_EQ(Texts("b", {.order = kInput, .most_bytes = 10}), "one\nthree\n");
}

TEST_F(BatchTableTest, OpenLinesComeByPlace) {
  Insert("b");
  const std::vector<LineRecord> lines = {{.number = 1,
                                          .place = 1,
                                          .begin = 10,
                                          .length = 20,
                                          .custom_id = "x",
                                          .seed = 7},
                                         {.number = 2, .place = 0},
                                         {.number = 3, .place = 1},
                                         {.number = 4, .place = 0}};
  ASSERT_EQ(BeginBatch(*database_, "b", lines, 1), absl::OkStatus());
  const auto numbers = [this](int64_t place, int64_t number, int64_t limit) {
    std::vector<int64_t> found;
    const auto lines = ListOpenLines(*database_, "b", place, number, limit);
    EXPECT_TRUE(lines.ok()) << lines.status();
    for (const LineRecord& line : *lines) found.push_back(line.number);
    return found;
  };
  using Numbers = std::vector<int64_t>;
  EXPECT_EQ(numbers(-1, -1, 10), (Numbers{2, 4, 1, 3}));
  EXPECT_EQ(numbers(-1, -1, 2), (Numbers{2, 4}));
  EXPECT_EQ(numbers(0, 4, 10), (Numbers{1, 3}));
  EXPECT_EQ(numbers(0, 2, 10), (Numbers{4, 1, 3}));
  Commit("b", 4, false, "x\n");
  EXPECT_EQ(numbers(-1, -1, 10), (Numbers{2, 1, 3}));
  const LineRecord line = ListOpenLines(*database_, "b", 0, 4, 1)->at(0);
  EXPECT_EQ(line.begin, 10);
  EXPECT_EQ(line.length, 20);
  EXPECT_EQ(line.custom_id, "x");
  EXPECT_EQ(line.seed, std::optional<int64_t>(7));
}

TEST_F(BatchTableTest, ListsHaveOwnersAndPages) {
  Insert("c", 5, "ann");
  Insert("a", 5, "ann");  // As old as the one before.
  Insert("b", 4, "ann");
  Insert("d", 6, "bob");
  const auto list = [this](const PageOptions& page) {
    return IdsOf(ListBatches(*database_, page));
  };
  EXPECT_EQ(list({}), (Ids{"d", "c", "a", "b"}));
  EXPECT_EQ(list({.limit = 2}), (Ids{"d", "c"}));
  EXPECT_EQ(list({.after = "c"}), (Ids{"a", "b"}));
  EXPECT_EQ(list({.ascending = true}), (Ids{"b", "a", "c", "d"}));
  EXPECT_EQ(list({.after = "a", .ascending = true}), (Ids{"c", "d"}));
  EXPECT_EQ(list({.owner = "ann"}), (Ids{"c", "a", "b"}));
  EXPECT_EQ(list({.owner = "ann", .after = "a"}), (Ids{"b"}));
  EXPECT_TRUE(absl::IsNotFound(
      ListBatches(*database_, {.owner = "ann", .after = "d"}).status()));
}

TEST_F(BatchTableTest, EndedBatchesComeByTheirEnds) {
  Begin("old", 1, 1);  // It runs for long.
  Begin("new", 1, 2);
  Begin("open", 1, 3);
  Insert("failed", 4);
  Finish("new", kBatchCompleted, 100);
  ASSERT_EQ(FailBatch(*database_, "failed", "[]", 150), absl::OkStatus());
  Finish("old", kBatchExpired, 200);
  EXPECT_EQ(IdsOf(ListEndedBatches(*database_)), (Ids{"new", "failed", "old"}));
  EXPECT_EQ(IdsOf(ListOpenBatches(*database_)), (Ids{"open"}));
}

// A batch of many lines ends in portions, between which others write.
TEST_F(BatchTableTest, LinesFailInPortions) {
  Begin("a", 5);
  Commit("a", 2, false, "x\n");
  const auto fail = [this](int64_t limit) {
    return FailOpenLines(*database_, "a", limit, [](const LineRecord& line) {
      return absl::StrCat("no ", line.custom_id, "\n");
    });
  };
  ASSERT_EQ(fail(3), absl::OkStatus());
  EXPECT_EQ(Find("a").completed, 1);
  EXPECT_EQ(Find("a").failed, 3);
  EXPECT_TRUE(absl::IsFailedPrecondition(
      FinishBatch(*database_, "a", kBatchExpired, 9)));
  EXPECT_FALSE(Find("a").has_ended());
  ASSERT_EQ(fail(3), absl::OkStatus());
  ASSERT_EQ(FinishBatch(*database_, "a", kBatchExpired, 9), absl::OkStatus());
  EXPECT_EQ(Find("a").failed, 4);
  ASSERT_EQ(fail(3), absl::OkStatus());
  EXPECT_EQ(Find("a").failed, 4);
  EXPECT_EQ(FileOf(Find("a").error_file).bytes, 4 * 8);
}

TEST_F(BatchTableTest, ADeletedBatchLeavesNothing) {
  for (const char* const id : {"a", "b"}) {
    Begin(id, 2);
    Commit(id, 1, false, "x\n");
    Finish(id, kBatchCancelled, 9);
  }
  ASSERT_EQ(DeleteBatch(*database_, "a"), absl::OkStatus());
  for (const char* const table : {"lines", "outputs", "files"}) {
    EXPECT_EQ(Rows(table), 2) << table;
  }
  EXPECT_EQ(Rows("batches"), 1);
  EXPECT_EQ(Texts("b", {.failed = false}), "x\n");
}

TEST_F(BatchTableTest, ADeletedFileTakesItsLinesAlone) {
  Begin("b", 2);
  Commit("b", 1, false, "good\n");
  Commit("b", 2, true, "bad\n");
  Finish("b", kBatchCompleted, 9);
  ASSERT_EQ(DeleteFile(*database_, FileOf(Find("b").output_file)),
            absl::OkStatus());
  EXPECT_EQ(Texts("b", {}), "bad\n");
  EXPECT_EQ(Find("b").output_file, "");
  EXPECT_TRUE(FileOf(Find("b").error_file).errors);
  ASSERT_EQ(DeleteFile(*database_, FileOf(Find("b").error_file)),
            absl::OkStatus());
  EXPECT_EQ(Find("b").error_file, "");
  EXPECT_EQ(Rows("files"), 0);
  EXPECT_EQ(Find("b").completed, 1);
}

TEST_F(BatchTableTest, FilesExpireAndUploadsGrowOld) {
  const auto insert = [this](const std::string& id, int64_t created_ms,
                             int64_t expires_ms, const std::string& batch) {
    ASSERT_EQ(InsertFile(*database_, {.id = id,
                                      .created_ms = created_ms,
                                      .expires_ms = expires_ms,
                                      .batch = batch}),
              absl::OkStatus());
  };
  insert("expired", 90, 100, "");
  insert("expired output", 90, 100, "b");
  insert("later", 90, 101, "");
  insert("old", 49, 0, "");
  insert("young", 50, 0, "");
  insert("old output", 1, 0, "b");  // It lasts as long as its batch.
  const auto found =
      ListExpiredFiles(*database_, /*now_ms=*/100, /*oldest_ms=*/50);
  ASSERT_TRUE(found.ok()) << found.status();
  std::vector<std::string> ids;
  for (const FileRecord& file : *found) ids.push_back(file.id);
  EXPECT_EQ(ids, (Ids{"expired", "expired output", "old"}));
}

}  // namespace
}  // namespace ringfleet::coordinator
