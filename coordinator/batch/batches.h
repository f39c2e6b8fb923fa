// SPDX-License-Identifier: Apache-2.0
// Batches of a coordinator: makes them of uploaded files, validates them, lets
// them run and ends them. The faces (HTTP, gRPC) call it, and read the tables
// of its store.
//
// A batch is validated as a whole, by a thread of its own, before a line runs.
// Each line's request is what the endpoint's HTTP request would be, and its
// outcome is that request's response.
#ifndef RINGFLEET_COORDINATOR_BATCH_BATCHES_H_
#define RINGFLEET_COORDINATOR_BATCH_BATCHES_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "coordinator/batch/batch_lines.h"
#include "coordinator/batch/batch_runner.h"
#include "coordinator/store/batch_table.h"
#include "coordinator/store/store.h"
#include "kernels/mutex.h"

namespace ringfleet::coordinator {

// Priority of a batch's lines unless its client asks for another.
inline constexpr int32_t kBatchPriority = 100;
inline constexpr size_t kMostClientKey = 256;

struct NewBatch {
  std::string owner;  // Name of the API key; empty: none.
  std::string name;   // For people; empty: none.
  // Id of an upload of the owner. The validation fails if there is none.
  std::string input_file;
  // "/v1/chat/completions" or "/v1/completions". Empty: each line tells its
  // own, or shows it by its fields.
  std::string endpoint;
  std::optional<std::string> client_key;  // Makes the call idempotent.
  int32_t priority = kBatchPriority;      // At least 1.
  int64_t window_seconds = 0;             // Until it expires; 0: never.
  int64_t output_seconds = 0;  // The output files expire then; 0: never.
  std::string metadata;        // A JSON object; empty: none.
};

// Thread-safe.
class Batches {
 public:
  using Created = std::function<void(absl::StatusOr<BatchRecord>)>;

  // Goes on with the batches that the store has. All in `options` must outlive
  // this object.
  static std::unique_ptr<Batches> Start(BatchRunnerOptions options);
  // Lines that run end, and run again at the next start. The store has been
  // stopped before.
  ~Batches();

  // Makes a batch and begins to validate it. With a known `client_key`, calls
  // `done` with the batch that was made before. `done` may run on the store's
  // thread and must not block.
  //
  // Errors: INVALID_ARGUMENT: the file is no upload for batches, a priority
  // below 1, an endpoint that no batch has, or a name or key of more than 256
  // bytes. ALREADY_EXISTS: the key belongs to a batch of another input,
  // endpoint or metadata. NOT_FOUND: the bytes of the file are gone. Those of
  // Store::WriteNow.
  void Create(NewBatch batch, Created done);

  // Begins to end a batch. Does nothing to one that is ending, or cancelled.
  // Errors: NOT_FOUND: the owner has no such batch. FAILED_PRECONDITION: it has
  // ended otherwise. Those of Store::WriteNow.
  void Cancel(const std::string& id, const std::string& owner, Created done);

  // Deletes a file of the owner's. Batches that were made of it go on.
  // Errors: NOT_FOUND. Those of Store::WriteNow.
  void DeleteFile(const std::string& id, const std::string& owner,
                  std::function<void(const absl::Status&)> done);

  BatchPace PaceOf(const std::string& id) const { return runner_.PaceOf(id); }

  // Waits until a batch of the store has changed since `*version`, and sets it.
  // Returns false if the deadline passes first, or this object ends.
  bool WaitForChange(uint64_t* version, absl::Duration at_most);

  Store& store() { return *options_.store; }
  const std::string& served_name() const { return options_.served_name; }
  // Returns for how many seconds an upload is kept.
  int64_t upload_seconds() const {
    return absl::ToInt64Seconds(options_.keep_time);
  }

 private:
  explicit Batches(BatchRunnerOptions options);

  void ValidateLoop();
  void Validate(const BatchRecord& batch);
  // Reads the lines of a batch's input. An error may pass.
  absl::Status Scan(const BatchRecord& batch, ScannedLines* out);
  void NoteChange();
  // Forgets what is too old or too much.
  void KeepLimits();
  // Removes the bytes of files that no record names.
  void RemoveStrangers(const std::set<std::string>& known);

  const BatchRunnerOptions options_;

  Mutex mu_;
  CondVar changed_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  uint64_t version_ ABSL_GUARDED_BY(mu_) = 1;
  bool validates_ ABSL_GUARDED_BY(mu_) =
      true;  // There may be some to validate.

  BatchRunner runner_;  // Its threads note changes.
  std::thread thread_;
};

}  // namespace ringfleet::coordinator

#endif  // RINGFLEET_COORDINATOR_BATCH_BATCHES_H_
