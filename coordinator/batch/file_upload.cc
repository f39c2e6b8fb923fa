// SPDX-License-Identifier: Apache-2.0
#include "coordinator/batch/file_upload.h"

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "coordinator/batch/batch_json.h"

namespace ringfleet::coordinator {
namespace {

constexpr uint64_t kMostFraming = uint64_t{64} << 10;
constexpr size_t kMostFieldBytes = 256;
constexpr char kFileField[] = "file";
constexpr char kPurposeField[] = "purpose";
constexpr char kAnchorField[] = "expires_after[anchor]";
constexpr char kSecondsField[] = "expires_after[seconds]";

}  // namespace

// The fields of the form. An error's status only ends the reading: `problem`
// tells it.
class FileUpload::Form final : public FormReceiver {
 public:
  Form(Batches* batches, std::string owner)
      : batches_(batches), owner_(std::move(owner)) {}

  absl::Status BeginPart(const FormPart& part) override {
    part_ = part.name;
    if (part_ == kFileField) {
      if (upload_ != nullptr) return FailField("comes twice");
      auto upload = BatchUpload::Start(
          &batches_->store(),
          {.owner = owner_,
           .purpose = kBatchPurpose,
           .name = CleanFileName(part.file_name.value_or(""))});
      if (!upload.ok()) return FailStore(upload.status());
      upload_ = *std::move(upload);
    } else if (part_ == kPurposeField || part_ == kAnchorField ||
               part_ == kSecondsField) {
      if (!fields_.try_emplace(part_).second) return FailField("comes twice");
    }
    return absl::OkStatus();
  }

  absl::Status TakeValue(absl::string_view bytes) override {
    if (part_ == kFileField) {
      if (upload_->bytes() + static_cast<int64_t>(bytes.size()) >
          kMostFileBytes) {
        ApiError error = BadField(
            kFileField,
            absl::StrCat("too long, want at most ", kMostFileBytes, " bytes"));
        error.status = 413;
        return Fail(std::move(error));
      }
      const absl::Status status = upload_->Append(bytes);
      return status.ok() ? status : FailStore(status);
    }
    const auto field = fields_.find(part_);
    if (field == fields_.end()) return absl::OkStatus();  // Unknown.
    if (field->second.size() + bytes.size() > kMostFieldBytes) {
      return FailField(
          absl::StrCat("too long, want at most ", kMostFieldBytes, " bytes"));
    }
    absl::StrAppend(&field->second, bytes);
    return absl::OkStatus();
  }

  absl::Status EndPart() override {
    if (part_ == kPurposeField && fields_[part_] != kBatchPurpose) {
      return FailField(
          absl::StrCat("'", fields_[part_], "', want '", kBatchPurpose, "'"));
    }
    return absl::OkStatus();
  }

  // Records the file of a whole form.
  absl::StatusOr<FileRecord> Finish() {
    part_ = kFileField;
    if (upload_ == nullptr)
      return FailField("missing, want a file", kMissingParameter);
    if (upload_->bytes() == 0) return FailField("the file is empty");
    part_ = kPurposeField;
    if (fields_.count(part_) == 0) {
      return FailField(absl::StrCat("missing, want '", kBatchPurpose, "'"),
                       kMissingParameter);
    }
    int64_t seconds = batches_->upload_seconds();
    const auto anchor = fields_.find(kAnchorField);
    const auto text = fields_.find(kSecondsField);
    if (anchor != fields_.end() || text != fields_.end()) {
      part_ = kAnchorField;
      if (anchor == fields_.end() || anchor->second != kCreatedAnchor) {
        return FailField(absl::StrCat("want '", kCreatedAnchor, "'"));
      }
      part_ = kSecondsField;
      if (text == fields_.end() || !absl::SimpleAtoi(text->second, &seconds) ||
          seconds < kLeastFileSeconds || seconds > kMostFileSeconds) {
        return FailField(absl::StrCat("want an integer from ",
                                      kLeastFileSeconds, " to ",
                                      kMostFileSeconds));
      }
    }
    auto file = upload_->Finish(std::min(seconds, batches_->upload_seconds()));
    if (!file.ok()) return FailStore(file.status());
    return file;
  }

  // Removes the file, unless it is recorded.
  void Drop() { upload_.reset(); }

  const std::optional<ApiError>& problem() const { return problem_; }

