// SPDX-License-Identifier: Apache-2.0
#include "worker/loading/output_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "cluster/process/file_error.h"
#include "cluster/process/status_macros.h"
#include "kernels/check.h"

namespace ringfleet::worker {
namespace {

constexpr absl::string_view kMarker = ".incomplete";
constexpr absl::string_view kPartial = ".partial";

int OpenAgain(const std::string& path, int flags) {
  int fd;
  do {
    fd = open(path.c_str(), flags | O_CLOEXEC, 0666);
  } while (fd < 0 && errno == EINTR);
  return fd;
}

}  // namespace

std::string OutputFolder::PathOf(absl::string_view name) const {
  return absl::StrCat(path_, "/", name);
}

absl::Status OutputFolder::Failure(absl::string_view name, int error) const {
  return cluster::FileError(name.empty() ? path_ : PathOf(name), error);
}

absl::StatusOr<std::unique_ptr<OutputFolder>> OutputFolder::Open(
    const std::string& path, std::vector<std::string> names, bool overwrite) {
  std::unique_ptr<OutputFolder> folder(
      new OutputFolder(path, std::move(names)));
  RF_RETURN_IF_ERROR(folder->Claim(overwrite));
  return folder;
}

absl::Status OutputFolder::Claim(bool overwrite) {
  std::error_code error;
  made_ = std::filesystem::create_directories(path_, error);
  if (error) return Failure("", error.value());
  if (!std::filesystem::is_directory(path_, error)) {
    return Failure("", ENOTDIR);
  }
  const bool interrupted = std::filesystem::exists(PathOf(kMarker), error);
  RF_ASSIGN_OR_RETURN(const bool only_ours, HoldsOnlyOurs());
  const bool empty = std::filesystem::is_empty(path_, error);
  if (!overwrite && !empty && !(interrupted && only_ours)) {
    return absl::AlreadyExistsError(absl::StrCat(
        path_,
        ": not empty, want a new or an empty folder, or one that an "
        "interrupted run left, or --force"));
  }
  const int marker = OpenAgain(PathOf(kMarker), O_WRONLY | O_CREAT);
  if (marker < 0) return Failure(kMarker, errno);
  if (flock(marker, LOCK_EX | LOCK_NB) != 0) {
    close(marker);
    return absl::FailedPreconditionError(
        absl::StrCat(path_, ": another process is writing there"));
  }
  marker_ = marker;
  RemoveOurs();
  return absl::OkStatus();
}

absl::StatusOr<bool> OutputFolder::HoldsOnlyOurs() const {
  std::error_code error;
  std::filesystem::directory_iterator entry(path_, error), end;
  for (; !error && entry != end; entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    const absl::string_view whole = absl::StripSuffix(name, kPartial);
    if (name != kMarker &&
        std::find(names_.begin(), names_.end(), whole) == names_.end()) {
      return false;
    }
  }
  if (error) return Failure("", error.value());
  return true;
}

void OutputFolder::RemoveOurs() const {
  // The last first: what says that the set is complete.
  for (auto name = names_.rbegin(); name != names_.rend(); ++name) {
    unlink(PathOf(*name).c_str());
    unlink(PathOf(absl::StrCat(*name, kPartial)).c_str());
  }
}

OutputFolder::~OutputFolder() {
  if (file_ >= 0) close(file_);
  if (marker_ >= 0) {
    if (!finished_) RemoveOurs();
    unlink(PathOf(kMarker).c_str());
    close(marker_);
  }
  if (made_ && !finished_) rmdir(path_.c_str());
}

absl::Status OutputFolder::CheckSpace(uint64_t bytes) const {
  struct statvfs info;
  if (statvfs(path_.c_str(), &info) != 0) return Failure("", errno);
  const uint64_t available = uint64_t{info.f_bavail} * info.f_frsize;
  if (available >= bytes) return absl::OkStatus();
  // One unit for both, in which neither is 0.0.
  const bool large = std::min(available, bytes) >= 1'000'000'000;
  const double unit = large ? 1e9 : 1e6;
  return absl::ResourceExhaustedError(absl::StrFormat(
      "%s: %.1f %s free, %.1f %s needed", path_,
      static_cast<double>(available) / unit, large ? "GB" : "MB",
      static_cast<double>(bytes) / unit, large ? "GB" : "MB"));
}

absl::Status OutputFolder::Begin(absl::string_view name) {
  RF_CHECK(file_ < 0 &&
           std::find(names_.begin(), names_.end(), name) != names_.end());
  current_ = std::string(name);
  const std::string partial = absl::StrCat(name, kPartial);
  file_ = OpenAgain(PathOf(partial), O_WRONLY | O_CREAT | O_TRUNC);
  return file_ >= 0 ? absl::OkStatus() : Failure(partial, errno);
}

absl::Status OutputFolder::Write(uint64_t offset, const void* data,
                                 size_t size) const {
  const char* bytes = static_cast<const char*>(data);
  while (size > 0) {
    const ssize_t written =
        pwrite(file_, bytes, size, static_cast<off_t>(offset));
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return Failure(current_, written < 0 ? errno : ENOSPC);
    bytes += written;
    offset += static_cast<uint64_t>(written);
    size -= static_cast<size_t>(written);
  }
  return absl::OkStatus();
}

absl::Status OutputFolder::Commit() {
  // Some file systems report a full disk only here.
  if (close(std::exchange(file_, -1)) != 0) return Failure(current_, errno);
  const std::string partial = PathOf(absl::StrCat(current_, kPartial));
  if (rename(partial.c_str(), PathOf(current_).c_str()) != 0) {
    return Failure(current_, errno);
  }
  return absl::OkStatus();
}

absl::Status OutputFolder::WriteText(absl::string_view name,
                                     absl::string_view text) {
  RF_RETURN_IF_ERROR(Begin(name));
  RF_RETURN_IF_ERROR(Write(0, text.data(), text.size()));
  return Commit();
}

absl::Status OutputFolder::Finish() {
  if (unlink(PathOf(kMarker).c_str()) != 0) return Failure(kMarker, errno);
  close(std::exchange(marker_, -1));
  finished_ = true;
  return absl::OkStatus();
}

}  // namespace ringfleet::worker
