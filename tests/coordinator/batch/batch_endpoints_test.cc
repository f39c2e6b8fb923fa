// SPDX-License-Identifier: Apache-2.0
// /v1/files and /v1/batches over loopback, with a store and jobs that the test
// plays.
#include "coordinator/batch/batch_endpoints.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "coordinator/batch/batch_json.h"
#include "coordinator/batch/batch_upload.h"
#include "coordinator/batch/file_upload.h"
#include "tests/coordinator/http/api_fixture.h"
#include "tests/testing/checkpoint_writer.h"
#include "tests/testing/soon.h"

namespace ringfleet::coordinator {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::json;
using testing::HttpClient;
using testing::HttpReply;

constexpr char kFormType[] =
    "Content-Type: multipart/form-data; boundary=XyZ\r\n";

std::string Field(absl::string_view name, absl::string_view value,
                  absl::string_view more = "") {
  return absl::StrCat("--XyZ\r\nContent-Disposition: form-data; name=\"", name,
                      "\"", more, "\r\n\r\n", value, "\r\n");
}

std::string FileField(absl::string_view text,
                      absl::string_view name = "in.jsonl") {
  return Field("file", text, absl::StrCat("; filename=\"", name, "\""));
}

std::string CompletionLine(absl::string_view id,
                           absl::string_view prompt = "hi") {
  return absl::StrCat(
      R"({"custom_id":")", id,
      R"(","method":"POST","url":"/v1/completions","body":{"model":"tiny-v3",)",
      R"("prompt":")", prompt, R"(","max_tokens":2}})", "\n");
}

class BatchEndpointsTest : public ApiTest {
 protected:
  void SetUp() override {
    Answer("ok");
    StoreOptions options;
    options.folder = dir_.File("store");
    options.description = "fleet test";
    auto store = Store::Open(std::move(options));
    ASSERT_TRUE(store.ok()) << store.status();
    store_ = *std::move(store);
    BatchRunnerOptions runner;
    runner.store = store_.get();
    runner.model = model_;
    runner.jobs = &jobs_;
    runner.served_name = "tiny-v3";
    runner.window = 4;
    batches_ = Batches::Start(runner);
    endpoints_ = std::make_unique<BatchEndpoints>(batches_.get());
    HttpOptions http;
    http.limits.linger = absl::Milliseconds(200);
    testing::WriteFile(dir_.File("keys"), "ada: key-of-ada\nbob: key-of-bob\n");
    http.access.api_key_file = dir_.File("keys");
    http.routes = endpoints_.get();
    Start(http);
  }
  void TearDown() override {
    face_.reset();
    store_->Stop();
  }

  static std::string KeyOf(absl::string_view name) {
    return absl::StrCat("Authorization: Bearer key-of-", name, "\r\n");
  }
  HttpReply Call(absl::string_view method, absl::string_view path,
                 absl::string_view body = "", absl::string_view more = "",
                 absl::string_view name = "ada") {
    return HttpClient(face_->port())
        .Call(method, path, body, absl::StrCat(KeyOf(name), more));
  }
  Json CallJson(absl::string_view method, absl::string_view path,
                absl::string_view body = "") {
    const HttpReply reply = Call(method, path, body);
    EXPECT_EQ(reply.status, 200) << method << " " << path << reply.body;
    return Json::parse(reply.body, nullptr, /*allow_exceptions=*/false);
  }
  static std::string UploadHead(size_t bytes, absl::string_view more = "") {
    return absl::StrCat("POST /v1/files HTTP/1.1\r\nHost: a\r\n", KeyOf("ada"),
                        kFormType, more, "Content-Length: ", bytes, "\r\n\r\n");
  }
  // Sends a form without its last boundary.
  HttpReply Upload(absl::string_view form) {
    HttpClient client(face_->port());
    const std::string body = absl::StrCat(form, "--XyZ--\r\n");
    client.Send(UploadHead(body.size()) + body);
    return client.Read();
  }
  std::string UploadId(absl::string_view text) {
    const HttpReply reply = Upload(FileField(text) + Field("purpose", "batch"));
    EXPECT_EQ(reply.status, 200) << reply.body;
    return Json::parse(reply.body)["id"];
  }
  // Expects an error that names a field.
  void ExpectBadUpload(absl::string_view form, absl::string_view param,
                       absl::string_view message) {
    SCOPED_TRACE(form.substr(0, 300));
    const HttpReply reply = Upload(form);
    EXPECT_EQ(reply.status, 400);
    const Json error = Json::parse(reply.body)["error"];
    EXPECT_EQ(error["param"].is_null() ? "" : error["param"],
              std::string(param));
    EXPECT_THAT(error["message"].get<std::string>(),
                HasSubstr(std::string(message)));
  }
  static Json NewBatchJson(const std::string& file) {
    return {{"input_file_id", file},
            {"endpoint", "/v1/completions"},
            {"completion_window", "24h"}};
  }
  Json AwaitBatch(const std::string& id) {
    const auto deadline = testing::Soon();
    uint64_t version = 0;
    while (true) {
      Json batch = CallJson("GET", "/v1/batches/" + id);
      const std::string status = batch["status"];
      if (status == "completed" || status == "failed" ||
          status == "cancelled" || deadline.Expired()) {
        return batch;
      }
      batches_->WaitForChange(&version, absl::Milliseconds(50));
    }
  }
  // Returns files that the store's folder has.
  size_t StoredFiles() const {
    return static_cast<size_t>(
        std::distance(std::filesystem::directory_iterator(store_->FilePath("")),
                      std::filesystem::directory_iterator()));
  }
  void AwaitStoredFiles(size_t count) {
    const auto deadline = testing::Soon();
    while (StoredFiles() != count && !deadline.Expired()) {
      std::this_thread::yield();
    }
    EXPECT_EQ(StoredFiles(), count);
  }

