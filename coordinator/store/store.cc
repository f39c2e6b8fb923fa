// SPDX-License-Identifier: Apache-2.0
#include "coordinator/store/store.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <filesystem>
#include <iterator>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "cluster/process/file_error.h"
#include "cluster/process/log.h"
#include "cluster/process/status_macros.h"
#include "coordinator/store/schema.h"

namespace ringfleet::coordinator {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kGroup{50};
constexpr std::chrono::seconds kRetry{1};
// Operations for which somebody waits. The others are as many as jobs run.
constexpr size_t kMostQueued = 4096;
// A larger database is checked page by page, as it is read.
constexpr uintmax_t kCheckedBytes = uintmax_t{64} << 20;

// Makes a folder that its user alone may read.
absl::Status MakeFolder(const std::string& folder) {
  std::error_code error;
  if (std::filesystem::create_directories(folder, error)) {
    std::filesystem::permissions(folder, std::filesystem::perms::owner_all,
                                 error);
  }
  if (error) return cluster::FileError(folder, error.value());
  return absl::OkStatus();
}

absl::Status SyncPath(const std::string& path, int flags) {
  const int file = open(path.c_str(), flags | O_CLOEXEC);
  if (file < 0) return cluster::FileError(path, errno);
  const int result = fsync(file);
  const int error = errno;
  close(file);
  return result == 0 ? absl::OkStatus() : cluster::FileError(path, error);
}

absl::Status CheckPages(const std::string& path, Database& database) {
  std::error_code error;
  if (std::filesystem::file_size(path, error) > kCheckedBytes || error) {
    return absl::OkStatus();
  }
  Statement check = database.Prepare("PRAGMA quick_check(1)");
  const std::string found = check.Next() ? std::string(check.Text(0)) : "";
  RF_RETURN_IF_ERROR(check.status());
  if (found == "ok") return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(
      path, ": damaged: ", absl::StrReplaceAll(found, {{"\n", " "}})));
}

}  // namespace

absl::Status SyncFolder(const std::string& folder) {
  return SyncPath(folder, O_RDONLY | O_DIRECTORY);
}

absl::StatusOr<std::unique_ptr<Store>> Store::Open(StoreOptions options) {
  RF_RETURN_IF_ERROR(MakeFolder(options.folder));
  RF_RETURN_IF_ERROR(CheckLocalFolder(options.folder));
  RF_ASSIGN_OR_RETURN(
      std::unique_ptr<StoreOwner> owner,
      StoreOwner::Take(options.folder, options.description, options.patience));
  std::unique_ptr<Store> store(new Store(std::move(options), std::move(owner)));
  RF_RETURN_IF_ERROR(store->MakeFilesFolder());
  absl::Status opened = store->OpenDatabase();
  if (absl::IsDataLoss(opened)) {
    opened = absl::DataLossError(absl::StrCat(
        opened.message(),
        "; move it away, or save what it holds with `sqlite3 FILE .recover`"));
  }
  RF_RETURN_IF_ERROR(opened);
  store->thread_ = std::thread([raw = store.get()] { raw->WriteLoop(); });
  return store;
}

Store::Store(StoreOptions options, std::unique_ptr<StoreOwner> owner)
    : options_(std::move(options)), owner_(std::move(owner)) {}

Store::~Store() { Stop(); }

void Store::Stop() {
  {
    MutexLock lock(&mu_);
    stopping_ = true;
    changed_.NotifyAll();
  }
  if (thread_.joinable()) thread_.join();
}

absl::Status Store::MakeFilesFolder() const {
  return MakeFolder(absl::StrCat(options_.folder, "/files"));
}

std::string Store::path() const {
  return absl::StrCat(options_.folder, "/state.db");
}

std::string Store::FilePath(const std::string& name) const {
  return absl::StrCat(options_.folder, "/files/", name);
}

absl::Status Store::OpenDatabase() {
  // A process that ended while it wrote a deleted database anew leaves this.
  const std::string copy = absl::StrCat(path(), ".restored");
  if (access(path().c_str(), F_OK) != 0 && access(copy.c_str(), F_OK) == 0) {
    rename(copy.c_str(), path().c_str());
  }
  RF_RETURN_IF_ERROR(OpenConnections());
  RF_RETURN_IF_ERROR(MigrateSchema(path(), *writer_));
  RF_RETURN_IF_ERROR(CheckPages(path(), *writer_));
  RF_RETURN_IF_ERROR(writer_->Run("BEGIN IMMEDIATE; DELETE FROM owner"));
  RF_RETURN_IF_ERROR(owner_->CheckNotReplaced());
  Statement insert = writer_->Prepare("INSERT INTO owner VALUES (?)");
  RF_RETURN_IF_ERROR(insert.Bind(owner_->id()).Run());
  RF_RETURN_IF_ERROR(writer_->Run("COMMIT"));
  owner_->OnIdLeft();
  return absl::OkStatus();
}

