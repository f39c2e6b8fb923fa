// SPDX-License-Identifier: Apache-2.0
// Files of the batch API: uploads, whose bytes are in the store's folder, and
// the outputs and errors of batches, whose lines are in the database. Functions
// run within an operation of a Store.
#ifndef RINGFLEET_COORDINATOR_STORE_FILE_TABLE_H_
#define RINGFLEET_COORDINATOR_STORE_FILE_TABLE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "coordinator/store/sqlite.h"

namespace ringfleet::coordinator {

// Times are in milliseconds since 1970.
struct FileRecord {
  std::string id;  // "file-" and 32 hex digits.
  std::string owner;
  std::string purpose;  // "batch" or "batch_output".
  std::string name;
  int64_t bytes = 0;
  std::string hash;  // XXH3-128 of an upload in hex.
  int64_t created_ms = 0;
  int64_t expires_ms = 0;  // 0: never.
  std::string batch;       // Whose lines it shows. Empty: an upload.
  bool errors = false;     // The failed lines, else the others.
};

// Returns an id that no other object has: the prefix and 32 random hex digits.
std::string NewId(absl::string_view prefix);

absl::Status InsertFile(Database& database, const FileRecord& file);

// NOT_FOUND: no such file of this owner. An empty `owner` sees all.
absl::StatusOr<FileRecord> FindFile(Database& database, absl::string_view id,
                                    absl::string_view owner);

// Which part of a list is wanted.
struct PageOptions {
  std::string owner;  // Empty: all.
  std::string after;  // Id of the last entry of the page before; empty: none.
  int64_t limit = 20;
  bool ascending = false;  // Oldest first.
};

// Returns files by age, newest first unless asked otherwise. `purpose`: empty:
// any. NOT_FOUND: no such `after`.
absl::StatusOr<std::vector<FileRecord>> ListFiles(Database& database,
                                                  const PageOptions& page,
                                                  absl::string_view purpose);

// Deletes the record of a file, and the lines that it shows. The bytes of an
// upload are the caller's to remove.
absl::Status DeleteFile(Database& database, const FileRecord& file);

// Returns files that have expired, and uploads made before `oldest_ms`.
absl::StatusOr<std::vector<FileRecord>> ListExpiredFiles(Database& database,
                                                         int64_t now_ms,
                                                         int64_t oldest_ms);

}  // namespace ringfleet::coordinator

#endif  // RINGFLEET_COORDINATOR_STORE_FILE_TABLE_H_
