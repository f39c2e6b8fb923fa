// SPDX-License-Identifier: Apache-2.0
#include "coordinator/batch/batches.h"

#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <functional>
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
#include "coordinator/batch/batch_upload.h"
#include "tests/coordinator/http/fake_jobs.h"
#include "tests/testing/checkpoint_writer.h"
#include "tests/testing/soon.h"

namespace ringfleet::coordinator {
namespace {

constexpr char kBatchModel[] = RINGFLEET_TEST_MODELS "/tiny-v3";

// A line of OpenAI's form.
std::string ChatLine(const std::string& id, const std::string& text = "hi") {
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
    runner.window = 4;
    batches_ = Batches::Start(runner);
  }
  void TearDown() override { store_->Stop(); }
  void Restart() {
    store_->Stop();
    batches_.reset();
    store_.reset();
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
    auto done = (*upload)->Finish();
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
  FakeJobs jobs_;
  std::unique_ptr<Store> store_;
  std::unique_ptr<Batches> batches_;  // Ends before the store.
};

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
       std::string(R"({"prompt":"x","temperature":9})")},
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
          "6 invalid_request body.temperature",
          "7 streaming_unsupported body.stream", "8 model_not_found body.model",
          "9 missing_required_parameter custom_id",
          "10 missing_required_parameter method",
          "11 missing_required_parameter url",
          "12 missing_required_parameter body",
          "13 invalid_request temperature"}));
  EXPECT_EQ(jobs_.started(), 0);
}

// Of OpenAI's form alone, where the batch names its endpoint.
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

TEST_F(BatchesTest, AFleetThatIsAwayCostsNoLine) {
  jobs_.RefuseWith(absl::UnavailableError("no worker"));
  const BatchRecord made = CreateOf(ChatLine("a"));
  const auto deadline = testing::Soon();
  while (Find(made.id).state == kBatchValidating && !deadline.Expired()) {
    absl::SleepFor(absl::Milliseconds(5));
  }
  jobs_.RefuseWith(absl::OkStatus());
  const BatchRecord ended = AwaitEnd(made.id);
  EXPECT_EQ(ended.completed, 1);
  EXPECT_EQ(ended.failed, 0);
}

// The error of a fleet that has failed says nothing about a line.
TEST_F(BatchesTest, AFleetThatHasFailedSpendsNoLine) {
  jobs_.AnswerWith({}, v1::FINISH_REASON_UNSPECIFIED);
  const BatchRecord made =
      CreateOf(absl::StrCat(ChatLine("a"), "\n", ChatLine("b")));
  const std::shared_ptr<Job> first = jobs_.Await(0);
  ASSERT_NE(jobs_.Await(1), nullptr);
  jobs_.SetReady(false);
  first->OnFailed(absl::DataLossError("another checkpoint"));
  ASSERT_TRUE(jobs_.AwaitLeft(*first));
  EXPECT_EQ(Find(made.id).failed, 0);
  EXPECT_EQ(jobs_.started(), 2);
  jobs_.AnswerWith(*(*model_->tokenizer())->Encode("ok"),
                   v1::FINISH_REASON_LENGTH);
  jobs_.SetReady(true);
  const std::shared_ptr<Job> second = jobs_.Await(1);
  second->OnToken({.id = 300, .logprob = 0, .top = {}});
  second->OnFinished(v1::FINISH_REASON_LENGTH, {});
  const BatchRecord ended = AwaitEnd(made.id);
  EXPECT_EQ(ended.completed, 2);
  EXPECT_EQ(ended.failed, 0);
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

TEST_F(BatchesTest, CancellingKeepsWhatIsDone) {
  jobs_.AnswerWith({}, v1::FINISH_REASON_UNSPECIFIED);
  std::string text;
  for (int i = 0; i < 10; ++i) {
    absl::StrAppend(&text, ChatLine(absl::StrCat(i)), "\n");
  }
  const BatchRecord made = CreateOf(text);
  const std::shared_ptr<Job> first = jobs_.Await(0);
  first->OnRunning(0);
  first->OnToken({.id = 300, .logprob = 0, .top = {}});
  first->OnFinished(v1::FINISH_REASON_LENGTH, {});
  const auto deadline = testing::Soon();
  while (Find(made.id).completed == 0 && !deadline.Expired()) {
    absl::SleepFor(absl::Milliseconds(5));
  }
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
}

// A client that missed the answer may ask again when its upload is gone.
TEST_F(BatchesTest, AKeyOutlivesTheUpload) {
  NewBatch batch;
  batch.input_file = "file-none";
  batch.client_key = "night";
  batch.metadata = R"({"a":"1","b":"2"})";
  const auto first = Create(batch);
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ(first->input_file, "file-none");
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

// A process that was killed leaves files that no record names.
TEST_F(BatchesTest, OldFilesOfNobodyAreRemoved) {
  const auto age = [this](const std::string& name) {
    std::filesystem::last_write_time(
        store_->FilePath(name),
        std::filesystem::file_time_type::clock::now() - std::chrono::hours(48));
  };
  const std::string kept = UploadText(ChatLine("a"));
  age(kept);
  for (const char* const name : {"file-old", "file-young"}) {
    testing::WriteFile(store_->FilePath(name), "x");
  }
  age("file-old");
  Restart();
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

TEST_F(BatchesTest, OldBatchesAndUploadsAreForgotten) {
  const BatchRecord old = CreateOf(ChatLine("a"));
  ASSERT_EQ(AwaitEnd(old.id).state, kBatchCompleted);
  PassTime(absl::Hours(24 * 20));
  const BatchRecord young = CreateOf(ChatLine("b"));
  ASSERT_EQ(AwaitEnd(young.id).state, kBatchCompleted);
  PassTime(absl::Hours(24 * 11));
  Restart();  // Limits are kept at the start.
  const auto deadline = testing::Soon();
  const auto exists = [this](const std::string& id) {
    return store_
        ->Read([&id](Database& database) {
          return FindBatch(database, id, "").status();
        })
        .ok();
  };
  while (exists(old.id) && !deadline.Expired()) {
    absl::SleepFor(absl::Milliseconds(5));
  }
  EXPECT_FALSE(exists(old.id));
  EXPECT_TRUE(exists(young.id));
  EXPECT_TRUE(Outputs(old.id).empty());
  EXPECT_EQ(Outputs(young.id).size(), 1);
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