absl::Status Store::OpenConnections() {
  // The questions of users are theirs. SQLite gives its other files this mode.
  const int file = open(path().c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (file < 0) return cluster::FileError(path(), errno);
  close(file);
  RF_ASSIGN_OR_RETURN(std::unique_ptr<Database> writer,
                      Database::Open(path(), Database::Access::kReadWrite));
  RF_RETURN_IF_ERROR(
      writer->Run("PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; "
                  "PRAGMA journal_size_limit = 67108864"));
  RF_ASSIGN_OR_RETURN(std::unique_ptr<Database> reader,
                      Database::Open(path(), Database::Access::kRead));
  RF_RETURN_IF_ERROR(NoteFile());
  writer_ = std::move(writer);
  MutexLock lock(&reader_mu_);
  reader_ = std::move(reader);
  return absl::OkStatus();
}

absl::Status Store::NoteFile() {
  struct stat facts;
  if (stat(path().c_str(), &facts) != 0) {
    return cluster::FileError(path(), errno);
  }
  device_ = facts.st_dev;
  inode_ = facts.st_ino;
  return absl::OkStatus();
}

absl::Status Store::CheckFile() {
  struct stat facts;
  if (stat(path().c_str(), &facts) == 0) {
    if (facts.st_dev == device_ && facts.st_ino == inode_) {
      return restored_ ? OpenRestored() : absl::OkStatus();
    }
    return absl::DataLossError(absl::StrCat(
        path(),
        ": another file took its place while it was in use; stop the "
        "coordinator and put the right one there"));
  }
  if (errno != ENOENT) return cluster::FileError(path(), errno);
  return Restore();
}

absl::Status Store::Restore() {
  RF_LOG(kWarning, path(), ": deleted while it was in use, it is written anew");
  RF_RETURN_IF_ERROR(MakeFolder(options_.folder));
  RF_RETURN_IF_ERROR(MakeFilesFolder());
  const std::string copy = absl::StrCat(path(), ".restored");
  unlink(copy.c_str());
  const int file =
      open(copy.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (file < 0) return cluster::FileError(copy, errno);
  close(file);
  // The open connection has the deleted file, with all that was committed.
  {
    Statement save = writer_->Prepare("VACUUM INTO ?");
    RF_RETURN_IF_ERROR(save.Bind(copy).Run());
  }
  RF_RETURN_IF_ERROR(SyncPath(copy, O_RDONLY));
  for (const char* const suffix : {"-wal", "-shm"}) {
    unlink(absl::StrCat(path(), suffix).c_str());
  }
  if (rename(copy.c_str(), path().c_str()) != 0) {
    return cluster::FileError(path(), errno);
  }
  RF_RETURN_IF_ERROR(NoteFile());
  restored_ = true;
  return OpenRestored();
}

absl::Status Store::OpenRestored() {
  RF_RETURN_IF_ERROR(SyncFolder(options_.folder));
  RF_RETURN_IF_ERROR(OpenConnections());
  restored_ = false;
  return absl::OkStatus();
}

void Store::Queue(Queued queued) {
  absl::Status refusal;
  {
    MutexLock lock(&mu_);
    refusal = WhyRefused(queued.once);
    if (refusal.ok()) {
      flush_ = flush_ || queued.once;
      queue_.push_back(std::move(queued));
      changed_.NotifyAll();
      return;
    }
  }
  queued.done(refusal);
}

absl::Status Store::WhyRefused(bool once) const {
  if (stopping_) return absl::CancelledError("the store ends");
  if (!once) return absl::OkStatus();
  if (writing_ > 0 &&
      Clock::now() >
          writing_since_ + absl::ToChronoNanoseconds(options_.longest_stall)) {
    return absl::UnavailableError(
        absl::StrCat(path(), ": the disk does not answer; try again later"));
  }
  if (queue_.size() >= kMostQueued) {
    return absl::ResourceExhaustedError(absl::StrCat(
        path(), ": ", queue_.size(), " operations wait for the disk, want ",
        "fewer; try again later"));
  }
  return absl::OkStatus();
}

void Store::Write(Operation operation, Done done) {
  Queue({std::move(operation), std::move(done)});
}

void Store::WriteSoon(Operation operation, Done done) {
  Queue({std::move(operation), std::move(done), /*once=*/true});
}

absl::Status Store::WriteNow(Operation operation, Done done) {
  struct Result {
    Mutex mu;
    CondVar changed;
    bool done ABSL_GUARDED_BY(mu) = false;
    absl::Status status ABSL_GUARDED_BY(mu);
  };
  const auto result = std::make_shared<Result>();
  WriteSoon(std::move(operation),
            [result, done = std::move(done)](const absl::Status& status) {
              if (done != nullptr) done(status);
              MutexLock lock(&result->mu);
              result->done = true;
              result->status = status;
              result->changed.NotifyAll();
            });
  const auto end =
      Clock::now() + absl::ToChronoNanoseconds(options_.longest_stall);
  MutexLock lock(&result->mu);
  while (!result->done) {
    if (!result->changed.WaitUntil(&result->mu, end) && !result->done) {
      return absl::UnavailableError(
          absl::StrCat(path(), ": the disk does not answer; try again later"));
    }
  }
  return result->status;
}

absl::Status Store::Read(const Operation& operation) {
  MutexLock lock(&reader_mu_);
  reader_->ClearFailure();
  absl::Status status = reader_->Run("BEGIN");
  if (status.ok()) {
    status = operation(*reader_);
    reader_->Run("ROLLBACK").IgnoreError();
  }
  if (absl::IsDataLoss(reader_->failure())) NoteResult(reader_->failure());
  return status;
}

absl::Status Store::trouble() const {
  MutexLock lock(&mu_);
  return trouble_;
}

bool Store::is_lost() const {
  MutexLock lock(&mu_);
  return lost_;
}

size_t Store::pending() const {
  MutexLock lock(&mu_);
  return queue_.size() + writing_;
}

absl::Status Store::Commit(const std::vector<Queued>& group,
                           std::vector<absl::Status>* results) {
  results->assign(group.size(), absl::OkStatus());
  RF_RETURN_IF_ERROR(CheckFile());
  writer_->ClearFailure();
  RF_RETURN_IF_ERROR(writer_->Run("BEGIN IMMEDIATE"));
  {
    Statement owner = writer_->Prepare("SELECT id FROM owner");
    const bool ours = owner.Next() && owner.Text(0) == owner_->id();
    RF_RETURN_IF_ERROR(owner.status());
    if (!ours) {
      owner_->GiveUp();
      return absl::FailedPreconditionError(absl::StrCat(
          path(), ": another coordinator has taken the store over"));
    }
  }
  for (size_t i = 0; i < group.size(); ++i) {
    RF_RETURN_IF_ERROR(writer_->Run("SAVEPOINT operation"));
    absl::Status& result = (*results)[i];
    result = group[i].operation(*writer_);
    RF_RETURN_IF_ERROR(writer_->failure());
    if (!result.ok()) {
      RF_RETURN_IF_ERROR(writer_->Run("ROLLBACK TO operation"));
    }
    RF_RETURN_IF_ERROR(writer_->Run("RELEASE operation"));
  }
  return writer_->Run("COMMIT");
}

void Store::WriteLoop() {
  while (true) {
    std::vector<Queued> group;
    absl::Status end;  // Why nothing more is written. OK: it is.
    {
      MutexLock lock(&mu_);
      while (queue_.empty() && !stopping_) changed_.Wait(&mu_);
      if (queue_.empty()) return;
      const auto until = Clock::now() + kGroup;
      while (!flush_ && !stopping_ && changed_.WaitUntil(&mu_, until)) {
      }
      flush_ = false;
      group.assign(std::make_move_iterator(queue_.begin()),
                   std::make_move_iterator(queue_.end()));
      queue_.clear();
      writing_ = group.size();
      writing_since_ = Clock::now();
      if (lost_) end = trouble_;
    }
    std::vector<absl::Status> results;
    // Whoever was told of a loss did not try again.
    const absl::Status status = end.ok() ? Commit(group, &results) : end;
    if (writer_->in_transaction()) writer_->Run("ROLLBACK").IgnoreError();
    const bool lost = NoteResult(status);
    {
      MutexLock lock(&mu_);
      writing_ = 0;
    }
    std::vector<Queued> again;
    for (size_t i = 0; i < group.size(); ++i) {
      if (status.ok()) {
        group[i].done(results[i]);
      } else if (lost || group[i].once) {
        group[i].done(status);
      } else {
        again.push_back(std::move(group[i]));
      }
    }
    if (status.ok()) continue;
    for (const Queued& queued : AwaitRetry(lost, std::move(again))) {
      queued.done(lost ? status : absl::CancelledError("the store ends"));
    }
  }
}

bool Store::NoteResult(const absl::Status& status) {
  MutexLock lock(&mu_);
  if (lost_) return true;
  lost_ = absl::IsDataLoss(status) || absl::IsFailedPrecondition(status);
  if (!status.ok() && trouble_ != status) {
    RF_LOG(kError, "store: ", status.message(),
           lost_ ? "" : "; batches pause until it can be written");
  } else if (status.ok() && !trouble_.ok()) {
    RF_LOG(kInfo, "store: ", path(), " can be written again");
  }
  trouble_ = status;
  return lost_;
}

std::vector<Store::Queued> Store::AwaitRetry(bool lost,
                                             std::vector<Queued> again) {
  MutexLock lock(&mu_);
  if (lost || stopping_) {
    again.insert(again.end(), std::make_move_iterator(queue_.begin()),
                 std::make_move_iterator(queue_.end()));
    queue_.clear();
    return again;
  }
  queue_.insert(queue_.begin(), std::make_move_iterator(again.begin()),
                std::make_move_iterator(again.end()));
  const auto retry = Clock::now() + kRetry;
  while (!stopping_ && !flush_ && changed_.WaitUntil(&mu_, retry)) {
  }
  return {};
}

}  // namespace ringfleet::coordinator
