// SPDX-License-Identifier: Apache-2.0
// Detached jobs and their tokens, as serialised messages of stored_job.proto.
// Functions run within an operation of a Store.
#ifndef RINGFLEET_COORDINATOR_STORE_DETACHED_TABLE_H_
#define RINGFLEET_COORDINATOR_STORE_DETACHED_TABLE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "coordinator/store/sqlite.h"

namespace ringfleet::coordinator {

struct DetachedRecord {
  std::string id;
  int64_t created_ms = 0;
  int64_t ended_ms = 0;             // 0: not yet.
  std::string job;                  // A StoredJob.
  std::vector<std::string> tokens;  // StoredTokens, in their order.
};

// Inserts a job without its tokens, or replaces it.
absl::Status PutDetached(Database& database, const DetachedRecord& record);
// Appends tokens, the first of which has the number `first`.
absl::Status PutDetachedTokens(Database& database, absl::string_view id,
                               int64_t first, absl::string_view tokens);
// Returns all jobs, oldest first.
absl::StatusOr<std::vector<DetachedRecord>> ListDetached(Database& database);
absl::Status DeleteDetached(Database& database, absl::string_view id);
// Deletes jobs that ended before `before_ms`.
absl::Status DeleteOldDetached(Database& database, int64_t before_ms);

}  // namespace ringfleet::coordinator

#endif  // RINGFLEET_COORDINATOR_STORE_DETACHED_TABLE_H_
