// SPDX-License-Identifier: Apache-2.0
// The state that outlives a coordinator: a SQLite database and a folder of
// files, in one folder that one process owns.
//
// One thread writes. It groups the operations of 50 ms into one transaction, so
// that a disk that is slow to sync does not limit their number, and nobody else
// waits for a disk. An operation and what it changes are committed as one.
//
// A disk that is full or does not answer stops the writer, which tries again
// each second. The queue stays, and trouble() tells. A damaged file, and
// another process that has taken the store over, stop it for good.
#ifndef RINGFLEET_COORDINATOR_STORE_STORE_H_
#define RINGFLEET_COORDINATOR_STORE_STORE_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "coordinator/store/sqlite.h"
#include "coordinator/store/store_owner.h"
#include "kernels/mutex.h"

namespace ringfleet::coordinator {

struct StoreOptions {
  std::string folder;       // Made if it does not exist.
  std::string description;  // The owner's: "fleet r1".
  std::function<absl::Time()> now = absl::Now;
  absl::Duration patience = StoreOwner::kPatience;
  // Nobody waits longer for the disk.
  absl::Duration longest_stall = absl::Seconds(5);
};

// Makes the names of new files in a folder outlive a power failure. Errors:
// those of FileError.
absl::Status SyncFolder(const std::string& folder);

// Thread-safe.
class Store {
 public:
  // Reads or changes the database. An operation may run again after a failed
  // transaction, so it changes nothing else. Its error undoes what it did.
  using Operation = std::function<absl::Status(Database&)>;
  // Learns of an operation's commit or error, on the writer's thread. Must not
  // block.
  using Done = std::function<void(const absl::Status&)>;

  // Takes the folder and brings the database to this program's schema.
  //
  // Errors: those of CheckLocalFolder, StoreOwner::Take, Database and
  // MigrateSchema.
  static absl::StatusOr<std::unique_ptr<Store>> Open(StoreOptions options);
  ~Store();  // Stop, unless done before.

  // Commits what is queued, unless the store is in trouble, and ends the
  // writer. Whoever passes functions that refer to it calls this before it
  // ends. Later operations get CANCELLED, reads go on.
  void Stop();

  // Queues an operation, which is repeated until it is committed or returns an
  // error of its own. `done` gets CANCELLED if the store stops before, and
  // trouble() if it is lost.
  void Write(Operation operation, Done done);
  // Queues an operation for somebody who waits: it is written at once, and not
  // repeated. `done` gets the operation's error, or that of Database.
  // UNAVAILABLE: the disk does not answer. RESOURCE_EXHAUSTED: too many wait.
  void WriteSoon(Operation operation, Done done);
  // As WriteSoon, and returns what `done` gets. UNAVAILABLE: the disk has not
  // answered for `longest_stall`; the operation may be done later, and `done`
  // comes then.
  absl::Status WriteNow(Operation operation, Done done = nullptr);

  // Runs an operation that only reads, in a transaction of its own. Other
  // readers wait, the writer does not. Damage that it finds loses the store.
  absl::Status Read(const Operation& operation);

  // Returns OK if the last transaction was committed.
  absl::Status trouble() const;
  // Returns true if trouble() is final: a damaged or lost file, or another
  // owner.
  bool is_lost() const;
  // Returns operations that are queued.
  size_t pending() const;

  // Makes the folder of the files, which somebody may have removed. Errors:
  // those of FileError.
  absl::Status MakeFilesFolder() const;
  const std::string& folder() const { return options_.folder; }
  std::string path() const;  // The database.
  // Returns the path of a file in the folder `files`.
  std::string FilePath(const std::string& name) const;
  absl::Time now() const { return options_.now(); }
  // Returns milliseconds since 1970, as the tables have them.
  int64_t now_ms() const { return absl::ToUnixMillis(now()); }

 private:
  struct Queued {
    Operation operation;
    Done done;
    bool once = false;  // Is not repeated after trouble.
  };

  Store(StoreOptions options, std::unique_ptr<StoreOwner> owner);
  absl::Status OpenDatabase();
  // Leaves the connections as they were if not both of them can be opened.
  absl::Status OpenConnections();
  // Notes the file that has the place of the database.
  absl::Status NoteFile();
  // DATA_LOSS: the file was replaced. Writes a file anew that was deleted.
  absl::Status CheckFile();
  absl::Status Restore();
  absl::Status OpenRestored();

  void WriteLoop();
  // Runs operations in one transaction. Fills in `results`, one for each.
  absl::Status Commit(const std::vector<Queued>& group,
                      std::vector<absl::Status>* results);
  // Notes whether the database can be used. Returns is_lost().
  bool NoteResult(const absl::Status& status);
  // Queues operations that are to run `again`, and waits until that may
  // succeed. Returns those that never will.
  std::vector<Queued> AwaitRetry(bool lost, std::vector<Queued> again);

  void Queue(Queued queued);
  // Says why an operation is not queued.
  absl::Status WhyRefused(bool once) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const StoreOptions options_;
  const std::unique_ptr<StoreOwner> owner_;
  std::unique_ptr<Database> writer_;  // For the writer's thread, once it runs.
  uint64_t device_ = 0, inode_ = 0;
  bool restored_ = false;  // The connections have the deleted file still.

  Mutex reader_mu_;
  std::unique_ptr<Database> reader_ ABSL_GUARDED_BY(reader_mu_);

  mutable Mutex mu_;
  CondVar changed_;
  std::deque<Queued> queue_ ABSL_GUARDED_BY(mu_);
  size_t writing_ ABSL_GUARDED_BY(mu_) = 0;  // Taken from the queue.
  std::chrono::steady_clock::time_point writing_since_ ABSL_GUARDED_BY(mu_);
  bool flush_ ABSL_GUARDED_BY(mu_) = false;  // Somebody waits.
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  bool lost_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status trouble_ ABSL_GUARDED_BY(mu_);

  std::thread thread_;
};

}  // namespace ringfleet::coordinator

#endif  // RINGFLEET_COORDINATOR_STORE_STORE_H_
