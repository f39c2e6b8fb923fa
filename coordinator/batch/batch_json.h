// SPDX-License-Identifier: Apache-2.0
// Objects of OpenAI's API for files and batches, as JSON.
#ifndef RINGFLEET_COORDINATOR_BATCH_BATCH_JSON_H_
#define RINGFLEET_COORDINATOR_BATCH_BATCH_JSON_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "coordinator/http/api_error.h"
#include "coordinator/store/batch_table.h"
#include "coordinator/store/file_table.h"
#include "coordinator/store/store.h"

namespace ringfleet::coordinator {

// Purpose of an upload.
inline constexpr char kBatchPurpose[] = "batch";

// A file expires so many seconds after it was made.
inline constexpr char kCreatedAnchor[] = "created_at";
inline constexpr int64_t kLeastFileSeconds = 3600;
inline constexpr int64_t kMostFileSeconds = 30 * 24 * 3600;

std::string FileJson(const FileRecord& file);

std::string BatchJson(const BatchRecord& batch);

// A list's first entries that were asked for, and one more if there is one.
struct ListPage {
  size_t limit = 0;
  std::vector<std::string> ids;
  std::vector<std::string> objects;  // JSON.
};
std::string ListJson(const ListPage& page);

// Returns the last part of a path, without control characters, of at most 255
// bytes. It is shown to people only.
std::string CleanFileName(absl::string_view name);

// Returns the error for a status of Batches, of an upload or of `store`.
// Clients are not told where the store is.
ApiError StoreErrorOf(const absl::Status& status, const Store& store);

}  // namespace ringfleet::coordinator

#endif  // RINGFLEET_COORDINATOR_BATCH_BATCH_JSON_H_
