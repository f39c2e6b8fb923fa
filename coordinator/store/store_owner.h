// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_COORDINATOR_STORE_STORE_OWNER_H_
#define RINGFLEET_COORDINATOR_STORE_STORE_OWNER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "kernels/mutex.h"

namespace ringfleet::coordinator {

// Returns the network file system whose statfs type this is; null: none.
const char* NetworkFileSystemOf(uint32_t type);

// Errors: FAILED_PRECONDITION: the folder is on a network file system, whose
// locks and shared memory a store cannot rely on. Those of FileError.
absl::Status CheckLocalFolder(const std::string& folder);

// Makes one process the owner of a folder. The owner holds a lock on the file
// `owner` and counts up a number in it, once a second. A process that ends
// loses the lock. A process that is stopped keeps the lock, but its number
// stands still: then another process takes the folder over by a new file. So
// each owner leaves its `id` in the folder, and whoever writes there has to
// compare the two.
//
// The file of a process that was replaced is kept as `owner.replaced` until the
// new owner has left its id: the new one may end before, and the other run on.
class StoreOwner {
 public:
  // A process whose number stands still for this long does not run.
  static constexpr absl::Duration kPatience = absl::Seconds(10);

  // `description` tells other processes who owns the folder: "fleet r1".
  //
  // Errors: FAILED_PRECONDITION: a running process owns the folder, or goes on
  // with it because its successor has left no id (named). Those of FileError.
  static absl::StatusOr<std::unique_ptr<StoreOwner>> Take(
      const std::string& folder, const std::string& description,
      absl::Duration patience = kPatience);
  ~StoreOwner();

  const std::string& id() const { return id_; }  // 32 random hex digits.

  // FAILED_PRECONDITION: another process has taken the folder over. Called
  // within the transaction that leaves the id, for which that process waits.
  absl::Status CheckNotReplaced() const;
  // Called once the id is in the folder.
  void OnIdLeft();
  // Releases the lock. Called once another id is in the folder: that owner may
  // have ended before it called OnIdLeft, and nobody waits for this one.
  void GiveUp();

 private:
  StoreOwner(std::string path, std::string id, std::string text, int file);
  void Beat();

  const std::string path_;
  const std::string id_;
  const std::string text_;  // The file without its number.
  const int file_;

  Mutex mu_;
  CondVar changed_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

}  // namespace ringfleet::coordinator

#endif  // RINGFLEET_COORDINATOR_STORE_STORE_OWNER_H_
