// SPDX-License-Identifier: Apache-2.0
#include "coordinator/batch/batches.h"

#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "coordinator/batch/batch_json.h"
#include "coordinator/batch/batch_lines.h"
#include "tests/coordinator/batch/batches_fixture.h"
#include "tests/testing/restrictions.h"

namespace ringfleet::coordinator {
namespace {

TEST_F(BatchesTest, EachLineHasOneOutputInTheOrderOfTheInput) {
  std::string text;
  for (int i = 0; i < 20; ++i) {
    absl::StrAppend(&text, ChatLine(absl::StrCat("id-", i)), "\n");
  }
  const BatchRecord made = CreateOf(text);
  const BatchRecord ended = AwaitEnd(made.id);
  EXPECT_EQ(ended.state, kBatchCompleted);
  EXPECT_EQ(ended.total, 20);
  EXPECT_EQ(ended.completed, 20);
  EXPECT_EQ(ended.failed, 0);
  EXPECT_EQ(ended.error_file, "");
  EXPECT_GT(ended.prompt_tokens, 0);
  EXPECT_GT(ended.completion_tokens, 0);
  const std::vector<nlohmann::json> outputs = Outputs(made.id);
  ASSERT_EQ(outputs.size(), 20);
  for (int i = 0; i < 20; ++i) {
    const nlohmann::json& line = outputs[i];
    EXPECT_EQ(line["custom_id"], absl::StrCat("id-", i));
    EXPECT_EQ(line["error"], nullptr);
    EXPECT_EQ(line["response"]["status_code"], 200);
    EXPECT_EQ(line["response"]["body"]["choices"][0]["message"]["content"],
              "ok");
    EXPECT_TRUE(absl::StartsWith(line["id"].get<std::string>(), "batch_req_"));
  }
  // The lines were jobs of low priority with seeds of their own.
  std::set<uint64_t> seeds;
  for (size_t i = 0; i < 20; ++i) {
    const Request& request = jobs_.Await(i)->request();
    EXPECT_FALSE(request.listed) << "their batch is";
    EXPECT_EQ(request.priority, kBatchPriority);
    seeds.insert(request.sampling.seed());
  }
  EXPECT_EQ(seeds.size(), 20);
  EXPECT_FALSE(std::filesystem::exists(store_->FilePath(made.id)));
}

TEST_F(BatchesTest, TheUsageCountsReasonings) {
  jobs_.AnswerWith(*(*model_->tokenizer())->Encode("<think>a b</think>c"),
                   v1::FINISH_REASON_LENGTH);
  const BatchRecord made =
      CreateOf(absl::StrCat(ChatLine("a"), "\n", ChatLine("b")));
  const BatchRecord ended = AwaitEnd(made.id);
  int64_t reasoning = 0;
  for (const nlohmann::json& line : Outputs(made.id)) {
    reasoning += line["response"]["body"]["usage"]["completion_tokens_details"]
                     ["reasoning_tokens"]
                         .get<int64_t>();
  }
  EXPECT_GT(reasoning, 0);
  EXPECT_EQ(ended.reasoning_tokens, reasoning);
  EXPECT_LT(reasoning, ended.completion_tokens);
  const auto usage = nlohmann::json::parse(BatchJson(ended))["usage"];
  EXPECT_EQ(usage["output_tokens_details"]["reasoning_tokens"], reasoning);
}

TEST_F(BatchesTest, PlainLinesNeedNoIds) {
  const BatchRecord made = CreateOf(
      "{\"prompt\": \"a\", \"max_tokens\": 1}\n\n"
      "{\"custom_id\": \"x\", \"messages\": [{\"role\": \"user\", "
      "\"content\": \"b\"}]}");
  EXPECT_EQ(AwaitEnd(made.id).state, kBatchCompleted);
  const auto outputs = Outputs(made.id);
  ASSERT_EQ(outputs.size(), 2);
  EXPECT_EQ(outputs[0]["custom_id"], "line-1");
  EXPECT_EQ(outputs[0]["response"]["body"]["object"], "text_completion");
  EXPECT_EQ(outputs[1]["custom_id"], "x");
  EXPECT_EQ(outputs[1]["response"]["body"]["object"], "chat.completion");
}

TEST_F(BatchesTest, NothingRunsOfAFileWithErrors) {
  const std::string text = absl::StrJoin(
      {ChatLine("a"), std::string("{\"custom_id\": "), ChatLine("a"),
       std::string(
           R"({"custom_id":"b","method":"GET","url":"/v1/completions"})"),
       std::string(
           R"({"custom_id":"c","method":"POST","url":"/v1/embeddings","body":{}})"),
       std::string(
           R"({"custom_id":"d","method":"POST","url":"/v1/completions","body":{"prompt":"x","temperature":9}})"),
       std::string(
           R"({"custom_id":"e","method":"POST","url":"/v1/completions","body":{"prompt":"x","stream":true}})"),
       std::string(
           R"({"custom_id":"f","method":"POST","url":"/v1/completions","body":{"prompt":"x","model":"other"}})"),
       std::string(
           R"({"method":"POST","url":"/v1/completions","body":{"prompt":"x"}})"),
       std::string(R"({"custom_id":"g","url":"/v1/completions","body":{}})"),
       std::string(R"({"custom_id":"h","method":"POST","body":{}})"),
       std::string(
           R"({"custom_id":"i","method":"POST","url":"/v1/completions"})"),
       std::string(R"({"prompt":"x","temperature":9})"),
       std::string(R"({"messages":[]})"), std::string(R"({"messages":7})"),
       std::string(R"({"messages":null})"), std::string(R"({"prompt":[]})"),
       std::string(R"({"prompt":7})"),
       std::string(R"({"prompt":"x","model":7})")},
      "\n");
  const BatchRecord made = CreateOf(text);
  const BatchRecord ended = AwaitEnd(made.id);
  EXPECT_EQ(ended.state, kBatchFailed);
  EXPECT_GT(ended.failed_ms, 0);
  std::vector<std::string> found;
  for (const auto& error : nlohmann::json::parse(ended.errors)) {
    const std::string param =
        error["param"].is_null() ? "-" : error["param"].get<std::string>();
    found.push_back(absl::StrCat(error["line"].get<int>(), " ",
                                 error["code"].get<std::string>(), " ", param));
    // The message names the field.
    const std::string message = error["message"].get<std::string>();
    EXPECT_TRUE(param == "-" || absl::StartsWith(message, param + ": "))
        << message;
  }
  EXPECT_EQ(
      found,
      (std::vector<std::string>{
          "2 invalid_json_line -", "3 duplicate_custom_id custom_id",
          "4 invalid_method method", "5 invalid_url url",
          "6 invalid_value body.temperature",
          "7 streaming_unsupported body.stream", "8 model_not_found body.model",
          "9 missing_required_parameter custom_id",
          "10 missing_required_parameter method",
          "11 missing_required_parameter url",
          "12 missing_required_parameter body", "13 invalid_value temperature",
          "14 invalid_value messages", "15 invalid_type messages",
          "16 missing_required_parameter -", "17 invalid_value prompt",
          "18 invalid_type prompt", "19 invalid_type model"}));
  EXPECT_EQ(jobs_.started(), 0);
}

// A batch that names its endpoint takes OpenAI's form alone.
TEST_F(BatchesTest, ALineNamesItsModelWhereTheBatchNamesItsEndpoint) {
  NewBatch batch;
  batch.input_file = UploadText(ChatLine("a"));
  batch.endpoint = kChatEndpoint;
  const auto made = Create(batch);
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_EQ(AwaitEnd(made->id).state, kBatchFailed);
  const auto errors = nlohmann::json::parse(Find(made->id).errors);
  ASSERT_EQ(errors.size(), 1);
  EXPECT_EQ(errors[0]["line"], 1);
  EXPECT_EQ(errors[0]["param"], "body.model");
  std::string named = ChatLine("a");
  named.replace(named.find("\"max_tokens"), 0, "\"model\":\"tiny\",");
  batch.input_file = UploadText(named);
  const auto whole = Create(batch);
  ASSERT_TRUE(whole.ok()) << whole.status();
  EXPECT_EQ(AwaitEnd(whole->id).state, kBatchCompleted);
}

TEST_F(BatchesTest, ALinesEndpointIsTheBatchs) {
  NewBatch batch;
  batch.input_file = UploadText(ChatLine("a"));
  batch.endpoint = kCompletionEndpoint;
  const auto made = Create(batch);
  ASSERT_TRUE(made.ok()) << made.status();
  const BatchRecord ended = AwaitEnd(made->id);
  EXPECT_EQ(ended.state, kBatchFailed);
  EXPECT_TRUE(absl::StrContains(ended.errors, "invalid_url"));
  EXPECT_TRUE(absl::StrContains(ended.errors, "does not match the endpoint"));
  batch.endpoint = "/v1/embeddings";
  EXPECT_TRUE(absl::IsInvalidArgument(Create(batch).status()));
}

TEST_F(BatchesTest, ATooLongPromptIsItsLinesError) {
  const BatchRecord made = CreateOf(absl::StrCat(
      ChatLine("good"), "\n", ChatLine("long", std::string(20'000, 'x'))));
  const BatchRecord ended = AwaitEnd(made.id);
  EXPECT_EQ(ended.state, kBatchCompleted);
  EXPECT_EQ(ended.completed, 1);
  EXPECT_EQ(ended.failed, 1);
  const auto errors = Outputs(made.id, true);
  ASSERT_EQ(errors.size(), 1);
  EXPECT_EQ(errors[0]["custom_id"], "long");
  EXPECT_EQ(errors[0]["error"]["code"], "context_length_exceeded");
  EXPECT_EQ(errors[0]["response"]["status_code"], 400);
  FileRecord file;
  ASSERT_EQ(store_->Read([&](Database& database) {
    auto found = FindFile(database, ended.error_file, "");
    if (found.ok()) file = *found;
    return found.status();
  }),
            absl::OkStatus());
  EXPECT_GT(file.bytes, 0);
  EXPECT_TRUE(file.errors);
}

TEST_F(BatchesTest, LinesThatWereNotCommittedRunAgainWithTheirSeeds) {
  jobs_.AnswerWith({}, v1::FINISH_REASON_UNSPECIFIED);  // They never end.
  std::string text;
  for (int i = 0; i < 8; ++i) {
    absl::StrAppend(&text, ChatLine(absl::StrCat(i)), "\n");
  }
  const BatchRecord made = CreateOf(text);
  std::vector<uint64_t> before;
  for (size_t i = 0; i < 4; ++i) {  // The window.
    before.push_back(jobs_.Await(i)->request().sampling.seed());
  }
  const size_t started = jobs_.started();
  jobs_.AnswerWith(*(*model_->tokenizer())->Encode("ok"),
                   v1::FINISH_REASON_LENGTH);
  Restart();
  const BatchRecord ended = AwaitEnd(made.id);
  EXPECT_EQ(ended.state, kBatchCompleted);
  EXPECT_EQ(ended.completed, 8);
  EXPECT_EQ(Outputs(made.id).size(), 8);
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(jobs_.Await(started + i)->request().sampling.seed(), before[i]);
  }
}

TEST_F(BatchesTest, ACommittedLineNeverRunsAgain) {
  jobs_.AnswerWith({}, v1::FINISH_REASON_UNSPECIFIED);
  std::string text;
  for (int i = 0; i < 6; ++i) {
    absl::StrAppend(&text, ChatLine(absl::StrCat(i)), "\n");
  }
  const BatchRecord made = CreateOf(text);
  std::set<uint64_t> committed;
  for (const size_t i : {1, 2}) {
    const std::shared_ptr<Job> job = jobs_.Await(i);
    committed.insert(job->request().sampling.seed());
    FinishJob(*job, /*cached=*/3);
  }
  AwaitCompleted(made.id, 2);
  EXPECT_EQ(Find(made.id).cached_tokens, 6);
  ASSERT_NE(jobs_.Await(5), nullptr);  // The window is full again.
  jobs_.AnswerWith(*(*model_->tokenizer())->Encode("ok"),
                   v1::FINISH_REASON_LENGTH);
  Restart();
  EXPECT_EQ(AwaitEnd(made.id).completed, 6);
  EXPECT_EQ(jobs_.started(), 6 + 4);
  for (size_t i = 6; i < jobs_.started(); ++i) {
    EXPECT_EQ(committed.count(jobs_.Await(i)->request().sampling.seed()), 0);
  }
}

// The runner asks the store for some lines at a time.
TEST_F(BatchesTest, EachOfManyLinesRunsOnce) {
  constexpr size_t kLines = 600;
  window_ = 200;
  Restart();
  std::string text;
  for (size_t i = 1; i <= kLines; ++i) {
    absl::StrAppend(&text, R"({"prompt":"a","max_tokens":1,"seed":)", i, "}\n");
  }
  EXPECT_EQ(AwaitEnd(CreateOf(text).id).completed, kLines);
  EXPECT_EQ(jobs_.started(), kLines);
  std::set<uint64_t> seeds;  // Lines keep their own.
  for (size_t i = 0; i < kLines; ++i) {
    seeds.insert(jobs_.Await(i)->request().sampling.seed());
  }
  EXPECT_EQ(seeds.size(), kLines);
  EXPECT_EQ(*seeds.begin(), 1);
  EXPECT_EQ(*seeds.rbegin(), kLines);
}

// The least number comes first, equal ones take turns.
TEST_F(BatchesTest, BatchesHavePrioritiesAndTurns) {
  window_ = 1;
  Restart();
  jobs_.SetReady(false);
  std::vector<std::string> ids;
  for (const int priority : {50, 100, 100}) {
    std::string text;
    for (int i = 0; i < 3; ++i) {
      absl::StrAppend(&text, R"({"prompt":"a","max_tokens":1,"seed":)",
                      10 * ids.size() + i, "}\n");
    }
    NewBatch batch;
    batch.input_file = UploadText(text);
    batch.priority = priority;
    const auto made = Create(batch);
    ASSERT_TRUE(made.ok()) << made.status();
    AwaitState(made->id, kBatchInProgress);
    ids.push_back(made->id);
  }
  EXPECT_EQ(jobs_.started(), 0);
  jobs_.SetReady(true);
  for (const std::string& id : ids) EXPECT_EQ(AwaitEnd(id).completed, 3);
  std::vector<uint64_t> seeds;
  for (size_t i = 0; i < 9; ++i) {
    const Request& request = jobs_.Await(i)->request();
    seeds.push_back(request.sampling.seed());
    EXPECT_EQ(request.priority, i < 3 ? 50 : 100);
  }
  const auto turns = [](uint64_t first, uint64_t second) {
    return std::vector<uint64_t>{
        0, 1, 2, first, second, first + 1, second + 1, first + 2, second + 2};
  };
  EXPECT_TRUE(seeds == turns(10, 20) || seeds == turns(20, 10))
      << absl::StrJoin(seeds, " ");
}

TEST_F(BatchesTest, AFleetThatIsAwayCostsNoLine) {
  jobs_.RefuseWith(absl::UnavailableError("no worker"));
  const BatchRecord made = CreateOf(ChatLine("a"));
  ASSERT_TRUE(jobs_.AwaitRefused(1));
  jobs_.RefuseWith(absl::ResourceExhaustedError("too many requests"));
  ASSERT_TRUE(jobs_.AwaitRefused(3));
  jobs_.RefuseWith(absl::OkStatus());
  const BatchRecord ended = AwaitEnd(made.id);
  EXPECT_EQ(ended.completed, 1);
  EXPECT_EQ(ended.failed, 0);
}

TEST_F(BatchesTest, AFullDiskKeepsResultsAndRefusesBatches) {
  jobs_.AnswerWith({}, v1::FINISH_REASON_UNSPECIFIED);
  End();
  const std::string why = testing::WithSmallDisk(dir_.path(), 4 << 20, [this] {
    Start();  // Its threads see the disk.
    NewBatch other;
    other.input_file = UploadText(ChatLine("other"));
    std::string text;
    for (int i = 0; i < 8; ++i) {
      absl::StrAppend(&text, ChatLine(absl::StrCat(i)), "\n");
    }
    const BatchRecord made = CreateOf(text);
    ASSERT_NE(jobs_.Await(3), nullptr);  // The window is full.
    std::ofstream filler(dir_.File("filler"));
    const std::string bytes(4096, 'x');
    while (filler.write(bytes.data(), 4096).flush()) {
    }
    for (size_t i = 0; i < 4; ++i) FinishJob(*jobs_.Await(i));
    const auto deadline = testing::Soon();
    while (store_->trouble().ok() && !deadline.Expired()) {
      std::this_thread::yield();
    }
    EXPECT_FALSE(store_->trouble().ok());
    EXPECT_TRUE(absl::IsResourceExhausted(Create(other).status()));
    EXPECT_EQ(jobs_.started(), 4);
    EXPECT_EQ(Find(made.id).completed, 0);
    jobs_.AnswerWith(*(*model_->tokenizer())->Encode("ok"),
                     v1::FINISH_REASON_LENGTH);
    filler.close();
    std::filesystem::remove(dir_.File("filler"));
    EXPECT_EQ(AwaitEnd(made.id).completed, 8);
    EXPECT_EQ(Outputs(made.id).size(), 8);
    EXPECT_EQ(jobs_.started(), 8);
    End();
  });
  Start();
  if (!why.empty()) GTEST_SKIP() << why;
}

TEST_F(BatchesTest, NoLineStartsWhileNothingIsWritten) {
  jobs_.SetReady(false);
  const BatchRecord made = CreateOf(ChatLine("a"));
  AwaitState(made.id, kBatchInProgress);
  std::atomic<bool> full{true};
  store_->Write(
      [&full](Database& database) {
        FileRecord file;
        file.id = "file-long";
        file.name = std::string(100'000, 'x');
        const absl::Status limit = database.Run(
            absl::StrCat("PRAGMA max_page_count = ", full ? "1" : "100000"));
        return limit.ok() ? InsertFile(database, file) : limit;
      },
      [](const absl::Status&) {});
  const auto deadline = testing::Soon();
  while (store_->trouble().ok() && !deadline.Expired()) {
    std::this_thread::yield();
  }
  EXPECT_TRUE(absl::IsResourceExhausted(store_->trouble()));
  jobs_.SetReady(true);
  absl::SleepFor(absl::Milliseconds(1100));  // Two looks at the store.
  EXPECT_EQ(jobs_.started(), 0);
  full = false;
  EXPECT_EQ(AwaitEnd(made.id).completed, 1);
}

// The error of a fleet that has failed says nothing about a line.
TEST_F(BatchesTest, AFleetThatHasFailedSpendsNoLine) {
  jobs_.AnswerWith({}, v1::FINISH_REASON_UNSPECIFIED);
  const BatchRecord made =
      CreateOf(absl::StrCat(ChatLine("a"), "\n", ChatLine("b")));
  const std::shared_ptr<Job> first = jobs_.Await(0);
  ASSERT_NE(jobs_.Await(1), nullptr);
  jobs_.SetReady(false);
  absl::Status cause = absl::DataLossError("another checkpoint");
  cause.SetPayload(kFleetFailedPayload, absl::Cord());
  first->OnFailed(cause);
  ASSERT_TRUE(jobs_.AwaitLeft(*first));
  EXPECT_EQ(Find(made.id).failed, 0);
  EXPECT_EQ(jobs_.started(), 2);
  jobs_.AnswerWith(*(*model_->tokenizer())->Encode("ok"),
                   v1::FINISH_REASON_LENGTH);
  jobs_.SetReady(true);
  FinishJob(*jobs_.Await(1));
  const BatchRecord ended = AwaitEnd(made.id);
  EXPECT_EQ(ended.completed, 2);
  EXPECT_EQ(ended.failed, 0);
}

TEST_F(BatchesTest, ALineThatFailsByItselfFailsWhateverTheFleetDoes) {
  jobs_.AnswerWith({}, v1::FINISH_REASON_UNSPECIFIED);
  const BatchRecord made = CreateOf(ChatLine("a"));
  const std::shared_ptr<Job> job = jobs_.Await(0);
  jobs_.SetReady(false);
  job->OnFailed(absl::DataLossError("logits at position 2 are NaN"));
  EXPECT_EQ(AwaitEnd(made.id).failed, 1);
  EXPECT_EQ(Outputs(made.id, true)[0]["response"]["status_code"], 500);
}

TEST_F(BatchesTest, ALineThatKillsTheFleetFails) {
  jobs_.AnswerWith({}, v1::FINISH_REASON_UNSPECIFIED);
  const BatchRecord made = CreateOf(ChatLine("a"));
  const std::shared_ptr<Job> job = jobs_.Await(0);
  jobs_.SetReady(false);
  absl::Status cause = absl::UnavailableError("worker 1 was lost");
  cause.SetPayload(kFailedAlonePayload, absl::Cord());
  job->OnFailed(cause);
  EXPECT_EQ(AwaitEnd(made.id).failed, 1);
  const auto errors = Outputs(made.id, true);
  EXPECT_EQ(errors[0]["error"]["code"], "request_fails_fleet");
  EXPECT_EQ(errors[0]["response"]["status_code"], 500);
}

TEST_F(BatchesTest, ABatchOfAnotherModelWaitsAndExpires) {
  jobs_.AnswerWith({}, v1::FINISH_REASON_UNSPECIFIED);
  NewBatch batch;
  batch.input_file = UploadText(ChatLine("a"));
  batch.window_seconds = 3600;
  const auto made = Create(batch);
  ASSERT_TRUE(made.ok()) << made.status();
  ASSERT_NE(jobs_.Await(0), nullptr);
  served_name_ = "other";
  Restart();
  EXPECT_EQ(Find(made->id).state, kBatchInProgress);
  EXPECT_EQ(jobs_.started(), 1);
  PassTime(absl::Hours(2));
  EXPECT_EQ(AwaitEnd(made->id).state, kBatchExpired);
}

// So does one that waits for its validation.
TEST_F(BatchesTest, AnUncheckedBatchOfAnotherModelEnds) {
  for (const char* const id : {"batch_1", "batch_2"}) {
    BatchRecord batch;
    batch.id = id;
    batch.model = "other";
    batch.created_ms = store_->now_ms();
    batch.expires_ms = batch.created_ms + 3'600'000;
    ASSERT_EQ(store_->WriteNow([&batch](Database& database) {
      return InsertBatch(database, batch);
    }),
              absl::OkStatus());
  }
  ASSERT_TRUE(Cancel("batch_1").ok());
  EXPECT_EQ(AwaitEnd("batch_1").state, kBatchCancelled);
  EXPECT_EQ(Find("batch_2").state, kBatchValidating);
  PassTime(absl::Hours(1));
  EXPECT_EQ(AwaitEnd("batch_2").state, kBatchExpired);
}

TEST_F(BatchesTest, CancellingKeepsWhatIsDone) {
  jobs_.AnswerWith({}, v1::FINISH_REASON_UNSPECIFIED);
  std::string text;
  for (int i = 0; i < 10; ++i) {
    absl::StrAppend(&text, ChatLine(absl::StrCat(i)), "\n");
  }
  const BatchRecord made = CreateOf(text);
  FinishJob(*jobs_.Await(0));
  AwaitCompleted(made.id, 1);
  ASSERT_TRUE(Cancel(made.id).ok());
  const BatchRecord ended = AwaitEnd(made.id);
  EXPECT_EQ(ended.state, kBatchCancelled);
  EXPECT_EQ(ended.completed, 1);
  EXPECT_EQ(ended.failed, 9);
  EXPECT_EQ(Outputs(made.id, false).size(), 1);
  for (const auto& line : Outputs(made.id, true)) {
    EXPECT_EQ(line["error"]["code"], "batch_cancelled");
    EXPECT_EQ(line["response"], nullptr);
  }
  EXPECT_TRUE(jobs_.AwaitLeft(*jobs_.Await(1)));
  EXPECT_EQ(ended.finalizing_ms, 0);
  const auto again = Cancel(made.id);  // Says no more.
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->state, kBatchCancelled);
  EXPECT_EQ(again->cancelled_ms, ended.cancelled_ms);
}

TEST_F(BatchesTest, AWindowOfNoWholeHoursIsInSeconds) {
  const auto window = [](int64_t ms) {
    BatchRecord batch;
    batch.created_ms = 5;
    if (ms > 0) batch.expires_ms = 5 + ms;
    return nlohmann::json::parse(BatchJson(batch))["completion_window"];
  };
  EXPECT_EQ(window(0), "none");
  EXPECT_EQ(window(30'000), "30s");
  EXPECT_EQ(window(5'400'000), "5400s");
  EXPECT_EQ(window(86'400'000), "24h");
}

TEST_F(BatchesTest, ExpiryIsByTheStoredDeadline) {
  jobs_.AnswerWith({}, v1::FINISH_REASON_UNSPECIFIED);
  NewBatch batch;
  batch.input_file = UploadText(ChatLine("a"));
  batch.window_seconds = 3600;
  const auto made = Create(batch);
  ASSERT_TRUE(made.ok()) << made.status();
  ASSERT_NE(jobs_.Await(0), nullptr);
  PassTime(-absl::Hours(5));  // A clock that jumps back changes nothing.
  Restart();
  EXPECT_EQ(Find(made->id).state, kBatchInProgress);
  EXPECT_EQ(Find(made->id).expires_ms, made->created_ms + 3'600'000);
  PassTime(absl::Hours(6) + absl::Seconds(1));
  const BatchRecord ended = AwaitEnd(made->id);
  EXPECT_EQ(ended.state, kBatchExpired);
  EXPECT_EQ(ended.finalizing_ms, ended.expired_ms);
  EXPECT_EQ(Outputs(made->id, true)[0]["error"]["code"], "batch_expired");
  EXPECT_TRUE(absl::IsFailedPrecondition(Cancel(made->id).status()));
}

TEST_F(BatchesTest, AKeyMakesOneBatch) {
  NewBatch batch;
  batch.input_file = UploadText(ChatLine("a"));
  batch.client_key = "night";
  const auto first = Create(batch);
  ASSERT_TRUE(first.ok()) << first.status();
  batch.input_file = UploadText(ChatLine("a"));  // The same bytes.
  const auto second = Create(batch);
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_EQ(second->id, first->id);
  batch.input_file = first->input_file;
  batch.metadata = R"({"a":"1","b":"2"})";
  EXPECT_TRUE(absl::IsAlreadyExists(Create(batch).status()));
  batch.metadata.clear();
  batch.input_file = UploadText(ChatLine("b"));
  EXPECT_TRUE(absl::IsAlreadyExists(Create(batch).status()));
  batch.input_file = "file-none";
  EXPECT_TRUE(absl::IsAlreadyExists(Create(batch).status()));
  batch.input_file = UploadText(ChatLine("a"));
  batch.endpoint = kChatEndpoint;
  EXPECT_TRUE(absl::IsAlreadyExists(Create(batch).status()));
  batch.endpoint.clear();
  // The key is its owner's, and outlives the batch's end.
  batch.owner = "ann";
  batch.input_file = UploadText(ChatLine("a"), "ann");
  const auto others = Create(batch);
  ASSERT_TRUE(others.ok()) << others.status();
  EXPECT_NE(others->id, first->id);
  EXPECT_EQ(AwaitEnd(others->id).state, kBatchCompleted);
  const auto again = Create(batch);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->id, others->id);
  EXPECT_EQ(again->state, kBatchCompleted);
}

// A client that missed the answer may ask again when its upload is gone.
// A file that was mended is submitted under its key again.
TEST_F(BatchesTest, ABatchWithErrorsHasNoKey) {
  NewBatch batch;
  batch.input_file = UploadText("{}");
  batch.client_key = "night";
  const auto failed = Create(batch);
  ASSERT_TRUE(failed.ok()) << failed.status();
  EXPECT_EQ(AwaitEnd(failed->id).state, kBatchFailed);
  batch.input_file = UploadText(ChatLine("a"));
  const auto made = Create(batch);
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_NE(made->id, failed->id);
  EXPECT_EQ(AwaitEnd(made->id).state, kBatchCompleted);
}

TEST_F(BatchesTest, ManyLinesAreCancelled) {
  jobs_.AnswerWith({}, v1::FINISH_REASON_UNSPECIFIED);
  std::string text;
  for (int i = 0; i < 2500; ++i) text += "{\"prompt\":[1]}\n";
  const BatchRecord made = CreateOf(text);
  ASSERT_NE(jobs_.Await(3), nullptr);
  ASSERT_TRUE(Cancel(made.id).ok());
  const BatchRecord ended = AwaitEnd(made.id);
  EXPECT_EQ(ended.state, kBatchCancelled);
  EXPECT_EQ(ended.failed, 2500);
  const std::string input = store_->FilePath(made.id);
  const auto deadline = testing::Soon();
  while (std::filesystem::exists(input) && !deadline.Expired()) {
    std::this_thread::yield();
  }
  EXPECT_FALSE(std::filesystem::exists(input));
}

TEST_F(BatchesTest, AKeyOutlivesTheUpload) {
  NewBatch batch;
  batch.input_file = UploadText(ChatLine("a"));
  batch.client_key = "night";
  batch.metadata = R"({"a":"1","b":"2"})";
  const auto first = Create(batch);
  ASSERT_TRUE(first.ok()) << first.status();
  batches_->DeleteFile(batch.input_file, "", [](const absl::Status&) {});
  EXPECT_EQ(AwaitEnd(first->id).state, kBatchCompleted);
  batch.metadata = R"({"b":"2","a":"1"})";
  const auto second = Create(batch);
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_EQ(second->id, first->id);
  batch.input_file = "file-other";
  EXPECT_TRUE(absl::IsAlreadyExists(Create(batch).status()));
}

TEST_F(BatchesTest, NamesAndKeysHaveALimit) {
  NewBatch batch;
  batch.input_file = UploadText(ChatLine("a"));
  batch.name = std::string(257, 'x');
  EXPECT_TRUE(absl::IsInvalidArgument(Create(batch).status()));
  batch.name.resize(256);
  batch.client_key = std::string(257, 'x');
  EXPECT_TRUE(absl::IsInvalidArgument(Create(batch).status()));
  batch.client_key->resize(256);
  EXPECT_EQ(Create(batch).status(), absl::OkStatus());
}

TEST_F(BatchesTest, OwnersDoNotSeeEachOther) {
  NewBatch batch;
  batch.owner = "ann";
  batch.input_file = UploadText(ChatLine("a"), "bob");
  const auto none = Create(batch);
  ASSERT_TRUE(none.ok()) << none.status();
  const BatchRecord failed = AwaitEnd(none->id);
  EXPECT_EQ(failed.state, kBatchFailed);
  EXPECT_TRUE(absl::StrContains(failed.errors, "cannot find file"));
  EXPECT_EQ(jobs_.started(), 0);
  batch.owner = "bob";
  const auto made = Create(batch);
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_TRUE(absl::IsNotFound(store_->Read([&](Database& database) {
    return FindBatch(database, made->id, "ann").status();
  })));
}

TEST_F(BatchesTest, ADeletedUploadDoesNotStopItsBatch) {
  jobs_.AnswerWith({}, v1::FINISH_REASON_UNSPECIFIED);
  NewBatch batch;
  batch.input_file = UploadText(absl::StrCat(ChatLine("a"), "\n"));
  const auto made = Create(batch);
  ASSERT_TRUE(made.ok()) << made.status();
  ASSERT_NE(jobs_.Await(0), nullptr);
  Mutex mu;
  CondVar changed;
  std::optional<absl::Status> deleted;
  batches_->DeleteFile(batch.input_file, "", [&](const absl::Status& status) {
    MutexLock lock(&mu);
    deleted = status;
    changed.NotifyAll();
  });
  {
    MutexLock lock(&mu);
    while (!deleted.has_value()) changed.Wait(&mu);
    EXPECT_EQ(*deleted, absl::OkStatus());
  }
  jobs_.AnswerWith(*(*model_->tokenizer())->Encode("ok"),
                   v1::FINISH_REASON_LENGTH);
  Restart();
  EXPECT_EQ(AwaitEnd(made->id).completed, 1);
}

TEST_F(BatchesTest, ABatchWithoutItsInputFails) {
  jobs_.AnswerWith({}, v1::FINISH_REASON_UNSPECIFIED);
  const BatchRecord made = CreateOf(ChatLine("a"));
  ASSERT_NE(jobs_.Await(0), nullptr);
  store_->Stop();
  batches_.reset();
  std::filesystem::remove(store_->FilePath(made.id));
  store_.reset();
  Start();
  const BatchRecord ended = AwaitEnd(made.id);
  EXPECT_EQ(ended.state, kBatchFailed);
  EXPECT_EQ(ended.failed, 1);
  EXPECT_EQ(Outputs(made.id, true)[0]["error"]["code"], "input_lost");
}

// It waits until it can be read, beside others that run.
TEST_F(BatchesTest, AnInputThatCannotBeReadIsLoggedOnce) {
  jobs_.AnswerWith({}, v1::FINISH_REASON_UNSPECIFIED);
  const BatchRecord made = CreateOf(ChatLine("a"));
  ASSERT_NE(jobs_.Await(0), nullptr);
  End();
  const std::string path = absl::StrCat(dir_.path(), "/files/", made.id);
  std::filesystem::rename(path, dir_.File("kept"));
  std::filesystem::create_symlink(path, path);  // A loop.
  jobs_.AnswerWith(*(*model_->tokenizer())->Encode("ok"),
                   v1::FINISH_REASON_LENGTH);
  ::testing::internal::CaptureStderr();
  Start();
  for (const char* id : {"b", "c"}) {
    EXPECT_EQ(AwaitEnd(CreateOf(ChatLine(id)).id).completed, 1);
  }
  const std::string log = ::testing::internal::GetCapturedStderr();
  const size_t told = log.find(absl::StrCat("batches: ", path));
  ASSERT_NE(told, std::string::npos) << log;
  EXPECT_EQ(log.find("batches: ", told + 1), std::string::npos) << log;
  std::filesystem::rename(dir_.File("kept"), path);
  EXPECT_EQ(AwaitEnd(made.id).completed, 1);
}

TEST_F(BatchesTest, LinesWithAPrefixInCommonRunTogether) {
  std::string text;
  for (int i = 0; i < 3; ++i) {
    absl::StrAppend(&text, ChatLine(absl::StrCat("a", i), "first"), "\n",
                    ChatLine(absl::StrCat("b", i), "second"), "\n");
  }
  jobs_.AnswerWith(*(*model_->tokenizer())->Encode("ok"),
                   v1::FINISH_REASON_LENGTH);
  const BatchRecord made = CreateOf(text);
  ASSERT_EQ(AwaitEnd(made.id).completed, 6);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(jobs_.Await(i)->request().prompt_ids,
              jobs_.Await(0)->request().prompt_ids);
  }
}

}  // namespace
}  // namespace ringfleet::coordinator
