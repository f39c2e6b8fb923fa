// SPDX-License-Identifier: Apache-2.0
// The requests of a fleet. The scheduler has the requests of the running epoch.
// Waiting requests are kept between two epochs when a narrowed epoch hands over
// to a whole one.
#ifndef RINGFLEET_COORDINATOR_FLEET_FLEET_REQUESTS_H_
#define RINGFLEET_COORDINATOR_FLEET_FLEET_REQUESTS_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "coordinator/scheduling/request.h"
#include "coordinator/scheduling/scheduler.h"
#include "kernels/mutex.h"
#include "protos/worker.pb.h"

namespace ringfleet::coordinator {

// Thread-safe. Calls no event of a request: functions return the updates that
// their caller delivers. The caller wakes the epoch after a change.
class FleetRequests {
 public:
  // Starts the scheduler of an epoch. Kept requests go first. Returns their
  // refusals.
  std::vector<RequestUpdate> Open(const Scheduler::Options& options);

  // Ends all requests with `cause`. With `keep_waiting`, requests that wait for
  // a slot are kept. Without an Open before, Close ends the kept requests.
  std::vector<RequestUpdate> Close(const absl::Status& cause,
                                   bool keep_waiting);

  // Ends the kept requests if no epoch follows for them.
  std::vector<RequestUpdate> FailKept(const absl::Status& cause);

  // Errors: UNAVAILABLE: not open. Others: see Scheduler::Submit.
  absl::Status Submit(std::shared_ptr<const Request> request);

  // Cancels a request, kept ones included; `updates` gets what the caller
  // delivers. NOT_FOUND: no such request waits or runs.
  absl::Status Cancel(absl::string_view id,
                      std::vector<RequestUpdate>* updates);

  struct Counts {
    size_t running = 0;
    size_t waiting = 0;
  };
  Counts counts() const;  // Zeros unless open.

  // Holds an epoch, or lets it go on. No waiting request enters a slot while
  // the epoch is held. Does nothing unless open for this epoch.
  void Hold(uint64_t epoch, bool held);

  // Returns true if the scheduler is open, no plan is in flight and no slot is
  // taken.
  bool quiet() const;

  // For the thread that runs the epoch's steps; see Scheduler. Require Open.
  std::optional<v1::StepPlan> NextPlan();
  std::optional<v1::StepPlan> EmptyPlan();
  absl::Status OnResult(const v1::StepResult& merged);
  std::vector<RequestUpdate> TakeUpdates();
  void ContinueAfter(uint64_t last_step);
  uint64_t last_step() const;  // 0 unless open.

 private:
  mutable Mutex mu_;
  std::unique_ptr<Scheduler> scheduler_ ABSL_GUARDED_BY(mu_);  // While open.
  uint64_t epoch_ ABSL_GUARDED_BY(mu_) = 0;                    // While open.
  std::vector<std::shared_ptr<const Request>> kept_ ABSL_GUARDED_BY(mu_);
};

// Calls the event of each update, in order.
void Deliver(const std::vector<RequestUpdate>& updates);

}  // namespace ringfleet::coordinator

#endif  // RINGFLEET_COORDINATOR_FLEET_FLEET_REQUESTS_H_
