// SPDX-License-Identifier: Apache-2.0
#include "cluster/process/file_reader.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cluster/process/file_error.h"
#include "cluster/process/status_macros.h"

namespace ringfleet::cluster {
namespace {

FileReader::Identity IdentityOf(const struct stat& info) {
  return {
      .device = static_cast<uint64_t>(info.st_dev),
      .inode = static_cast<uint64_t>(info.st_ino),
      .size = static_cast<uint64_t>(info.st_size),
      .modified_ns = static_cast<int64_t>(info.st_mtim.tv_sec) * 1000000000 +
                     info.st_mtim.tv_nsec};
}

}  // namespace

absl::StatusOr<FileReader> FileReader::Open(const std::string& path) {
  FileReader reader;
  reader.path_ = path;
  do {
    // O_NONBLOCK keeps a FIFO of that name from blocking us here.
    reader.fd_ = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  } while (reader.fd_ < 0 && errno == EINTR);
  if (reader.fd_ < 0) {
    if (errno == ENOENT || errno == ENOTDIR) {
      return absl::NotFoundError(absl::StrCat(path, ": no such file"));
    }
    return FileError(absl::StrCat(path, ": can't open"), errno);
  }
  struct stat info;
  if (fstat(reader.fd_, &info) != 0) {
    return FileError(absl::StrCat(path, ": can't stat"), errno);
  }
  if (!S_ISREG(info.st_mode)) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": not a regular file"));
  }
  reader.identity_ = IdentityOf(info);
  return reader;
}

FileReader::~FileReader() {
  if (fd_ >= 0) close(fd_);
}

FileReader::FileReader(FileReader&& other) noexcept
    : path_(std::move(other.path_)),
      fd_(std::exchange(other.fd_, -1)),
      identity_(other.identity_) {}

FileReader& FileReader::operator=(FileReader&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(fd_, other.fd_);
  std::swap(identity_, other.identity_);
  return *this;
}

absl::Status FileReader::Read(uint64_t offset, size_t size,
                              void* destination) const {
  auto* out = static_cast<char*>(destination);
  size_t done = 0;
  while (done < size) {
    const ssize_t n =
        pread(fd_, out + done, size - done, static_cast<off_t>(offset + done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      return absl::DataLossError(absl::StrCat(
          path_, ": read at byte ", offset + done, ": ", std::strerror(errno)));
    }
    if (n == 0) {
      return absl::DataLossError(absl::StrCat(
          path_, ": ends at byte ", offset + done, ", want ", offset + size));
    }
    done += static_cast<size_t>(n);
  }
  return absl::OkStatus();
}

absl::Status FileReader::CheckUnchanged() const {
  struct stat info;
  if (fstat(fd_, &info) != 0) {
    return absl::DataLossError(
        absl::StrCat(path_, ": can't stat: ", std::strerror(errno)));
  }
  const Identity current = IdentityOf(info);
  if (current == identity_) return absl::OkStatus();
  return absl::DataLossError(
      absl::StrCat(path_, ": changed after it was opened (", identity_.size,
                   " bytes then, ", current.size, " now)"));
}

absl::StatusOr<std::string> ReadSmallFile(const std::string& path,
                                          uint64_t max_bytes) {
  RF_ASSIGN_OR_RETURN(const FileReader file, FileReader::Open(path));
  if (file.size() > max_bytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        path, ": ", file.size(), " bytes, want at most ", max_bytes));
  }
  std::string content(file.size(), '\0');
  RF_RETURN_IF_ERROR(file.Read(0, content.size(), content.data()));
  return content;
}

}  // namespace ringfleet::cluster
