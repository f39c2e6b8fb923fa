// SPDX-License-Identifier: Apache-2.0
// Batches, their lines and the outputs of these. Functions run within an
// operation of a Store.
#ifndef RINGFLEET_COORDINATOR_STORE_BATCH_TABLE_H_
#define RINGFLEET_COORDINATOR_STORE_BATCH_TABLE_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "coordinator/store/file_table.h"
#include "coordinator/store/sqlite.h"

namespace ringfleet::coordinator {

// States of a batch, with OpenAI's names:
//
//   validating -> failed
//              -> in_progress -> finalizing -> completed
//                             -> finalizing -> expired
//   validating, in_progress -> cancelling -> cancelled
//   in_progress -> failed, if the input was deleted
inline constexpr char kBatchValidating[] = "validating";
inline constexpr char kBatchFailed[] = "failed";
inline constexpr char kBatchInProgress[] = "in_progress";
inline constexpr char kBatchFinalizing[] = "finalizing";
inline constexpr char kBatchCompleted[] = "completed";
inline constexpr char kBatchExpired[] = "expired";
inline constexpr char kBatchCancelling[] = "cancelling";
inline constexpr char kBatchCancelled[] = "cancelled";

// Times are in milliseconds since 1970; 0: not yet, or never.
struct BatchRecord {
  std::string id;  // "batch_" and 32 hex digits.
  std::string name;
  std::string owner;
  std::optional<std::string> client_key;
  std::string model;       // The name under which it was served.
  std::string endpoint;    // Empty: each line has its own.
  std::string input_file;  // Id of the upload.
  std::string input_hash;
  int64_t priority = 0;
  std::string state = kBatchValidating;
  int64_t created_ms = 0;
  int64_t in_progress_ms = 0;
  int64_t expires_ms = 0;
  int64_t finalizing_ms = 0;
  int64_t completed_ms = 0;
  int64_t failed_ms = 0;
  int64_t expired_ms = 0;
  int64_t cancelling_ms = 0;
  int64_t cancelled_ms = 0;
  int64_t output_seconds = 0;
  int64_t total = 0;
  int64_t completed = 0;
  int64_t failed = 0;
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;
  int64_t completion_tokens = 0;
  int64_t reasoning_tokens = 0;  // Of the completions.
  std::string output_file;
  std::string error_file;
  std::string metadata;  // A JSON object; empty: none.
  // Errors of the validation: a JSON list of {code, message, param, line};
  // empty: none.
  std::string errors;

  // Returns true if nothing follows the state.
  bool has_ended() const;
  // Returns when the batch reached its last state; 0: it has not ended.
  int64_t ended_ms() const;
};

// A line that is to run.
struct LineRecord {
  int64_t number = 0;  // Counts from 1.
  int64_t place = 0;   // Lines run by place, then by number.
  int64_t begin = 0;   // Byte of the input.
  int64_t length = 0;  // Without the end of the line.
  std::string custom_id;
  std::optional<int64_t> seed;  // For a line that names none.
};

// The outcome of a line.
struct OutputRecord {
  int64_t sequence = 0;  // Rises with each commit.
  int64_t number = 0;
  bool failed = false;
  std::string text;  // A line of JSON with its end.
};

struct BatchUsage {
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;
  int64_t completion_tokens = 0;
  int64_t reasoning_tokens = 0;  // Of the completions.
};

// Inserts a batch. ALREADY_EXISTS: another batch of the owner has this key.
absl::Status InsertBatch(Database& database, const BatchRecord& batch);

// NOT_FOUND: no such batch of this owner. An empty `owner` sees all.
absl::StatusOr<BatchRecord> FindBatch(Database& database, absl::string_view id,
                                      absl::string_view owner);
// Returns nothing if the owner has no batch with this key.
absl::StatusOr<std::optional<BatchRecord>> FindBatchByKey(
    Database& database, absl::string_view owner, absl::string_view client_key);
// Returns batches by age, newest first unless asked otherwise. NOT_FOUND: no
// such `after`.
absl::StatusOr<std::vector<BatchRecord>> ListBatches(Database& database,
                                                     const PageOptions& page);
// Returns batches that have not ended, oldest first.
absl::StatusOr<std::vector<BatchRecord>> ListOpenBatches(Database& database);

// Returns batches that have ended, in the order of their ends.
absl::StatusOr<std::vector<BatchRecord>> ListEndedBatches(Database& database);
// Returns the bytes that all tables need.
absl::StatusOr<int64_t> UsedBytes(Database& database);

// Ends the validation of a batch: with its lines it is in progress, with errors
// it has failed. FAILED_PRECONDITION: it is not validated any more.
absl::Status BeginBatch(Database& database, absl::string_view id,
                        const std::vector<LineRecord>& lines, int64_t now_ms);
absl::Status FailBatch(Database& database, absl::string_view id,
                       const std::string& errors, int64_t now_ms);

// Returns the next lines to run behind (place, number), at most `limit`.
absl::StatusOr<std::vector<LineRecord>> ListOpenLines(Database& database,
                                                      absl::string_view batch,
                                                      int64_t after_place,
                                                      int64_t after_number,
                                                      int64_t limit);

// Commits the outcome of a line. Does nothing if the line has one, or the batch
// does not run any more.
absl::Status InsertOutput(Database& database, absl::string_view batch,
                          const OutputRecord& output, const BatchUsage& usage);

// Moves a batch in `validating` or `in_progress` to `cancelling`. Does nothing
// in another state.
absl::Status CancelBatch(Database& database, absl::string_view id,
                         int64_t now_ms);

// Gives lines without outcome the failure that `make` returns, at most `limit`
// of them. Does nothing if the batch does not run any more.
absl::Status FailOpenLines(
    Database& database, absl::string_view batch, int64_t limit,
    const std::function<std::string(const LineRecord&)>& make);

// Moves a batch to `state`, its last one: `completed` and `expired` through
// `finalizing`. Its files are made for the outputs and errors that there are.
// Does nothing to a batch that has ended. Errors: FAILED_PRECONDITION: a line
// has no outcome.
absl::Status FinishBatch(Database& database, absl::string_view id,
                         const char* state, int64_t now_ms);

// Selects outcomes of a batch.
struct OutputOptions {
  enum class Order { kInput, kCommits };
  Order order = Order::kCommits;
  // Sequence of the last outcome before, or number of the last line.
  int64_t after = 0;
  std::optional<bool> failed;             // Unset: both kinds.
  int64_t most_bytes = int64_t{1} << 20;  // Limit for the texts but the first.
  int64_t limit = 1000;
};
absl::StatusOr<std::vector<OutputRecord>> ListOutputs(
    Database& database, absl::string_view batch, const OutputOptions& options);

// Returns the least number of a line without outcome; 0: there is none.
absl::StatusOr<int64_t> FirstOpenLine(Database& database,
                                      absl::string_view batch);

// Deletes a batch with its lines, outcomes and files. The bytes of its input
// are the caller's to remove.
absl::Status DeleteBatch(Database& database, absl::string_view id);

}  // namespace ringfleet::coordinator

#endif  // RINGFLEET_COORDINATOR_STORE_BATCH_TABLE_H_
