// SPDX-License-Identifier: Apache-2.0
#include "coordinator/batch/batches.h"

#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cluster/process/file_error.h"
#include "cluster/process/log.h"
#include "cluster/process/status_macros.h"
#include "coordinator/batch/batch_lines.h"

namespace ringfleet::coordinator {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::minutes kUpkeep{10};
// An upload that is not recorded by then was cut off.
constexpr std::chrono::hours kUploadTime{24};
constexpr std::chrono::seconds kValidateAgain{1};
constexpr size_t kMostBatchName = 256;

absl::Status CheckNew(const NewBatch& batch) {
  if (batch.priority < 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "priority: ", batch.priority, " of a batch, want at least 1"));
  }
  if (!batch.endpoint.empty() && batch.endpoint != kChatEndpoint &&
      batch.endpoint != kCompletionEndpoint) {
    return absl::InvalidArgumentError(
        absl::StrCat("endpoint: '", batch.endpoint.substr(0, 200), "', want ",
                     kChatEndpoint, " or ", kCompletionEndpoint));
  }
  // Lists of batches carry the names.
  if (batch.name.size() > kMostBatchName) {
    return absl::InvalidArgumentError(absl::StrCat(
        "name: ", batch.name.size(), " bytes, want at most ", kMostBatchName));
  }
  const size_t key_bytes = batch.client_key.value_or("").size();
  if (key_bytes > kMostClientKey) {
    return absl::InvalidArgumentError(absl::StrCat(
        "key: ", key_bytes, " bytes, want at most ", kMostClientKey));
  }
  return absl::OkStatus();
}

// Returns whether a batch is what another call with its key wants. The upload
// may have been deleted, or sent again, since.
bool IsSame(const BatchRecord& batch, const NewBatch& wanted,
            const FileRecord& input) {
  // The order of its pairs says nothing.
  const auto metadata = [](const std::string& json) {
    return json.empty() ? nlohmann::json() : nlohmann::json::parse(json);
  };
  return (batch.input_file == wanted.input_file ||
          (!input.hash.empty() && batch.input_hash == input.hash)) &&
         batch.endpoint == wanted.endpoint &&
         metadata(batch.metadata) == metadata(wanted.metadata);
}

// Gives a batch the bytes of its upload under a name of its own, so that the
// upload can be deleted.
absl::Status LinkInput(const Store& store, const std::string& file,
                       const std::string& batch) {
  const std::string path = store.FilePath(batch);
  const std::string upload = store.FilePath(file);
  if (link(upload.c_str(), path.c_str()) != 0 && errno != EEXIST) {
    const int error = errno;
    if (error == ENOENT && access(upload.c_str(), F_OK) != 0) {
      return absl::NotFoundError(
          absl::StrCat("the bytes of file '", file, "' are gone"));
    }
    return cluster::FileError(path, error);
  }
  RF_RETURN_IF_ERROR(SyncFolder(store.FilePath("")));
  // RemoveStrangers, which may not know this batch yet, spares young files.
  std::error_code ignored;
  std::filesystem::last_write_time(
      path, std::filesystem::file_time_type::clock::now(), ignored);
  return absl::OkStatus();
}

// Inserts a batch, or finds the one that its key has made.
absl::StatusOr<BatchRecord> InsertNew(const Store& store, Database& database,
                                      const NewBatch& wanted,
                                      const std::string& model,
                                      const std::string& id) {
  const auto found = FindFile(database, wanted.input_file, wanted.owner);
  // The validation tells of a file that is not there, as OpenAI does.
  if (!found.ok() && !absl::IsNotFound(found.status())) return found.status();
  const FileRecord input = found.ok() ? *found : FileRecord();
  if (!input.batch.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("input_file_id: ", input.id, " has the purpose ",
                     input.purpose, ", want an upload for batches"));
  }
  if (wanted.client_key.has_value()) {
    RF_ASSIGN_OR_RETURN(
        std::optional<BatchRecord> known,
        FindBatchByKey(database, wanted.owner, *wanted.client_key));
    if (known.has_value() && IsSame(*known, wanted, input)) {
      return *std::move(known);
    }
    if (known.has_value()) {
      return absl::AlreadyExistsError(absl::StrCat(
          "conflict: key '", *wanted.client_key, "' is that of batch ",
          known->id,
          " with another input, endpoint or metadata, want another key"));
    }
  }
  BatchRecord batch;
  batch.id = id;
  batch.name = wanted.name;
  batch.owner = wanted.owner;
  batch.client_key = wanted.client_key;
  batch.model = model;
  batch.endpoint = wanted.endpoint;
  batch.input_file = wanted.input_file;
  batch.input_hash = input.hash;
  batch.priority = wanted.priority;
  batch.created_ms = store.now_ms();
  if (wanted.window_seconds > 0) {
    batch.expires_ms = batch.created_ms + wanted.window_seconds * 1000;
  }
  batch.output_seconds = wanted.output_seconds;
  batch.metadata = wanted.metadata;
  if (found.ok()) {
    RF_RETURN_IF_ERROR(LinkInput(store, input.id, id));
  }
  RF_RETURN_IF_ERROR(InsertBatch(database, batch));
  return batch;
}

}  // namespace

