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

// Errors: FAILED_PRECONDITION: the folder is on a network file system, whose
// locks and shared memory a store cannot rely on. Those of FileError.
absl::Status CheckLocalFolder(const std::string& folder);

// Makes one process the owner of a folder. The owner holds a lock on the file
// `owner` and counts up a number in it, once a second. A process that ends
// loses the lock. A process that is stopped keeps the lock, but its number
// stands still: then another process takes the folder over by a new file. So
// whoever writes to the folder has to compare `id` with an id that the last
// owner has left there.
class StoreOwner {
 public:
  // A process whose number stands still for this long does not run.
  static constexpr absl::Duration kPatience = absl::Seconds(10);

  // `description` tells other processes who owns the folder: "fleet r1".
  //
  // Errors: FAILED_PRECONDITION: a running process owns the folder (named).
  // Those of FileError.
  static absl::StatusOr<std::unique_ptr<StoreOwner>> Take(
      const std::string& folder, const std::string& description,
      absl::Duration patience = kPatience);
  ~StoreOwner();

  const std::string& id() const { return id_; }  // 32 random hex digits.

 private:
  StoreOwner(std::string id, std::string text, int file);
  void Beat();

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