 private:
  absl::Status Fail(ApiError error) {
    problem_ = std::move(error);
    return absl::InvalidArgumentError("");
  }
  absl::Status FailField(std::string message,
                         const char* code = kInvalidValue) {
    ApiError error = BadField(part_, std::move(message));
    error.code = code;
    return Fail(std::move(error));
  }
  absl::Status FailStore(const absl::Status& status) {
    return Fail(StoreErrorOf(status, batches_->store()));
  }

  Batches* const batches_;
  const std::string owner_;
  std::string part_;  // Name of the part that is read.
  std::unique_ptr<BatchUpload> upload_;
  std::map<std::string, std::string> fields_;
  std::optional<ApiError> problem_;
};

std::shared_ptr<FileUpload> FileUpload::Start(
    BatchHost* host, const std::shared_ptr<HttpExchange>& exchange) {
  const auto boundary = BoundaryOf(exchange->request().Header("content-type"));
  if (!boundary.ok()) {
    exchange->Respond(ErrorResponse(ErrorOf(boundary.status())));
    return nullptr;
  }
  if (host->uploads >= kMostUploads) {
    exchange->Respond(ErrorResponse(
        {.status = 429,
         .message = absl::StrCat("the limit of ", kMostUploads,
                                 " uploads at a time is reached; try again "
                                 "later"),
         .code = kRateLimit,
         .retry_after_s = 1}));
    return nullptr;
  }
  const std::shared_ptr<FileUpload> upload(
      new FileUpload(host, exchange, *boundary));
  exchange->SetListener(upload);
  return upload;
}

FileUpload::FileUpload(BatchHost* host, std::shared_ptr<HttpExchange> exchange,
                       absl::string_view boundary)
    : host_(host),
      exchange_(std::move(exchange)),
      form_(std::make_unique<Form>(host->batches, exchange_->log().key_name)),
      reader_(boundary, form_.get()) {
  ++host_->uploads;
}

FileUpload::~FileUpload() { --host_->uploads; }

uint64_t FileUpload::most_bytes() const {
  return static_cast<uint64_t>(kMostFileBytes) + kMostFraming;
}

bool FileUpload::Take(std::string bytes) {
  bool full;
  {
    MutexLock lock(&mu_);
    if (done_) return true;  // The rest is dropped.
    absl::StrAppend(&pending_, bytes);
    full = full_ = pending_.size() >= kMostPendingUpload;
  }
  Wake();
  return !full;
}

void FileUpload::OnEnd() {
  {
    MutexLock lock(&mu_);
    ended_ = true;
  }
  Wake();
}

void FileUpload::OnGone() {
  {
    MutexLock lock(&mu_);
    done_ = true;
  }
  Wake();
}

void FileUpload::Wake() {
  {
    MutexLock lock(&mu_);
    if (std::exchange(working_, true)) return;
  }
  if (host_->pool.Post([self = shared_from_this()] { self->Work(); })) return;
  {
    MutexLock lock(&mu_);
    working_ = false;
    done_ = true;  // The last owner removes the file.
  }
  exchange_->Respond(ErrorResponse(PoolIsFull()));
}

void FileUpload::Work() {
  while (true) {
    std::string bytes;
    bool end, done, was_full;
    {
      MutexLock lock(&mu_);
      bytes.swap(pending_);
      end = ended_;
      done = done_;
      was_full = std::exchange(full_, false);
    }
    if (was_full) {
      host_->door->Post([exchange = exchange_] { exchange->ResumeBody(); });
    }
    if (!done) {
      if (auto response = Read(bytes, end)) {
        form_->Drop();  // An error is told once nothing is left.
        host_->door->Respond(exchange_, *std::move(response));
        done = true;
      }
    } else {
      form_->Drop();
    }
    {
      MutexLock lock(&mu_);
      done_ = done_ || done;
      if (done_ && done) pending_.clear();
      const bool more = done_ ? !done : !pending_.empty() || ended_ != end;
      working_ = more;
      if (!more) return;
    }
    // Others have their turn.
    if (host_->pool.Post([self = shared_from_this()] { self->Work(); })) return;
  }
}

std::optional<HttpResponse> FileUpload::Read(absl::string_view bytes,
                                             bool end) {
  absl::Status status = reader_.Read(bytes);
  if (status.ok() && !end) return std::nullopt;
  if (status.ok()) status = reader_.End();
  if (status.ok()) {
    const auto file = form_->Finish();
    status = file.status();
    if (status.ok()) {
      HttpResponse response;
      response.body = FileJson(*file);
      return response;
    }
  }
  return ErrorResponse(form_->problem().value_or(ErrorOf(status)));
}

}  // namespace ringfleet::coordinator
