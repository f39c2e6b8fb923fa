// SPDX-License-Identifier: Apache-2.0
#include "worker/loading/shard_cache.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxh_x86dispatch.h>

#include <atomic>
#include <cerrno>
#include <filesystem>
#include <string>
#include <system_error>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cluster/process/file_error.h"
#include "cluster/process/status_macros.h"

namespace ringfleet::worker {
namespace {

using cluster::FileError;

constexpr absl::string_view kUnfinished = ".partial.";

// Names the forms of the weights: "int8", or "int8+int4" where routed experts
// differ, or "native-int8+int4".
std::string Forms(const LoadOptions& options) {
  std::string forms = absl::StrCat(options.native ? "native-" : "",
                                   kernels::WeightFormName(options.form));
  if (options.expert_form.value_or(options.form) != options.form) {
    absl::StrAppend(&forms, "+", kernels::WeightFormName(*options.expert_form));
  }
  return forms;
}

// Hashes the experts that the rank holds; 0 for consecutive ones.
uint64_t HashExperts(const cluster::ShardPlan& plan,
                     const cluster::ExpertLayout* layout) {
  if (layout == nullptr) return 0;
  std::string held;
  for (int layer = 0; layer < layout->num_layers(); ++layer) {
    absl::StrAppend(
        &held, absl::StrJoin(layout->Held(layer, plan.expert_coordinate), ","),
        ";");
  }
  return XXH3_64bits(held.data(), held.size());
}

struct PartialFile {
  std::string path;
  int fd;
};

// A new file beside `path` that holds its lock. Between its creation and its
// lock it looks like what a dead writer left: a file that was removed then is
// made again under another name.
absl::StatusOr<PartialFile> CreateLocked(const std::string& path) {
  static std::atomic<int> counter = 0;
  while (true) {
    PartialFile file{.path = absl::StrCat(path, kUnfinished, getpid(), ".",
                                          counter.fetch_add(1)),
                     .fd = -1};
    file.fd =
        open(file.path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    if (file.fd < 0) return FileError(file.path, errno);
    auto undo = absl::MakeCleanup([&file] {
      unlink(file.path.c_str());
      close(file.fd);
    });
    while (flock(file.fd, LOCK_EX) != 0) {
      if (errno != EINTR) return FileError(file.path, errno);
    }
    struct stat state = {};
    if (fstat(file.fd, &state) != 0) return FileError(file.path, errno);
    if (state.st_nlink == 0) continue;
    std::move(undo).Cancel();
    return file;
  }
}

// So that a renamed file is still there after the power failed.
void FlushFolder(const std::string& folder) {
  const int fd = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return;
  static_cast<void>(fsync(fd));
  close(fd);
}

}  // namespace

ShardCache ShardCache::Of(const std::string& folder,
                          const cluster::Checkpoint& checkpoint,
                          const std::string& fingerprint,
                          const cluster::ShardPlan& plan,
                          const LoadOptions& options) {
  const std::string layout =
      absl::StrCat(plan.mesh.data, "x", plan.mesh.expert, "x", plan.mesh.tensor,
                   "-rank", plan.rank, "-", Forms(options));
  return ShardCache(
      folder, absl::StrCat(folder, "/", fingerprint, "-", layout, ".packed"),
      absl::StrCat("checkpoint ", fingerprint, " files ",
                   checkpoint.FileState(), " layout ", layout, " mtp ",
                   options.mtp ? 1 : 0, " weights ", kernels::kWeightFormat,
                   " experts ", HashExperts(plan, options.experts)));
}

absl::Status ShardCache::MakeFolder(const std::string& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  return error ? FileError(folder, error.value()) : absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<const PackedShard>> ShardCache::Open(
    kernels::ThreadPool& pool, PackedShardProgress progress) const {
  RF_ASSIGN_OR_RETURN(std::shared_ptr<const PackedShard> shard,
                      PackedShard::Open(path_, key_));
  RF_RETURN_IF_ERROR(shard->Verify(pool, progress));
  // Says when it was used; not permitted to readers of another's folder.
  static_cast<void>(utimensat(AT_FDCWD, path_.c_str(), nullptr, 0));
  return shard;
}

void ShardCache::RemoveLeftovers() const {
  const std::string prefix = absl::StrCat(
      std::filesystem::path(path_).filename().string(), kUnfinished);
  std::error_code error;
  std::filesystem::directory_iterator entry(folder_, error), end;
  for (; !error && entry != end; entry.increment(error)) {
    if (!absl::StartsWith(entry->path().filename().string(), prefix)) continue;
    const int fd = open(entry->path().c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0) continue;
    // Whoever writes it holds the lock; the kernel frees that of a dead one.
    if (flock(fd, LOCK_EX | LOCK_NB) == 0) unlink(entry->path().c_str());
    close(fd);
  }
}

absl::Status ShardCache::CheckRoom(uint64_t bytes) const {
  RemoveLeftovers();
  std::error_code error;
  const std::filesystem::space_info room =
      std::filesystem::space(folder_, error);
  if (error) return FileError(folder_, error.value());
  // Root may use what is set aside.
  const uint64_t free = geteuid() == 0 ? room.free : room.available;
  if (free >= bytes) return absl::OkStatus();
  return FileError(
      absl::StrCat(path_, ": room for ", bytes, " bytes, ", free, " are free"),
      ENOSPC);
}

absl::Status ShardCache::Write(const std::vector<PackedPart>& parts,
                               kernels::ThreadPool& pool,
                               PackedShardProgress progress) const {
  RF_RETURN_IF_ERROR(MakeFolder(folder_));
  RemoveLeftovers();
  RF_ASSIGN_OR_RETURN(const PartialFile partial, CreateLocked(path_));
  auto remover = absl::MakeCleanup([&] { unlink(partial.path.c_str()); });
  const auto closer = absl::MakeCleanup([&] { close(partial.fd); });
  const absl::Status status =
      WritePackedShard(partial.fd, key_, parts, pool, progress);
  if (!status.ok()) return Annotate(status, path_);
  if (rename(partial.path.c_str(), path_.c_str()) != 0) {
    return FileError(path_, errno);
  }
  std::move(remover).Cancel();
  FlushFolder(folder_);
  return absl::OkStatus();
}

}  // namespace ringfleet::worker
