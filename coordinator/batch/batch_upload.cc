// SPDX-License-Identifier: Apache-2.0
#include "coordinator/batch/batch_upload.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cluster/process/file_error.h"
#include "cluster/process/status_macros.h"

namespace ringfleet::coordinator {

absl::StatusOr<std::unique_ptr<BatchUpload>> BatchUpload::Start(
    Store* store, FileRecord file) {
  file.id = NewId("file-");
  file.bytes = 0;
  const std::string path = store->FilePath(file.id);
  RF_RETURN_IF_ERROR(store->MakeFilesFolder());
  const int descriptor =
      open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (descriptor < 0) return cluster::FileError(path, errno);
  return std::unique_ptr<BatchUpload>(
      new BatchUpload(store, std::move(file), descriptor));
}

BatchUpload::BatchUpload(Store* store, FileRecord file, int descriptor)
    : store_(store),
      file_(std::move(file)),
      descriptor_(descriptor),
      hash_(XXH3_createState()) {
  XXH3_128bits_reset(hash_.get());
}

BatchUpload::~BatchUpload() {
  if (descriptor_ < 0) return;
  close(descriptor_);
  unlink(path().c_str());
}

absl::Status BatchUpload::Append(absl::string_view bytes) {
  file_.bytes += static_cast<int64_t>(bytes.size());
  if (file_.bytes > kMostFileBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("file: more than ", kMostFileBytes, " bytes"));
  }
  XXH3_128bits_update(hash_.get(), bytes.data(), bytes.size());
  while (!bytes.empty()) {
    const ssize_t written = write(descriptor_, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return cluster::FileError(path(), errno);
    bytes.remove_prefix(static_cast<size_t>(written));
  }
  return absl::OkStatus();
}

absl::StatusOr<FileRecord> BatchUpload::Finish(int64_t seconds) {
  if (fsync(descriptor_) != 0) return cluster::FileError(path(), errno);
  RF_RETURN_IF_ERROR(SyncFolder(store_->FilePath("")));
  const XXH128_hash_t hash = XXH3_128bits_digest(hash_.get());
  file_.hash = absl::StrCat(absl::Hex(hash.high64, absl::kZeroPad16),
                            absl::Hex(hash.low64, absl::kZeroPad16));
  file_.created_ms = store_->now_ms();
  file_.expires_ms = file_.created_ms + seconds * 1000;
  close(std::exchange(descriptor_, -1));
  // A record that comes late finds its file.
  RF_RETURN_IF_ERROR(store_->WriteNow(
      [file = file_](Database& database) { return InsertFile(database, file); },
      [path = path()](const absl::Status& status) {
        if (!status.ok()) unlink(path.c_str());
      }));
  return file_;
}

}  // namespace ringfleet::coordinator
