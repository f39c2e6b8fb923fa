// SPDX-License-Identifier: Apache-2.0
// Makes a fleet that goes on without some of its ranks whole again. Once every
// rank has a member, the missing ranks load beside the epoch that serves. The
// epoch ends when no sequence runs, or at the time that HandoverPace sets, and
// a whole one follows. Sequences that still run are replayed there.
#ifndef RINGFLEET_COORDINATOR_FLEET_GROWTH_H_
#define RINGFLEET_COORDINATOR_FLEET_GROWTH_H_

#include <cstdint>
#include <memory>
#include <thread>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "cluster/process/deadline.h"
#include "coordinator/fleet/bench_turn.h"
#include "coordinator/fleet/change_counter.h"
#include "coordinator/fleet/expert_moves.h"
#include "coordinator/fleet/fleet_epoch.h"
#include "coordinator/fleet/fleet_requests.h"
#include "coordinator/fleet/formation.h"
#include "kernels/mutex.h"

namespace ringfleet::coordinator {

// Decides when a narrowed epoch ends once its missing ranks have loaded. Pure
// logic, not thread-safe.
//
// A replay computes again what sequences have in their caches. The epoch has
// computed all of it, with fewer ranks and in smaller steps, so a replay takes
// less time than the epoch has served. A handover waits for running sequences
// as long as the replay may take: the time that the epoch had served when the
// ranks were loaded, at least one hold and at most the limit. Waiting in vain
// then costs no more than the replay would have cost at once.
//
// New requests are held back for one hold, then let in for as long, in turns:
// an epoch without long sequences becomes quiet within its first hold.
class HandoverPace {
 public:
  using TimePoint = cluster::Deadline::Clock::time_point;
  enum class Turn { kHold, kLetIn, kEnd };

  // The epoch has served since `opened`. Its missing ranks were loaded at
  // `loaded`.
  HandoverPace(TimePoint opened, TimePoint loaded, absl::Duration hold,
               absl::Duration limit);

  // Returns what to do. `quiet`: no sequence runs.
  Turn At(TimePoint now, bool quiet) const;

 private:
  const TimePoint loaded_;
  const absl::Duration hold_;
  const absl::Duration longest_;  // From `loaded_` on.
};

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
  // Ends `epoch` for the sake of a whole one. Returns while the epoch serves if
  // a member is gone again.
  void HandOver(FleetEpoch& epoch);
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
  HandoverPace::TimePoint opened_ ABSL_GUARDED_BY(mu_);     // The last one.
  // The epoch is about to end for the sake of a whole one.
  bool handing_over_ ABSL_GUARDED_BY(mu_) = false;
  // An epoch of all ranks while its missing ranks load; null otherwise.
  std::shared_ptr<FleetEpoch> ahead_ ABSL_GUARDED_BY(mu_);

  std::thread thread_;
};

}  // namespace ringfleet::coordinator

#endif  // RINGFLEET_COORDINATOR_FLEET_GROWTH_H_
