// SPDX-License-Identifier: Apache-2.0
// The batches of a coordinator for its gRPC service.
#ifndef RINGFLEET_COORDINATOR_SERVICE_BATCH_CALLS_H_
#define RINGFLEET_COORDINATOR_SERVICE_BATCH_CALLS_H_

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/string_view.h"
#include "coordinator/batch/batches.h"
#include "protos/coordinator.pb.h"

namespace ringfleet::coordinator {

// Returns true for the id of a batch, whether there is such a batch or not.
inline bool IsBatchId(absl::string_view id) {
  return absl::StartsWith(id, "batch_");
}

// Calls wait for the disk. Thread-safe.
class BatchCalls {
 public:
  // Calls fail until batches are set, before the first call.
  void Set(Batches* batches) { batches_ = batches; }
  // Notes why there is no store, before the first call.
  void SetMissing(const absl::Status& why) { missing_ = why; }
  bool has_batches() const { return batches_ != nullptr; }
  // Returns why nothing can be stored. OK: it can, or no store is wanted.
  absl::Status trouble() const {
    return batches_ == nullptr ? missing_ : batches_->store().trouble();
  }

  // `read` returns false at the end of the caller's messages. The others are as
  // in the Coordinator service.
  absl::Status Submit(const std::function<bool(v1::SubmitBatchRequest*)>& read,
                      const std::function<bool()>& cancelled,
                      v1::GetJobResponse* response);
  absl::Status StreamResults(
      const v1::StreamResultsRequest& request,
      const std::function<bool()>& cancelled,
      const std::function<bool(const v1::StreamResultsResponse&)>& write);
  absl::Status Get(const std::string& id, v1::GetJobResponse* response);
  // Adds batches behind the one with the id `after`, oldest first; all if it is
  // empty. Sets `next` to the id of the last one if there are more.
  absl::Status List(const std::string& after, int64_t limit,
                    v1::ListJobsResponse* response, std::string* next);
  absl::Status Cancel(const std::string& id);

 private:
  absl::Status Check() const;
  absl::StatusOr<BatchRecord> Find(const std::string& id);
  void Describe(const BatchRecord& batch, v1::JobInfo* info) const;

  Batches* batches_ = nullptr;
  absl::Status missing_;
};

}  // namespace ringfleet::coordinator

#endif  // RINGFLEET_COORDINATOR_SERVICE_BATCH_CALLS_H_
