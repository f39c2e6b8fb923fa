// SPDX-License-Identifier: Apache-2.0
#include "coordinator/cli/output_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cluster/process/file_error.h"
#include "cluster/process/status_macros.h"

namespace ringfleet::coordinator::cli {
namespace {

constexpr int kMostLinks = 40;         // As the kernel follows.
constexpr int kMostNames = 1000;       // Names that others left.
constexpr mode_t kPermissions = 0777;  // Permission bits of a mode.

absl::Status Unwritable(const std::string& path, int error) {
  return cluster::FileError(absl::StrCat(path, ": cannot be written"), error);
}

absl::Status OpenError(const std::string& path, int error) {
  const absl::Status status = Unwritable(path, error);
  return absl::IsResourceExhausted(status)
             ? status
             : absl::InvalidArgumentError(status.message());
}

// Returns the state of the file at a path, after following links; nullopt:
// there is none, and a file can be made.
absl::StatusOr<std::optional<struct stat>> StateOf(const std::string& path) {
  struct stat state = {};
  if (stat(path.c_str(), &state) != 0) {
    if (errno != ENOENT) return OpenError(path, errno);
    return std::nullopt;
  }
  if (S_ISDIR(state.st_mode)) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": a folder, want a file"));
  }
  if (faccessat(AT_FDCWD, path.c_str(), W_OK, AT_EACCESS) != 0) {
    return OpenError(path, errno);
  }
  return state;
}

// The place that a path's links lead to, which may be empty as yet.
absl::StatusOr<std::string> BehindLinks(const std::string& path) {
  std::filesystem::path target = path;
  std::error_code error;
  for (int i = 0; std::filesystem::is_symlink(target, error); ++i) {
    if (i == kMostLinks) return OpenError(path, ELOOP);
    const std::filesystem::path next =
        std::filesystem::read_symlink(target, error);
    if (error) return OpenError(path, error.value());
    target = target.parent_path() / next;  // Just `next`, if absolute.
  }
  return target.string();
}

}  // namespace

absl::StatusOr<std::unique_ptr<OutputFile>> OutputFile::Open(
    const std::string& path) {
  RF_ASSIGN_OR_RETURN(const std::optional<struct stat> state, StateOf(path));
  RF_ASSIGN_OR_RETURN(std::string target, BehindLinks(path));
  std::unique_ptr<OutputFile> file(new OutputFile(path, std::move(target)));
  int fd = -1;
  if (state.has_value() && !S_ISREG(state->st_mode)) {
    fd = open(path.c_str(), O_WRONLY | O_CLOEXEC | O_NOCTTY);
    if (fd < 0) return OpenError(path, errno);
  }
  // Two commands may write the same file, the last of which stays, and one that
  // was killed leaves its own.
  for (int i = 0; fd < 0; ++i) {
    std::string name =
        absl::StrCat(file->target_, ".partial.", getpid(), ".", i);
    fd = open(name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd < 0 && (errno != EEXIST || i == kMostNames)) {
      return OpenError(path, errno);
    }
    if (fd >= 0) file->unfinished_ = std::move(name);
  }
  if (state.has_value() && !file->unfinished_.empty()) {
    // Where it is not permitted the file is as a new one.
    static_cast<void>(fchmod(fd, state->st_mode & kPermissions));
  }
  file->file_ = fdopen(fd, "w");
  if (file->file_ == nullptr) {
    const int error = errno;
    close(fd);
    return OpenError(path, error);
  }
  return file;
}

absl::Status OutputFile::Check(const std::string& path) {
  RF_ASSIGN_OR_RETURN(const std::optional<struct stat> state, StateOf(path));
  if (state.has_value() && !S_ISREG(state->st_mode)) return absl::OkStatus();
  return Open(path).status();
}

OutputFile::~OutputFile() {
  Close();
  if (!unfinished_.empty()) unlink(unfinished_.c_str());
}

void OutputFile::Write(absl::string_view text) {
  if (error_ != 0 || text.empty()) return;
  if (std::fwrite(text.data(), 1, text.size(), file_) != text.size()) {
    error_ = errno;
  }
}

void OutputFile::Close() {
  if (file_ == nullptr) return;
  if (std::fclose(std::exchange(file_, nullptr)) != 0 && error_ == 0) {
    error_ = errno;
  }
}

absl::Status OutputFile::Finish() {
  Close();
  if (error_ == 0 && !unfinished_.empty()) {
    if (std::rename(unfinished_.c_str(), target_.c_str()) == 0) {
      unfinished_.clear();
    } else {
      error_ = errno;
    }
  }
  return status();
}

absl::Status OutputFile::status() const {
  return error_ == 0 ? absl::OkStatus()
                     : absl::ResourceExhaustedError(
                           Unwritable(path_, error_).message());
}

absl::Status WriteOutputFile(const std::string& path, absl::string_view text) {
  RF_ASSIGN_OR_RETURN(const std::unique_ptr<OutputFile> file,
                      OutputFile::Open(path));
  file->Write(text);
  return file->Finish();
}

}  // namespace ringfleet::coordinator::cli
