// SPDX-License-Identifier: Apache-2.0
// The requests of a fleet, over all of its epochs, behind one lock.
#ifndef RINGFLEET_COORDINATOR_FLEET_FLEET_REQUESTS_H_
#define RINGFLEET_COORDINATOR_FLEET_FLEET_REQUESTS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "coordinator/scheduling/request.h"
#include "coordinator/scheduling/scheduler.h"
#include "kernels/mutex.h"
#include "protos/cluster.pb.h"
#include "protos/worker.pb.h"

namespace ringfleet::coordinator {

// Open while an epoch runs its steps. Thread-safe. Functions that say so also
// deliver the events that they cause, before they return: one thread at a time
// delivers, in order, without the lock of the scheduler.
class FleetRequests {
 public:
  FleetRequests();

  // Begins an epoch.
  void Open(const Scheduler::Epoch& epoch);
  // Ends the epoch. See Scheduler::CloseEpoch. Delivers.
  void Close(const absl::Status& cause, bool failed);
  // Tells waiting requests what the fleet waits for. Delivers.
  void TellWaiting(const std::string& why);
  // Fails all requests. Delivers.
  void FailAll(const absl::Status& cause);
  // Fails all requests, those of later Submits included. Delivers.
  void Stop(const absl::Status& cause);

  // Errors: those of Scheduler::Submit; the cause of Stop. Delivers.
  absl::Status Submit(std::shared_ptr<const Request> request);
  // NOT_FOUND: no such request waits or runs. Delivers.
  absl::Status Cancel(absl::string_view id);
  // See Scheduler::Expire. Delivers.
  void Expire(bool loading, absl::Duration longest_wait,
              const absl::Status& why);

  struct Counts {
    size_t running = 0;
    size_t waiting = 0;
  };
  Counts counts() const;
  v1::CacheUse cache_use() const;

  // Holds an epoch and tells waiting requests `why`; "" lets it go on. No
  // waiting request enters a slot while the epoch is held. Does nothing unless
  // open for this epoch. Delivers.
  void Hold(uint64_t epoch, const std::string& why);

  // Returns whether an epoch is open, no plan is in flight and no slot taken.
  bool quiet() const;

  // For the thread that runs the epoch's steps; see Scheduler. Require Open.
  std::optional<v1::StepPlan> NextPlan();
  std::optional<cluster::Deadline::Clock::time_point> held_until() const;
  std::optional<v1::StepPlan> EmptyPlan();
  absl::Status OnResult(const v1::StepResult& merged);
  void ContinueAfter(uint64_t last_step);
  uint64_t last_step() const;  // In the epoch; 0 unless open.

  // Delivers the events that wait for it.
  void Deliver();

 private:
  mutable Mutex mu_;
  Scheduler scheduler_ ABSL_GUARDED_BY(mu_);
  absl::Status stopped_ ABSL_GUARDED_BY(mu_);
  // Held over the taking of events and their calls. Never taken under mu_.
  Mutex delivery_mu_;
};

}  // namespace ringfleet::coordinator

#endif  // RINGFLEET_COORDINATOR_FLEET_FLEET_REQUESTS_H_
