// SPDX-License-Identifier: Apache-2.0
// Makes a fleet that goes on without some of its ranks whole again. Once every
// rank has a member, the missing ranks load beside the epoch that serves. The
// epoch ends when no sequence runs, and a whole one follows.
#ifndef RINGFLEET_COORDINATOR_FLEET_GROWTH_H_
#define RINGFLEET_COORDINATOR_FLEET_GROWTH_H_

#include <cstdint>
#include <memory>
#include <thread>

#include "absl/status/status.h"
#include "cluster/process/deadline.h"
#include "coordinator/fleet/bench_turn.h"
#include "coordinator/fleet/change_counter.h"
#include "coordinator/fleet/expert_moves.h"
#include "coordinator/fleet/fleet_epoch.h"
#include "coordinator/fleet/fleet_requests.h"
#include "coordinator/fleet/formation.h"
#include "kernels/mutex.h"

namespace ringfleet::coordinator {

// Thread-safe. Calls no other object while it holds its lock.
class Growth {
 public:
  // All arguments must outlive this object. A fleet that may be narrowed gets a
  // thread.
  Growth(const FleetOptions& fleet, const Formation& formation,
         const ExpertMoves& moves, const BenchTurn& bench,
         FleetRequests& requests, ChangeCounter& changes);
  ~Growth();  // Stop, unless done before.
  Growth(const Growth&) = delete;
  Growth& operator=(const Growth&) = delete;

  // The epoch serves until Close.
  void Open(std::shared_ptr<FleetEpoch> epoch);
  // Ends a load with `cause`. Returns true if the epoch has ended for the sake
  // of a whole one, which the waiting requests enter.
  bool Close(const absl::Status& cause);
  // Ends the thread. A load in progress ends with `cause`.
  void Stop(const absl::Status& cause);

  // Returns true while ranks load. No epoch may be formed meanwhile.
  bool loading() const;

 private:
  void Run();  // Thread.
  // Returns the epoch that may grow, and sets `registrations` to the number so
  // far. Returns null if there is none, or no more registrations than `tried`.
  std::shared_ptr<FleetEpoch> Narrowed(uint64_t tried,
                                       uint64_t* registrations) const;
  // Loads the ranks that `epoch` lacks while it serves.
  absl::Status LoadMissing(const FleetEpoch& epoch);
  // Ends `epoch` when no sequence runs. Returns false if the epoch goes on,
  // because sequences ran on for too long or a member is gone again.
  bool HandOver(FleetEpoch& epoch);
  bool Serves(const FleetEpoch& epoch) const;
  bool stopping() const;

  const FleetOptions& fleet_;
  const Formation& formation_;
  const ExpertMoves& moves_;
  const BenchTurn& bench_;
  FleetRequests& requests_;
  ChangeCounter& changes_;

  mutable Mutex mu_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::shared_ptr<FleetEpoch> epoch_ ABSL_GUARDED_BY(mu_);  // While open.
  // The epoch is about to end for the sake of a whole one.
  bool handing_over_ ABSL_GUARDED_BY(mu_) = false;
  // An epoch of all ranks while its missing ranks load; null otherwise.
  std::shared_ptr<FleetEpoch> ahead_ ABSL_GUARDED_BY(mu_);

  std::thread thread_;
};

}  // namespace ringfleet::coordinator

#endif  // RINGFLEET_COORDINATOR_FLEET_GROWTH_H_
