// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_COORDINATOR_BATCH_BATCH_UPLOAD_H_
#define RINGFLEET_COORDINATOR_BATCH_BATCH_UPLOAD_H_

#include <xxhash.h>

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "coordinator/store/file_table.h"
#include "coordinator/store/store.h"

namespace ringfleet::coordinator {

// A file of the batch API holds at most so many bytes.
inline constexpr int64_t kMostFileBytes = int64_t{200} << 20;

// Writes the bytes of a new file into the store's folder. Its calls wait for
// the disk. Not thread-safe.
class BatchUpload {
 public:
  // `file` needs neither id nor bytes nor times. `store` must outlive this
  // object. Errors: those of FileError.
  static absl::StatusOr<std::unique_ptr<BatchUpload>> Start(Store* store,
                                                            FileRecord file);
  ~BatchUpload();  // Removes a file that is not finished.

  // INVALID_ARGUMENT: more than kMostFileBytes. Those of FileError.
  absl::Status Append(absl::string_view bytes);
  // Syncs the file and records it, for so many seconds. Errors: as Append, and
  // Store::WriteNow.
  absl::StatusOr<FileRecord> Finish(int64_t seconds);

  int64_t bytes() const { return file_.bytes; }

 private:
  BatchUpload(Store* store, FileRecord file, int descriptor);
  std::string path() const { return store_->FilePath(file_.id); }

  Store* const store_;
  FileRecord file_;
  int descriptor_;  // -1: finished.

  struct FreeHash {
    void operator()(XXH3_state_t* state) const { XXH3_freeState(state); }
  };
  const std::unique_ptr<XXH3_state_t, FreeHash> hash_;
};

}  // namespace ringfleet::coordinator

#endif  // RINGFLEET_COORDINATOR_BATCH_BATCH_UPLOAD_H_
