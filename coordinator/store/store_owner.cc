// SPDX-License-Identifier: Apache-2.0
#include "coordinator/store/store_owner.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <random>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "cluster/process/file_error.h"
#include "cluster/process/log.h"
#include "cluster/process/status_macros.h"

namespace ringfleet::coordinator {
namespace {

constexpr std::chrono::seconds kBeat{1};
constexpr absl::Duration kLockPoll = absl::Milliseconds(50);
constexpr char kReplaced[] = ".replaced";

class OwnedFile {
 public:
  explicit OwnedFile(int file) : file_(file) {}
  ~OwnedFile() {
    if (file_ >= 0) close(file_);
  }
  OwnedFile(const OwnedFile&) = delete;
  OwnedFile& operator=(const OwnedFile&) = delete;
  int get() const { return file_; }
  int Release() { return std::exchange(file_, -1); }

 private:
  int file_;
};

std::string RandomId() {
  std::random_device device;
  std::string id;
  for (int i = 0; i < 4; ++i) absl::StrAppendFormat(&id, "%08x", device());
  return id;
}

std::string ReadText(int file) {
  std::array<char, 512> text;
  const ssize_t size = pread(file, text.data(), text.size(), 0);
  return size <= 0 ? "" : std::string(text.data(), static_cast<size_t>(size));
}

// Returns whether `path` still names the open file.
bool IsSameFile(int file, const std::string& path) {
  struct stat opened, named;
  return fstat(file, &opened) == 0 && stat(path.c_str(), &named) == 0 &&
         opened.st_dev == named.st_dev && opened.st_ino == named.st_ino;
}

// Waits for the lock of `file`. Returns false if its owner does not run.
absl::StatusOr<bool> AwaitLock(int file, const std::string& path,
                               absl::Duration patience) {
  const std::string before = ReadText(file);
  const auto end =
      std::chrono::steady_clock::now() + absl::ToChronoNanoseconds(patience);
  while (flock(file, LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK && errno != EINTR) {
      return cluster::FileError(path, errno);
    }
    const std::string text = ReadText(file);
    if (text != before) {
      const std::vector<std::string> lines = absl::StrSplit(text, '\n');
      return absl::FailedPreconditionError(absl::StrCat(
          path, ": in use by ", lines.size() > 1 ? lines[1] : "another process",
          ", want another state_dir, or another name of the fleet"));
    }
    if (std::chrono::steady_clock::now() >= end) return false;
    std::this_thread::sleep_for(absl::ToChronoNanoseconds(kLockPoll));
  }
  return true;
}

}  // namespace

const char* NetworkFileSystemOf(uint32_t type) {
  struct Kind {
    uint32_t magic;
    const char* name;
  };
  static constexpr Kind kNetwork[] = {
      {0x6969, "NFS"},        {0x517B, "SMB"},       {0xFE534D42, "SMB"},
      {0xFF534D42, "CIFS"},   {0x01021997, "9P"},    {0x00C36400, "Ceph"},
      {0x0BD00BD0, "Lustre"}, {0x47504653, "GPFS"},  {0x5346414F, "AFS"},
      {0x6B414653, "AFS"},    {0x7461636F, "OCFS2"}, {0x01161970, "GFS2"},
      {0x19830326, "BeeGFS"}, {0x65735546, "FUSE"}};
  for (const Kind& kind : kNetwork) {
    if (type == kind.magic) return kind.name;
  }
  return nullptr;
}

absl::Status CheckLocalFolder(const std::string& folder) {
  struct statfs facts;
  if (statfs(folder.c_str(), &facts) != 0) {
    return cluster::FileError(folder, errno);
  }
  const char* const network =
      NetworkFileSystemOf(static_cast<uint32_t>(facts.f_type));
  if (network == nullptr) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(folder, ": on ", network,
                   ", want a local file system: a store's locks do not hold "
                   "over a network"));
}

absl::StatusOr<std::unique_ptr<StoreOwner>> StoreOwner::Take(
    const std::string& folder, const std::string& description,
    absl::Duration patience) {
  const std::string path = absl::StrCat(folder, "/owner");
  const std::string replaced = absl::StrCat(path, kReplaced);
  std::string id = RandomId();
  std::string text =
      absl::StrCat(id, "\n", description, ", process ", getpid(), "\n");
  while (true) {
    OwnedFile file(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
    if (file.get() < 0) return cluster::FileError(path, errno);
    RF_ASSIGN_OR_RETURN(const bool locked,
                        AwaitLock(file.get(), path, patience));
    // Another process may have been faster.
    if (!IsSameFile(file.get(), path)) continue;
    OwnedFile before(open(replaced.c_str(), O_RDWR | O_CLOEXEC));
    if (before.get() >= 0) {
      RF_RETURN_IF_ERROR(AwaitLock(before.get(), path, patience).status());
    }
    if (locked) {
      if (ftruncate(file.get(), 0) != 0) return cluster::FileError(path, errno);
      return std::unique_ptr<StoreOwner>(
          new StoreOwner(path, std::move(id), std::move(text), file.Release()));
    }
    RF_LOG(kWarning, path, ": its owner does not run, this process takes ",
           "the store over");
    // Where the file exists, the owner that does not run has left no id either.
    if (link(path.c_str(), replaced.c_str()) != 0 && errno != EEXIST) {
      return cluster::FileError(replaced, errno);
    }
    const std::string next = absl::StrCat(path, ".", id);
    OwnedFile fresh(
        open(next.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
    if (fresh.get() < 0 || flock(fresh.get(), LOCK_EX | LOCK_NB) != 0 ||
        rename(next.c_str(), path.c_str()) != 0) {
      const int error = errno;
      unlink(next.c_str());
      return cluster::FileError(next, error);
    }
    return std::unique_ptr<StoreOwner>(
        new StoreOwner(path, std::move(id), std::move(text), fresh.Release()));
  }
}

absl::Status StoreOwner::CheckNotReplaced() const {
  if (IsSameFile(file_, path_)) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      path_, ": another process has taken the store over, want one process"));
}

void StoreOwner::OnIdLeft() { unlink(absl::StrCat(path_, kReplaced).c_str()); }

void StoreOwner::GiveUp() { flock(file_, LOCK_UN); }

StoreOwner::StoreOwner(std::string path, std::string id, std::string text,
                       int file)
    : path_(std::move(path)),
      id_(std::move(id)),
      text_(std::move(text)),
      file_(file),
      thread_([this] { Beat(); }) {}

StoreOwner::~StoreOwner() {
  {
    MutexLock lock(&mu_);
    stopping_ = true;
    changed_.NotifyAll();
  }
  thread_.join();
  close(file_);
}

void StoreOwner::Beat() {
  for (uint64_t beat = 0;; ++beat) {
    // A disk that takes no bytes leaves the old number, as a stopped process
    // does. Whoever takes over then is told apart by the id.
    const std::string text = absl::StrFormat("%s%020d\n", text_, beat);
    if (pwrite(file_, text.data(), text.size(), 0) < 0 && beat == 0) {
      RF_LOG(kWarning, "the store's owner cannot be written: ",
             cluster::FileError("owner", errno).message());
    }
    MutexLock lock(&mu_);
    const auto next = std::chrono::steady_clock::now() + kBeat;
    while (!stopping_ && changed_.WaitUntil(&mu_, next)) {
    }
    if (stopping_) return;
  }
}

}  // namespace ringfleet::coordinator