std::unique_ptr<Batches> Batches::Start(BatchRunnerOptions options) {
  std::unique_ptr<Batches> batches(new Batches(std::move(options)));
  batches->thread_ =
      std::thread([raw = batches.get()] { raw->ValidateLoop(); });
  return batches;
}

Batches::Batches(BatchRunnerOptions options)
    : options_(std::move(options)),
      runner_(options_, [this] { NoteChange(); }) {}

Batches::~Batches() {
  {
    MutexLock lock(&mu_);
    stopping_ = true;
    changed_.NotifyAll();
  }
  thread_.join();
}

void Batches::NoteChange() {
  MutexLock lock(&mu_);
  ++version_;
  changed_.NotifyAll();
}

bool Batches::WaitForChange(uint64_t* version, absl::Duration at_most) {
  const auto end = Clock::now() + absl::ToChronoNanoseconds(at_most);
  MutexLock lock(&mu_);
  while (!stopping_ && version_ == *version) {
    if (!changed_.WaitUntil(&mu_, end)) break;
  }
  if (stopping_ || version_ == *version) return false;
  *version = version_;
  return true;
}

void Batches::Create(NewBatch wanted, Created done) {
  const absl::Status valid = CheckNew(wanted);
  if (!valid.ok()) return done(valid);
  const auto created = std::make_shared<absl::StatusOr<BatchRecord>>();
  store().WriteSoon(
      [this, wanted = std::move(wanted), created,
       id = NewId("batch_")](Database& database) {
        *created =
            InsertNew(store(), database, wanted, options_.served_name, id);
        return created->status();
      },
      [this, created, done = std::move(done)](const absl::Status& status) {
        if (!status.ok()) return done(status);
        {
          MutexLock lock(&mu_);
          validates_ = true;
          ++version_;
          changed_.NotifyAll();
        }
        done(*std::move(*created));
      });
}

void Batches::Cancel(const std::string& id, const std::string& owner,
                     Created done) {
  const auto cancelled = std::make_shared<absl::StatusOr<BatchRecord>>();
  store().WriteSoon(
      [this, id, owner, cancelled](Database& database) {
        RF_ASSIGN_OR_RETURN(const BatchRecord before,
                            FindBatch(database, id, owner));
        if (before.has_ended() && before.state != kBatchCancelled) {
          return absl::FailedPreconditionError(
              absl::StrCat("cannot cancel batch ", id, ": its state is ",
                           before.state, ", want one that has not ended"));
        }
        RF_RETURN_IF_ERROR(CancelBatch(database, id, store().now_ms()));
        *cancelled = FindBatch(database, id, owner);
        return cancelled->status();
      },
      [this, cancelled, done = std::move(done)](const absl::Status& status) {
        if (!status.ok()) return done(status);
        runner_.Wake();
        NoteChange();
        done(*std::move(*cancelled));
      });
}

void Batches::DeleteFile(const std::string& id, const std::string& owner,
                         std::function<void(const absl::Status&)> done) {
  store().WriteSoon(
      [id, owner](Database& database) {
        RF_ASSIGN_OR_RETURN(const FileRecord file,
                            FindFile(database, id, owner));
        return coordinator::DeleteFile(database, file);
      },
      [this, id, done = std::move(done)](const absl::Status& status) {
        if (status.ok()) unlink(store().FilePath(id).c_str());
        done(status);
      });
}

void Batches::ValidateLoop() {
  auto upkeep = Clock::now();
  while (true) {
    {
      MutexLock lock(&mu_);
      while (!stopping_ && !validates_ && changed_.WaitUntil(&mu_, upkeep)) {
      }
      if (stopping_) return;
      validates_ = false;
    }
    if (Clock::now() >= upkeep) {
      KeepLimits();
      upkeep = Clock::now() + kUpkeep;
    }
    std::vector<BatchRecord> open;
    const absl::Status status = store().Read([&open](Database& database) {
      auto found = ListOpenBatches(database);
      if (found.ok()) open = *std::move(found);
      return found.status();
    });
    if (!status.ok()) {
      RF_LOG(kError, "batches: ", status.message());
      MutexLock lock(&mu_);
      const auto again = Clock::now() + kValidateAgain;
      while (!stopping_ && changed_.WaitUntil(&mu_, again)) {
      }
      validates_ = true;
    }
    for (const BatchRecord& batch : open) {
      if (batch.state == kBatchValidating &&
          batch.model == options_.served_name) {
        Validate(batch);
      }
    }
  }
}

