// SPDX-License-Identifier: Apache-2.0
#include "coordinator/batch/batch_endpoints.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "cluster/process/status_macros.h"
#include "coordinator/batch/batch_json.h"
#include "coordinator/batch/batch_lines.h"
#include "coordinator/batch/file_download.h"
#include "coordinator/batch/file_upload.h"
#include "coordinator/http/json_text.h"
#include "coordinator/http/request_fields.h"

namespace ringfleet::coordinator {
namespace {

constexpr HttpRoute kFiles = {.name = "/v1/files",
                              .gets = true,
                              .posts = true,
                              .body = HttpRoute::Body::kForm};
constexpr HttpRoute kFile = {
    .name = "/v1/files/{file_id}", .gets = true, .deletes = true};
constexpr HttpRoute kContent = {.name = "/v1/files/{file_id}/content",
                                .gets = true};
constexpr HttpRoute kBatches = {
    .name = "/v1/batches", .gets = true, .posts = true};
constexpr HttpRoute kBatch = {.name = "/v1/batches/{batch_id}", .gets = true};
constexpr HttpRoute kCancel = {.name = "/v1/batches/{batch_id}/cancel",
                               .posts = true,
                               .body = HttpRoute::Body::kAny};

constexpr int64_t kMostFilesListed = 10'000;
constexpr int64_t kMostBatchesListed = 100;
constexpr int64_t kBatchesListed = 20;
constexpr char kWindow[] = "24h";
constexpr int64_t kWindowSeconds = int64_t{24} * 3600;
constexpr size_t kMostPairs = 16;
constexpr size_t kMostPairKey = 64;  // Characters, as is the next.
constexpr size_t kMostPairValue = 512;
constexpr size_t kMostFileId = 256;

// Returns the parts of a path between its slashes. A request that could not be
// read has an empty path.
std::vector<std::string> PartsOf(absl::string_view path) {
  if (path.empty()) return {};
  return absl::StrSplit(path.substr(1), '/');
}

ApiError Refusal(const char* code, std::string param, std::string message) {
  ApiError error = BadField(std::move(param), std::move(message));
  error.code = code;
  return error;
}

// Reads what part of a list a request asks for: at most `most` entries, and as
// many as `page` has unless it tells. Returns what is wrong.
std::optional<ApiError> ReadPage(const HttpRequest& request, int64_t most,
                                 PageOptions* page) {
  page->after = request.Parameter("after").value_or("");
  if (const auto limit = request.Parameter("limit");
      limit.has_value() && (!absl::SimpleAtoi(*limit, &page->limit) ||
                            page->limit < 1 || page->limit > most)) {
    return Refusal(kInvalidValue, "limit",
                   absl::StrCat("'", limit->substr(0, 100),
                                "', want an integer from 1 to ", most));
  }
  const std::string order = request.Parameter("order").value_or("desc");
  if (order != "asc" && order != "desc") {
    return Refusal(
        kInvalidValue, "order",
        absl::StrCat("'", order.substr(0, 100), "', want asc or desc"));
  }
  page->ascending = order == "asc";
  return std::nullopt;
}

// Returns the JSON of a list, whose entries `list` reads.
template <typename Record, typename Write>
std::string PageJson(size_t limit, const std::vector<Record>& records,
                     const Write& write) {
  ListPage page = {.limit = limit};
  for (const Record& record : records) {
    page.ids.push_back(record.id);
    page.objects.push_back(write(record));
  }
  return ListJson(page);
}

// Returns the characters of a text in UTF-8.
size_t CharactersOf(const std::string& text) {
  return static_cast<size_t>(std::count_if(
      text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

// Returns the metadata as JSON; empty: none.
std::string ReadMetadata(RequestFields* fields) {
  const RequestFields::Json* const metadata = fields->Find("metadata");
  if (metadata == nullptr) return "";
  if (!metadata->is_object() || metadata->size() > kMostPairs) {
    fields->FailField(
        "metadata",
        absl::StrCat("want an object of at most ", kMostPairs, " pairs"),
        metadata->is_object() ? kInvalidValue : kInvalidType);
    return "";
  }
  for (const auto& [key, value] : metadata->items()) {
    if (CharactersOf(key) > kMostPairKey) {
      fields->Fail(
          Refusal(kTooLong, "metadata",
                  absl::StrCat("a key of ", CharactersOf(key),
                               " characters, want at most ", kMostPairKey)));
      return "";
    }
    const std::string name = absl::StrCat("metadata.", key);
    const auto* const text = value.get_ptr<const std::string*>();
    if (text == nullptr) {
      fields->Fail(Refusal(kInvalidType, name,
                           absl::StrCat(value.type_name(), ", want a string")));
      return "";
    }
    if (CharactersOf(*text) > kMostPairValue) {
      fields->Fail(
          Refusal(kTooLong, name,
                  absl::StrCat(CharactersOf(*text),
                               " characters, want at most ", kMostPairValue)));
      return "";
    }
  }
  return metadata->dump();
}

// Returns when output files expire, in seconds; 0: never.
int64_t ReadOutputSeconds(RequestFields* fields) {
  const RequestFields::Json* const expiry =
      fields->Find("output_expires_after");
  if (expiry == nullptr) return 0;
  if (!expiry->is_object()) {
    fields->FailField("output_expires_after", "want an object", kInvalidType);
    return 0;
  }
  RequestFields inner(*expiry, "output_expires_after.");
  if (inner.Text("anchor").value_or("") != kCreatedAnchor) {
    inner.FailField("anchor", absl::StrCat("want '", kCreatedAnchor, "'"),
                    kInvalidValue);
  }
  const auto seconds =
      inner.Integer("seconds", kLeastFileSeconds, kMostFileSeconds);
  if (!seconds.has_value()) {
    inner.FailField("seconds", "missing", kMissingParameter);
  }
  if (inner.error().has_value()) fields->Fail(*inner.error());
  return seconds.value_or(0);
}

std::string ReadRequired(RequestFields* fields, const char* name) {
  auto text = fields->Text(name);
  if (text.value_or("").empty()) {
    fields->Fail(Refusal(kMissingParameter, name, "missing, want a string"));
  }
  return text.value_or("");
}

// Reads the body of POST /v1/batches. Returns what is wrong.
std::optional<ApiError> ReadNewBatch(const HttpRequest& request,
                                     NewBatch* batch) {
  const auto json = ParseJsonBody(request.body);
  if (!json.ok()) return ErrorOf(json.status());
  RequestFields fields(*json);
  batch->input_file = ReadRequired(&fields, "input_file_id");
  if (batch->input_file.size() > kMostFileId) {
    fields.Fail(Refusal(kTooLong, "input_file_id",
                        absl::StrCat(batch->input_file.size(),
                                     " bytes, want at most ", kMostFileId)));
  }
  batch->endpoint = ReadRequired(&fields, "endpoint");
  if (batch->endpoint != kChatEndpoint &&
      batch->endpoint != kCompletionEndpoint) {
    fields.Fail(
        Refusal(kInvalidValue, "endpoint",
                absl::StrCat("invalid value '", batch->endpoint.substr(0, 200),
                             "', supported values are ", kChatEndpoint, " and ",
                             kCompletionEndpoint)));
  }
  const std::string window = ReadRequired(&fields, "completion_window");
  if (window != kWindow) {
    fields.Fail(Refusal(
        kInvalidValue, "completion_window",
        absl::StrCat("'", window.substr(0, 200), "', want '", kWindow, "'")));
  }
  batch->window_seconds = kWindowSeconds;
  batch->metadata = ReadMetadata(&fields);
  batch->output_seconds = ReadOutputSeconds(&fields);
  batch->priority = static_cast<int32_t>(
      fields.Integer("priority", 1, std::numeric_limits<int32_t>::max())
          .value_or(kBatchPriority));
  // Some clients put a key of their own into the header.
  std::string key = fields.Text("idempotency_key").value_or("");
  if (key.empty()) key = std::string(request.Header("idempotency-key"));
  if (key.size() > kMostClientKey) {
    fields.FailField(
        "idempotency_key",
        absl::StrCat(key.size(), " bytes, want at most ", kMostClientKey),
        kTooLong);
  }
  if (!key.empty()) batch->client_key = std::move(key);
  return fields.error();
}

}  // namespace

BatchEndpoints::BatchEndpoints(Batches* batches) { host_.batches = batches; }

void BatchEndpoints::Attach(HttpLoop* loop) { host_.door->Set(loop); }

void BatchEndpoints::Detach() { host_.door->Set(nullptr); }

const HttpRoute* BatchEndpoints::Find(absl::string_view path) const {
  const std::vector<std::string> parts = PartsOf(path);
  if (parts.size() < 2 || parts[0] != "v1") return nullptr;
  const bool files = parts[1] == "files";
  if (!files && parts[1] != "batches") return nullptr;
  if (parts.size() == 2) return files ? &kFiles : &kBatches;
  if (parts[2].empty()) return nullptr;
  if (parts.size() == 3) return files ? &kFile : &kBatch;
  if (parts.size() == 4 && parts[3] == (files ? "content" : "cancel")) {
    return files ? &kContent : &kCancel;
  }
  return nullptr;
}

std::shared_ptr<HttpBodySink> BatchEndpoints::OpenForm(
    const std::shared_ptr<HttpExchange>& exchange) {
  return FileUpload::Start(&host_, exchange);
}

void BatchEndpoints::OnRequest(std::shared_ptr<HttpExchange> exchange) {
  const HttpRequest& request = exchange->request();
  const HttpRoute* const route = Find(request.path);
  const std::vector<std::string> parts = PartsOf(request.path);
  const std::string id = parts.size() > 2 ? parts[2] : "";
  const std::string& owner = exchange->log().key_name;
  if (route == &kFiles) return ListFilesOf(std::move(exchange));
  if (route == &kFile) {
    return request.method == "DELETE" ? DeleteFileOf(std::move(exchange), id)
                                      : GetFile(std::move(exchange), id);
  }
  if (route == &kContent) return GetContent(std::move(exchange), id);
  if (route == &kBatch) return GetBatch(std::move(exchange), id);
  if (route == &kCancel) {
    return host_.batches->Cancel(id, owner, Responder(exchange));
  }
  return request.method == "POST" ? CreateBatch(std::move(exchange))
                                  : ListBatchesOf(std::move(exchange));
}

ApiError BatchEndpoints::ErrorOfStore(const absl::Status& status) const {
  return StoreErrorOf(status, host_.batches->store());
}

void BatchEndpoints::OnPool(const std::shared_ptr<HttpExchange>& exchange,
                            std::function<void()> work) {
  if (host_.pool.Post(std::move(work))) return;
  exchange->Respond(ErrorResponse(PoolIsFull()));
}

void BatchEndpoints::Reply(std::shared_ptr<HttpExchange> exchange,
                           std::function<Text(Database&)> read) {
  OnPool(exchange, [this, exchange, read = std::move(read)] {
    HttpResponse response;
    const absl::Status status =
        host_.batches->store().Read([&](Database& database) {
          RF_ASSIGN_OR_RETURN(response.body, read(database));
          return absl::OkStatus();
        });
    if (!status.ok()) response = ErrorResponse(ErrorOfStore(status));
    host_.door->Respond(exchange, std::move(response));
  });
}

Batches::Created BatchEndpoints::Responder(
    std::shared_ptr<HttpExchange> exchange) {
  // The store's thread may call after this object has gone.
  return [door = host_.door, store = &host_.batches->store(),
          exchange = std::move(exchange)](absl::StatusOr<BatchRecord> batch) {
    HttpResponse response;
    if (batch.ok()) {
      response.body = BatchJson(*batch);
    } else {
      response = ErrorResponse(StoreErrorOf(batch.status(), *store));
    }
    door->Respond(exchange, std::move(response));
  };
}

void BatchEndpoints::ListFilesOf(std::shared_ptr<HttpExchange> exchange) {
  const HttpRequest& request = exchange->request();
  PageOptions page = {.owner = exchange->log().key_name,
                      .limit = kMostFilesListed};
  if (const auto error = ReadPage(request, kMostFilesListed, &page)) {
    return exchange->Respond(ErrorResponse(*error));
  }
  const auto limit = static_cast<size_t>(page.limit++);
  Reply(std::move(exchange),
        [limit, page = std::move(page),
         purpose = request.Parameter("purpose").value_or("")](
            Database& database) -> Text {
          RF_ASSIGN_OR_RETURN(const auto files,
                              ListFiles(database, page, purpose));
          return PageJson(limit, files, FileJson);
        });
}

void BatchEndpoints::GetFile(std::shared_ptr<HttpExchange> exchange,
                             const std::string& id) {
  const std::string owner = exchange->log().key_name;
  Reply(std::move(exchange), [id, owner](Database& database) -> Text {
    RF_ASSIGN_OR_RETURN(const FileRecord file, FindFile(database, id, owner));
    return FileJson(file);
  });
}

void BatchEndpoints::GetContent(std::shared_ptr<HttpExchange> exchange,
                                const std::string& id) {
  OnPool(exchange, [this, exchange, id, owner = exchange->log().key_name] {
    FileRecord file;
    absl::Status status = host_.batches->store().Read([&](Database& database) {
      RF_ASSIGN_OR_RETURN(file, FindFile(database, id, owner));
      return absl::OkStatus();
    });
    std::shared_ptr<FileDownload> download;
    if (status.ok()) {
      auto opened = FileDownload::Open(&host_, exchange, file);
      status = opened.status();
      if (opened.ok()) download = *std::move(opened);
    }
    if (download == nullptr) {
      return host_.door->Respond(exchange, ErrorResponse(ErrorOfStore(status)));
    }
    host_.door->Post([download] { download->Begin(); });
  });
}

void BatchEndpoints::DeleteFileOf(std::shared_ptr<HttpExchange> exchange,
                                  const std::string& id) {
  const std::string owner = exchange->log().key_name;
  host_.batches->DeleteFile(
      id, owner,
      [door = host_.door, store = &host_.batches->store(), id,
       exchange = std::move(exchange)](const absl::Status& status) {
        HttpResponse response;
        if (status.ok()) {
          response.body = "{\"id\":";
          AppendJsonString(id, &response.body);
          response.body += ",\"object\":\"file\",\"deleted\":true}";
        } else {
          response = ErrorResponse(StoreErrorOf(status, *store));
        }
        door->Respond(exchange, std::move(response));
      });
}

void BatchEndpoints::ListBatchesOf(std::shared_ptr<HttpExchange> exchange) {
  PageOptions page = {.owner = exchange->log().key_name,
                      .limit = kBatchesListed};
  if (const auto error =
          ReadPage(exchange->request(), kMostBatchesListed, &page)) {
    return exchange->Respond(ErrorResponse(*error));
  }
  const auto limit = static_cast<size_t>(page.limit++);
  Reply(std::move(exchange),
        [limit, page = std::move(page)](Database& database) -> Text {
          RF_ASSIGN_OR_RETURN(const auto batches, ListBatches(database, page));
          return PageJson(limit, batches, BatchJson);
        });
}

void BatchEndpoints::CreateBatch(std::shared_ptr<HttpExchange> exchange) {
  OnPool(exchange, [this, exchange, owner = exchange->log().key_name] {
    NewBatch batch;
    batch.owner = owner;
    if (auto error = ReadNewBatch(exchange->request(), &batch)) {
      return host_.door->Respond(exchange, ErrorResponse(*error));
    }
    host_.batches->Create(
        std::move(batch), [door = host_.door, store = &host_.batches->store(),
                           respond = Responder(exchange),
                           exchange](absl::StatusOr<BatchRecord> created) {
          const absl::Status status = created.status();
          if (absl::IsNotFound(status)) {
            // The bytes are gone. A 404 would tell of the request's path.
            door->Respond(exchange,
                          ErrorResponse(BadField(
                              "input_file_id", std::string(status.message()))));
          } else if (absl::IsInvalidArgument(status)) {
            ApiError error = StoreErrorOf(status, *store);
            error.status = 400;
            error.param = "input_file_id";
            door->Respond(exchange, ErrorResponse(error));
          } else {
            respond(std::move(created));
          }
        });
  });
}

void BatchEndpoints::GetBatch(std::shared_ptr<HttpExchange> exchange,
                              const std::string& id) {
  const std::string owner = exchange->log().key_name;
  Reply(std::move(exchange), [id, owner](Database& database) -> Text {
    RF_ASSIGN_OR_RETURN(const BatchRecord batch,
                        FindBatch(database, id, owner));
    return BatchJson(batch);
  });
}

}  // namespace ringfleet::coordinator