  testing::TempDir dir_;
  std::unique_ptr<Store> store_;
  std::unique_ptr<Batches> batches_;
  std::unique_ptr<BatchEndpoints> endpoints_;
};

TEST_F(BatchEndpointsTest, AnUploadIsKeptByteForByte) {
  std::string text;
  for (int i = 0; i < 40'000; ++i) absl::StrAppend(&text, i, "\r\n--XyY\n");
  const HttpReply reply =
      Upload(Field("expires_after[seconds]", "3600") + Field("other", "x") +
             FileField(text) + Field("expires_after[anchor]", "created_at") +
             Field("purpose", "batch"));
  ASSERT_EQ(reply.status, 200) << reply.body;
  EXPECT_TRUE(reply.headers.count("x-request-id"));
  const Json file = Json::parse(reply.body);
  EXPECT_TRUE(absl::StartsWith(file["id"].get<std::string>(), "file-"));
  EXPECT_EQ(file["object"], "file");
  EXPECT_EQ(file["bytes"], text.size());
  EXPECT_EQ(file["filename"], "in.jsonl");
  EXPECT_EQ(file["purpose"], "batch");
  EXPECT_EQ(file["status"], "processed");
  EXPECT_EQ(file["expires_at"], file["created_at"].get<int64_t>() + 3600);
  const std::string path = "/v1/files/" + file["id"].get<std::string>();
  EXPECT_EQ(CallJson("GET", path), file);
  const HttpReply content = Call("GET", path + "/content");
  EXPECT_TRUE(content.whole);
  EXPECT_TRUE(content.body == text);
  EXPECT_EQ(content.headers.at("x-content-type-options"), "nosniff");
  EXPECT_EQ(content.headers.at("content-length"), std::to_string(text.size()));
  EXPECT_EQ(content.headers.at("content-disposition"),
            "attachment; filename=\"in.jsonl\"");
  HttpClient head(face_->port());
  head.SendRequest("HEAD", path + "/content", "", KeyOf("ada"));
  const HttpReply only = head.Read(/*head_only=*/true);
  EXPECT_EQ(only.status, 200);
  EXPECT_EQ(only.headers.at("content-length"), std::to_string(text.size()));
  head.SendRequest("HEAD", path, "", KeyOf("ada"));
  EXPECT_EQ(head.Read(/*head_only=*/true).status, 200);
  const Json deleted = {
      {"id", file["id"]}, {"object", "file"}, {"deleted", true}};
  EXPECT_EQ(CallJson("DELETE", path), deleted);
  EXPECT_EQ(StoredFiles(), 0u);
  for (const char* const method : {"GET", "DELETE"}) {
    const HttpReply gone = Call(method, path);
    EXPECT_EQ(gone.status, 404);
    EXPECT_THAT(gone.body, HasSubstr("no such file"));
  }
  EXPECT_EQ(Call("GET", path + "/content").status, 404);
}

TEST_F(BatchEndpointsTest, ADownloadHasTheNameOfItsFile) {
  const HttpReply reply = Upload(FileField("{}", "n\xc3\xa4h \\\"1\\\".jsonl") +
                                 Field("purpose", "batch"));
  ASSERT_EQ(reply.status, 200) << reply.body;
  const Json file = Json::parse(reply.body);
  EXPECT_EQ(file["expires_at"], file["created_at"].get<int64_t>() + 30 * 86400);
  const HttpReply content = Call(
      "GET",
      absl::StrCat("/v1/files/", file["id"].get<std::string>(), "/content"));
  EXPECT_EQ(content.headers.at("content-disposition"),
            "attachment; filename*=UTF-8''n%C3%A4h%20%221%22.jsonl");
}

TEST_F(BatchEndpointsTest, WrongFormsAreRefusedAndLeaveNothing) {
  const std::string file = FileField("{}\n");
  const std::string purpose = Field("purpose", "batch");
  ExpectBadUpload(file, "purpose", "missing");
  ExpectBadUpload(purpose, "file", "missing");
  ExpectBadUpload(FileField("") + purpose, "file", "empty");
  ExpectBadUpload(file + Field("purpose", "fine-tune"), "purpose",
                  "'fine-tune', want 'batch'");
  ExpectBadUpload(file + file + purpose, "file", "twice");
  ExpectBadUpload(file + purpose + purpose, "purpose", "twice");
  ExpectBadUpload(file + Field("purpose", std::string(10'000, 'x')), "purpose",
                  "too long");
  ExpectBadUpload(file + purpose + Field("expires_after[anchor]", "now"),
                  "expires_after[anchor]", "want 'created_at'");
  const std::string anchor = Field("expires_after[anchor]", "created_at");
  ExpectBadUpload(file + purpose + anchor, "expires_after[seconds]", "3600");
  ExpectBadUpload(
      file + purpose + anchor + Field("expires_after[seconds]", "3599"),
      "expires_after[seconds]", "want an integer from 3600 to 2592000");
  ExpectBadUpload("--XyZ\r\n\r\n", "", "no multipart/form-data");
  ExpectBadUpload(file + "--XyZ--", "purpose", "missing");
  HttpClient client(face_->port());
  client.Send(absl::StrCat(
      "POST /v1/files HTTP/1.1\r\nHost: a\r\n", KeyOf("ada"),
      "Content-Type: multipart/form-data\r\nContent-Length: 5\r\n\r\nabcde"));
  EXPECT_THAT(client.Read().body, HasSubstr("boundary"));
  EXPECT_EQ(StoredFiles(), 0u);
  EXPECT_EQ(CallJson("GET", "/v1/files")["data"].size(), 0u);
}

TEST_F(BatchEndpointsTest, NamesNeverBecomePaths) {
  for (const auto& [sent, kept] :
       std::vector<std::pair<std::string, std::string>>{
           {"../../etc/passwd", "passwd"},
           {"C:\\dir\\a.jsonl", "a.jsonl"},
           {"a\x01"
            "b\tc",
            "a_b_c"},
           {"\xff"
            "a",
            "_a"},
           {"n\xc3\xa4h", "n\xc3\xa4h"},
           {"..", ".."},
           {"", "upload"}}) {
    const HttpReply reply =
        Upload(FileField("{}", sent) + Field("purpose", "batch"));
    ASSERT_EQ(reply.status, 200) << reply.body;
    EXPECT_EQ(Json::parse(reply.body)["filename"], kept);
  }
  EXPECT_EQ(StoredFiles(), 7u);
  EXPECT_EQ(CleanFileName(std::string(254, 'x') + "\xc3\xa4"),
            std::string(254, 'x'));
}

TEST_F(BatchEndpointsTest, TooLongUploadsAreRefusedAtTheHead) {
  HttpClient client(face_->port());
  ASSERT_TRUE(client.Send(
      UploadHead((size_t{200} << 20) + (1 << 20), "Expect: 100-continue\r\n")));
  EXPECT_EQ(client.Read().status, 413);
  HttpClient asked(face_->port());
  const std::string body =
      FileField("{}") + Field("purpose", "batch") + "--XyZ--";
  ASSERT_TRUE(asked.Send(UploadHead(body.size(), "Expect: 100-continue\r\n")));
  EXPECT_EQ(asked.Read().status, 100);
  ASSERT_TRUE(asked.Send(body));
  EXPECT_EQ(asked.Read().status, 200);
}

TEST_F(BatchEndpointsTest, AClientThatLeavesLeavesNoFile) {
  {
    HttpClient client(face_->port());
    ASSERT_TRUE(client.Send(UploadHead(10'000'000) + FileField("some") +
                            std::string(3'000'000, 'x')));
    AwaitStoredFiles(1);
  }
  AwaitStoredFiles(0);
}

TEST_F(BatchEndpointsTest, UploadsAtATimeHaveALimit) {
  std::vector<std::unique_ptr<HttpClient>> clients;
  for (int i = 0; i < kMostUploads; ++i) {
    clients.push_back(std::make_unique<HttpClient>(face_->port()));
    ASSERT_TRUE(
        clients.back()->Send(UploadHead(1000, "Expect: 100-continue\r\n")));
    EXPECT_EQ(clients.back()->Read().status, 100);
  }
  HttpReply refused = Upload(FileField("{}") + Field("purpose", "batch"));
  EXPECT_EQ(refused.status, 429);
  EXPECT_TRUE(refused.headers.count("retry-after"));
  clients.clear();
  const auto deadline = testing::Soon();
  while (Upload(FileField("{}") + Field("purpose", "batch")).status == 429 &&
         !deadline.Expired()) {
  }
  EXPECT_EQ(UploadId("{}").substr(0, 5), "file-");
}

// A folder that cannot be written stands for a full disk: root may write
// anywhere, but not into a file.
TEST_F(BatchEndpointsTest, AFileThatCannotBeStoredIsAnError) {
  const std::string folder = store_->FilePath("");
  std::filesystem::remove_all(folder);
  testing::WriteFile(folder.substr(0, folder.size() - 1), "no folder");
  const HttpReply reply = Upload(FileField("{}") + Field("purpose", "batch"));
  EXPECT_EQ(reply.status, 500);
  EXPECT_THAT(reply.body, HasSubstr("Not a directory"));
  ApiError full = StoreErrorOf(absl::ResourceExhaustedError("full"), *store_);
  EXPECT_EQ(full.status, 507);
  EXPECT_FALSE(full.should_retry);
  const absl::Status refused = absl::FailedPreconditionError("");
  EXPECT_EQ(StoreErrorOf(refused, *store_).status, 409);
  // Another file takes the place of the database.
  testing::WriteFile(store_->path() + ".other", "");
  std::filesystem::rename(store_->path() + ".other", store_->path());
  EXPECT_FALSE(
      store_->WriteNow([](Database&) { return absl::OkStatus(); }).ok());
  EXPECT_EQ(StoreErrorOf(refused, *store_).status, 503);
}

TEST_F(BatchEndpointsTest, ErrorsDoNotTellWhereTheStoreIs) {
  const auto told = [this](const std::string& message) {
    return StoreErrorOf(absl::InternalError(message), *store_).message;
  };
  EXPECT_EQ(told(store_->path() + ": full"), "the store: full");
  EXPECT_EQ(told("cannot open '" + store_->FilePath("file-1") + "'"),
            "cannot open 'the store'");
  EXPECT_EQ(told("no batch found with id 'a/b: c'"),
            "no batch found with id 'a/b: c'");
  const std::string file = UploadId(CompletionLine("a"));
  std::filesystem::remove(store_->FilePath(file));
  const HttpReply gone = Call("POST", "/v1/batches", NewBatchJson(file).dump());
  EXPECT_EQ(gone.status, 400);
  EXPECT_EQ(Json::parse(gone.body)["error"]["message"],
            "input_file_id: the bytes of file '" + file + "' are gone");
}

TEST_F(BatchEndpointsTest, ListsHavePages) {
  std::vector<std::string> ids;
  for (int i = 0; i < 5; ++i) ids.push_back(UploadId("{}"));
  Json page = CallJson("GET", "/v1/files?limit=2&order=asc&purpose=batch");
  EXPECT_EQ(page["object"], "list");
  EXPECT_EQ(page["data"].size(), 2u);
  EXPECT_EQ(page["has_more"], true);
  EXPECT_EQ(page["first_id"], page["data"][0]["id"]);
  EXPECT_EQ(page["last_id"], page["data"][1]["id"]);
  std::vector<std::string> seen;
  std::string after;
  do {
    page = CallJson("GET", "/v1/files?order=asc&limit=2" + after);
    for (const Json& file : page["data"]) seen.push_back(file["id"]);
    after = "&after=" + page["last_id"].get<std::string>();
  } while (page["has_more"] == true);
  std::vector<std::string> newest;
  page = CallJson("GET", "/v1/files");
  for (const Json& file : page["data"]) newest.push_back(file["id"]);
  std::reverse(newest.begin(), newest.end());
  EXPECT_EQ(seen, newest);
  std::sort(ids.begin(), ids.end());
  std::sort(seen.begin(), seen.end());
  EXPECT_EQ(seen, ids);
  EXPECT_EQ(CallJson("GET", "/v1/files?purpose=batch_output")["data"].size(),
            0u);
  const Json none = CallJson("GET", "/v1/batches");
  EXPECT_EQ(none["data"].size(), 0u);
  EXPECT_TRUE(none["first_id"].is_null());
  EXPECT_EQ(none["has_more"], false);
  for (const char* const bad :
       {"/v1/files?limit=0", "/v1/files?limit=10001", "/v1/files?limit=x",
        "/v1/files?order=up", "/v1/batches?limit=101"}) {
    const HttpReply reply = Call("GET", bad);
    EXPECT_EQ(reply.status, 400) << bad;
    const Json error = Json::parse(reply.body)["error"];
    EXPECT_EQ(error["param"],
              absl::StrContains(bad, "limit") ? "limit" : "order");
    EXPECT_EQ(error["code"], "invalid_value");
  }
  EXPECT_EQ(Call("GET", "/v1/files?after=file-none").status, 404);
}

TEST_F(BatchEndpointsTest, ABatchRunsAndItsFilesAreRead) {
  const std::string file =
      UploadId(CompletionLine("a") + CompletionLine("b") +
               CompletionLine("c", std::string(5000, 'x')));
  Json wanted = NewBatchJson(file);
  wanted["metadata"] = {{"k", "v"}};
  const Json made = CallJson("POST", "/v1/batches", wanted.dump());
  EXPECT_EQ(made["object"], "batch");
  EXPECT_EQ(made["endpoint"], "/v1/completions");
  EXPECT_EQ(made["input_file_id"], file);
  EXPECT_EQ(made["completion_window"], "24h");
  EXPECT_EQ(made["metadata"], wanted["metadata"]);
  EXPECT_EQ(made["model"], "tiny-v3");
  EXPECT_EQ(made["expires_at"], made["created_at"].get<int64_t>() + 86400);
  for (const char* const absent :
       {"errors", "output_file_id", "error_file_id", "completed_at",
        "failed_at", "expired_at", "cancelling_at", "cancelled_at"}) {
    EXPECT_TRUE(made.contains(absent) && made[absent].is_null()) << absent;
  }
  const Json batch = AwaitBatch(made["id"]);
  ASSERT_EQ(batch["status"], "completed") << batch;
  EXPECT_TRUE(batch["completed_at"].is_number());
  EXPECT_EQ(batch["request_counts"],
            (Json{{"total", 3}, {"completed", 2}, {"failed", 1}}));
  EXPECT_GT(batch["usage"]["output_tokens"], 0);
  EXPECT_EQ(batch["usage"]["total_tokens"],
            batch["usage"]["input_tokens"].get<int>() +
                batch["usage"]["output_tokens"].get<int>());
  const auto lines_of = [this](const Json& id) {
    const HttpReply content =
        Call("GET", "/v1/files/" + id.get<std::string>() + "/content");
    EXPECT_TRUE(content.whole);
    std::vector<Json> lines;
    for (const absl::string_view line :
         absl::StrSplit(content.body, '\n', absl::SkipEmpty())) {
      lines.push_back(Json::parse(line));
    }
    return lines;
  };
  const std::vector<Json> outputs = lines_of(batch["output_file_id"]);
  ASSERT_EQ(outputs.size(), 2u);
  EXPECT_EQ(outputs[0]["custom_id"], "a");
  EXPECT_EQ(outputs[1]["custom_id"], "b");
  EXPECT_EQ(outputs[0]["response"]["status_code"], 200);
  const std::vector<Json> errors = lines_of(batch["error_file_id"]);
  ASSERT_EQ(errors.size(), 1u);
  EXPECT_EQ(errors[0]["custom_id"], "c");
  const Json listed = CallJson("GET", "/v1/batches?limit=1");
  EXPECT_EQ(listed["data"][0], batch);
  EXPECT_EQ(CallJson("GET", "/v1/files?purpose=batch_output")["data"].size(),
            2u);
  const HttpReply again =
      Call("POST", "/v1/batches/" + batch["id"].get<std::string>() + "/cancel");
  EXPECT_EQ(again.status, 409);
  EXPECT_EQ(again.headers.at("x-should-retry"), "false");
  EXPECT_THAT(again.body, HasSubstr("cannot cancel batch"));
}

TEST_F(BatchEndpointsTest, ValidationNamesLines) {
  const std::string file = UploadId(CompletionLine("a") + "nonsense\n");
  const Json made = CallJson("POST", "/v1/batches", NewBatchJson(file).dump());
  const Json batch = AwaitBatch(made["id"]);
  EXPECT_EQ(batch["status"], "failed");
  EXPECT_EQ(batch["errors"]["object"], "list");
  EXPECT_EQ(batch["errors"]["data"][0]["line"], 2);
  EXPECT_EQ(jobs_.started(), 0u);
}

TEST_F(BatchEndpointsTest, ACancelledBatchEnds) {
  jobs_.AnswerWith({}, v1::FINISH_REASON_UNSPECIFIED);  // Never.
  const std::string file = UploadId(CompletionLine("a"));
  const Json made = CallJson("POST", "/v1/batches", NewBatchJson(file).dump());
  ASSERT_NE(jobs_.Await(0), nullptr);
  const std::string path = "/v1/batches/" + made["id"].get<std::string>();
  const Json cancelling = CallJson("POST", path + "/cancel");
  EXPECT_EQ(cancelling["status"], "cancelling");
  EXPECT_TRUE(cancelling["cancelling_at"].is_number());
  EXPECT_EQ(AwaitBatch(made["id"])["status"], "cancelled");
}

TEST_F(BatchEndpointsTest, WrongBatchesNameTheirField) {
  const std::string file = UploadId(CompletionLine("a"));
  const auto expect_bad = [&](const char* param, const Json& value,
                              const std::string& message) {
    SCOPED_TRACE(absl::StrCat(param, " ", value.dump()));
    Json wanted = NewBatchJson(file);
    const absl::string_view field(param);
    wanted[std::string(field.substr(0, field.find('.')))] = value;
    const HttpReply reply = Call("POST", "/v1/batches", wanted.dump());
    EXPECT_EQ(reply.status, 400);
    const Json error = Json::parse(reply.body)["error"];
    EXPECT_EQ(error["param"], param);
    EXPECT_THAT(error["message"].get<std::string>(), HasSubstr(message));
  };
  expect_bad("endpoint", "/v1/embeddings",
             "invalid value '/v1/embeddings', supported values are "
             "/v1/chat/completions and /v1/completions");
  expect_bad("endpoint", nullptr, "missing");
  expect_bad("input_file_id", nullptr, "missing");
  expect_bad("input_file_id", "", "missing");
  expect_bad("input_file_id", std::string(257, 'f'), "257 bytes");
  expect_bad("completion_window", "1h", "want '24h'");
  expect_bad("metadata", "text", "want an object");
  expect_bad("metadata.k", {{"k", Json::array()}}, "array, want a string");
  expect_bad("metadata", {{std::string(65, 'k'), "v"}}, "64");
  expect_bad("metadata.k", {{"k", std::string(513, 'v')}}, "512");
  Json many;
  for (int i = 0; i < 17; ++i) many[absl::StrCat(i)] = "v";
  expect_bad("metadata", many, "16 pairs");
  expect_bad("priority", 0, "from 1");
  expect_bad("output_expires_after.seconds",
             {{"anchor", "created_at"}, {"seconds", 5}}, "3600");
  expect_bad("output_expires_after.anchor", {{"seconds", 3600}}, "created_at");
  EXPECT_EQ(Call("POST", "/v1/batches", "[1]").status, 400);
  for (const HttpReply& none :
       {Call("GET", "/v1/batches/batch_none"),
        Call("POST", "/v1/batches/batch_none/cancel")}) {
    EXPECT_EQ(none.status, 404);
    EXPECT_THAT(none.body, HasSubstr("no batch found"));
  }
}

// OpenAI tells these codes.
TEST_F(BatchEndpointsTest, ErrorsHaveCodes) {
  const auto code_of = [](const HttpReply& reply) {
    EXPECT_EQ(reply.status, 400);
    return Json::parse(reply.body)["error"]["code"];
  };
  const auto post = [&](const char* field, const Json& value) {
    Json wanted = NewBatchJson("file-x");
    wanted[field] = value;
    return code_of(Call("POST", "/v1/batches", wanted.dump()));
  };
  EXPECT_EQ(post("input_file_id", nullptr), "missing_required_parameter");
  EXPECT_EQ(post("endpoint", "/v1/embeddings"), "invalid_value");
  EXPECT_EQ(post("completion_window", "7d"), "invalid_value");
  EXPECT_EQ(post("metadata", {{"k", 1}}), "invalid_type");
  EXPECT_EQ(post("metadata", {{"k", std::string(513, 'v')}}),
            "string_above_max_length");
  EXPECT_EQ(post("metadata", 7), "invalid_type");
  EXPECT_EQ(post("endpoint", 7), "invalid_type");
  EXPECT_EQ(post("priority", 0), "invalid_value");
  EXPECT_EQ(post("output_expires_after", {{"anchor", "created_at"}}),
            "missing_required_parameter");
  EXPECT_EQ(code_of(Upload(FileField("{}"))), "missing_required_parameter");
  EXPECT_EQ(code_of(Upload(FileField("{}") + Field("purpose", "vision"))),
            "invalid_value");
}

TEST_F(BatchEndpointsTest, MetadataIsCountedInCharacters) {
  std::string key, value;
  for (int i = 0; i < 64; ++i) key += "\u00e4";
  for (int i = 0; i < 512; ++i) value += "\u20ac";
  Json wanted = NewBatchJson("file-x");
  wanted["metadata"] = {{key, value}};
  EXPECT_EQ(CallJson("POST", "/v1/batches", wanted.dump())["metadata"][key],
            value);
  wanted["metadata"][key] = value + "x";
  EXPECT_EQ(Call("POST", "/v1/batches", wanted.dump()).status, 400);
}

// OpenAI looks for the file when it validates the batch.
TEST_F(BatchEndpointsTest, ABatchWithoutAFileFails) {
  const Json made =
      CallJson("POST", "/v1/batches", NewBatchJson("file-none").dump());
  EXPECT_EQ(made["input_file_id"], "file-none");
  const Json batch = AwaitBatch(made["id"]);
  EXPECT_EQ(batch["status"], "failed");
  EXPECT_TRUE(batch["failed_at"].is_number());
  ASSERT_EQ(batch["errors"]["data"].size(), 1u);
  const Json error = batch["errors"]["data"][0];
  EXPECT_EQ(error["code"], "invalid_request");
  EXPECT_EQ(error["param"], "file_id");
  EXPECT_TRUE(error["line"].is_null());
  EXPECT_THAT(error["message"].get<std::string>(),
              HasSubstr("cannot find file 'file-none'"));
}

TEST_F(BatchEndpointsTest, AKeyMakesOneBatchOverHttp) {
  const std::string file = UploadId(CompletionLine("a"));
  const std::string body = NewBatchJson(file).dump();
  const Json first = Json::parse(
      Call("POST", "/v1/batches", body, "Idempotency-Key: k1\r\n").body);
  Json with_key = NewBatchJson(file);
  with_key["idempotency_key"] = "k1";
  EXPECT_EQ(CallJson("POST", "/v1/batches", with_key.dump())["id"],
            first["id"]);
  with_key["input_file_id"] = UploadId(CompletionLine("b"));
  const HttpReply conflict = Call("POST", "/v1/batches", with_key.dump());
  EXPECT_EQ(conflict.status, 409);
  EXPECT_THAT(conflict.body, HasSubstr("conflict"));
  EXPECT_NE(CallJson("POST", "/v1/batches", body)["id"], first["id"]);
}

TEST_F(BatchEndpointsTest, KeysDoNotSeeEachOther) {
  const std::string file = UploadId(CompletionLine("a"));
  const std::string batch =
      CallJson("POST", "/v1/batches", NewBatchJson(file).dump())["id"];
  for (const auto& [method, path] :
       std::vector<std::pair<std::string, std::string>>{
           {"GET", "/v1/files/" + file},
           {"GET", "/v1/files/" + file + "/content"},
           {"DELETE", "/v1/files/" + file},
           {"GET", "/v1/batches/" + batch},
           {"POST", "/v1/batches/" + batch + "/cancel"}}) {
    EXPECT_EQ(Call(method, path, "", "", "bob").status, 404) << path;
    EXPECT_EQ(HttpClient(face_->port()).Call(method, path).status, 401);
  }
  for (const char* const list : {"/v1/files", "/v1/batches"}) {
    EXPECT_EQ(Json::parse(Call("GET", list, "", "", "bob").body)["data"].size(),
              0u);
  }
  // As of a file that nobody has.
  const HttpReply others =
      Call("POST", "/v1/batches", NewBatchJson(file).dump(), "", "bob");
  ASSERT_EQ(others.status, 200) << others.body;
  const std::string id = Json::parse(others.body)["id"];
  EXPECT_EQ(Call("GET", "/v1/batches/" + id).status, 404);
  const auto deadline = testing::Soon();
  Json failed;
  do {
    failed = Json::parse(Call("GET", "/v1/batches/" + id, "", "", "bob").body);
  } while (failed["status"] == "validating" && !deadline.Expired());
  EXPECT_EQ(failed["status"], "failed");
  EXPECT_EQ(failed["errors"]["data"][0]["param"], "file_id");
}

TEST_F(BatchEndpointsTest, MethodsAndTypesAreChecked) {
  const HttpReply wrong = Call("PUT", "/v1/files/file-x");
  EXPECT_EQ(wrong.status, 405);
  EXPECT_EQ(wrong.headers.at("allow"), "GET, HEAD, DELETE, OPTIONS");
  EXPECT_EQ(Call("DELETE", "/v1/files").headers.at("allow"),
            "GET, HEAD, POST, OPTIONS");
  EXPECT_EQ(Call("POST", "/v1/files", "{}").status, 415);
  EXPECT_EQ(Call("POST", "/v1/batches").status, 415);
  EXPECT_EQ(Call("OPTIONS", "/v1/files/file-x").status, 200);
  for (const char* const unknown :
       {"/v1/files/", "/v1/files/a/b", "/v1/files/a/content/b",
        "/v1/batches/a/content", "/v1/filesystem", "/v1"}) {
    const HttpReply reply = Call("GET", unknown);
    EXPECT_EQ(reply.status, 404) << unknown;
    EXPECT_THAT(reply.body, HasSubstr("no such path")) << unknown;
  }
  const std::string metrics = Call("GET", "/metrics").body;
  EXPECT_THAT(metrics, HasSubstr("handler=\"/v1/files/{file_id}\""));
  EXPECT_EQ(metrics.find("file-x"), std::string::npos);
}

// The server may end while files come and go.
TEST_F(BatchEndpointsTest, RequestsWithoutAPathHarmNothing) {
  for (const char* const bytes :
       {"nonsense\r\n\r\n", "GET ?x HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET  HTTP/1.1\r\n\r\n"}) {
    HttpClient client(face_->port());
    ASSERT_TRUE(client.Send(bytes));
    EXPECT_GE(client.Read().status, 400) << bytes;
  }
  EXPECT_EQ(Get("/health").status, 200);
}

TEST_F(BatchEndpointsTest, EndsWithTransfersInProgress) {
  const std::string file = UploadId(std::string(10'000'000, 'x'));
  HttpClient down(face_->port());
  down.SendRequest("GET", "/v1/files/" + file + "/content", "", KeyOf("ada"));
  ASSERT_TRUE(down.ReadUntil("\r\n\r\n"));
  HttpClient up(face_->port());
  ASSERT_TRUE(up.Send(UploadHead(1'000'000) + FileField("part")));
  AwaitStoredFiles(2);
  face_.reset();
  endpoints_.reset();
  EXPECT_EQ(StoredFiles(), 1u);
}

}  // namespace
}  // namespace ringfleet::coordinator