void Batches::Validate(const BatchRecord& batch) {
  absl::Status status = store().trouble();
  const auto lines = std::make_shared<ScannedLines>();
  if (status.ok()) status = Scan(batch, lines.get());
  if (status.ok()) {
    status = store().WriteNow(
        [id = batch.id, lines, now_ms = store().now_ms()](Database& database) {
          return lines->errors.empty()
                     ? BeginBatch(database, id, lines->lines, now_ms)
                     : FailBatch(database, id, LineErrorsJson(lines->errors),
                                 now_ms);
        });
  }
  if (status.ok()) {
    RF_LOG(kInfo, "batch ", batch.id, ": ",
           lines->errors.empty()
               ? absl::StrCat(lines->lines.size(), " lines")
               : absl::StrCat("failed, ", lines->errors.size(), " errors"));
    if (!lines->errors.empty()) unlink(store().FilePath(batch.id).c_str());
  } else if (!absl::IsFailedPrecondition(status)) {  // Else it was cancelled.
    RF_LOG(kWarning, "batch ", batch.id,
           " is not begun yet: ", status.message());
    MutexLock lock(&mu_);
    const auto again = Clock::now() + kValidateAgain;
    while (!stopping_ && changed_.WaitUntil(&mu_, again)) {
    }
    validates_ = true;
  }
  runner_.Wake();
  NoteChange();
}

absl::Status Batches::Scan(const BatchRecord& batch, ScannedLines* out) {
  if (batch.input_hash.empty()) {
    out->errors.push_back(
        {.code = "invalid_request",
         .message =
             absl::StrCat("file_id: cannot find file '", batch.input_file, "'"),
         .param = "file_id",
         .number = 0});
    return absl::OkStatus();
  }
  const std::string path = store().FilePath(batch.id);
  const GenerationContext context = {options_.model, options_.jobs->context(),
                                     options_.default_max_tokens,
                                     options_.served_name};
  absl::StatusOr<ScannedLines> scanned =
      ScanLines(path, batch.endpoint, context);
  if (scanned.ok()) {
    *out = *std::move(scanned);
    return absl::OkStatus();
  }
  if (access(path.c_str(), F_OK) == 0 || errno != ENOENT) {
    return scanned.status();
  }
  out->errors.push_back({.code = "input_lost",
                         .message = "the batch's input is gone",
                         .param = "",
                         .number = 0});
  return absl::OkStatus();
}

void Batches::KeepLimits() {
  const int64_t now_ms = store().now_ms();
  const int64_t oldest_ms =
      now_ms - absl::ToInt64Milliseconds(options_.keep_time);
  // The operation may outlive this call.
  const auto known = std::make_shared<std::set<std::string>>();
  const absl::Status status = store().WriteNow([this, now_ms, oldest_ms,
                                                known](Database& database) {
    RF_ASSIGN_OR_RETURN(const std::vector<FileRecord> expired,
                        ListExpiredFiles(database, now_ms, oldest_ms));
    for (const FileRecord& file : expired) {
      RF_RETURN_IF_ERROR(coordinator::DeleteFile(database, file));
    }
    RF_ASSIGN_OR_RETURN(const std::vector<BatchRecord> ended,
                        ListEndedBatches(database));
    PageOptions all;
    all.limit = std::numeric_limits<int64_t>::max();
    all.ascending = true;
    RF_ASSIGN_OR_RETURN(const std::vector<FileRecord> uploads,
                        ListFiles(database, all, "batch"));
    auto batch = ended.begin();
    auto upload = uploads.begin();
    while (batch != ended.end() || upload != uploads.end()) {
      const bool is_old = batch != ended.end() && batch->ended_ms() < oldest_ms;
      RF_ASSIGN_OR_RETURN(const int64_t bytes, UsedBytes(database));
      if (!is_old && bytes <= options_.keep_bytes) break;
      if (is_old || upload == uploads.end() ||
          (batch != ended.end() && batch->ended_ms() <= upload->created_ms)) {
        RF_RETURN_IF_ERROR(DeleteBatch(database, batch->id));
        RF_LOG(kInfo, "batch ", batch->id, ": forgotten");
        ++batch;
      } else {
        RF_RETURN_IF_ERROR(coordinator::DeleteFile(database, *upload));
        RF_LOG(kInfo, "upload ", upload->id, ": forgotten");
        ++upload;
      }
    }
    // Names that files may have.
    known->clear();
    for (; upload != uploads.end(); ++upload) known->insert(upload->id);
    RF_ASSIGN_OR_RETURN(const std::vector<BatchRecord> open,
                        ListOpenBatches(database));
    for (const BatchRecord& batch : open) known->insert(batch.id);
    return absl::OkStatus();
  });
  if (status.ok()) RemoveStrangers(*known);
}

void Batches::RemoveStrangers(const std::set<std::string>& known) {
  std::error_code error;
  const auto young =
      std::filesystem::file_time_type::clock::now() - kUploadTime;
  for (std::filesystem::directory_iterator it(store().FilePath(""), error), end;
       !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    std::error_code unknown;
    const auto written = it->last_write_time(unknown);
    if (known.count(name) > 0 || unknown || written > young) continue;
    std::filesystem::remove(it->path(), unknown);
  }
}

}  // namespace ringfleet::coordinator
