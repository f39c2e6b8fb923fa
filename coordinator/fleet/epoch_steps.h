// SPDX-License-Identifier: Apache-2.0
// Chooses the plan of an epoch's next step: a benchmark's if it has its turn,
// the requests', or an empty plan in which experts move.
#ifndef RINGFLEET_COORDINATOR_FLEET_EPOCH_STEPS_H_
#define RINGFLEET_COORDINATOR_FLEET_EPOCH_STEPS_H_

#include <optional>

#include "absl/status/status.h"
#include "coordinator/fleet/bench_turn.h"
#include "coordinator/fleet/expert_moves.h"
#include "coordinator/fleet/fleet_epoch.h"
#include "coordinator/fleet/fleet_requests.h"
#include "coordinator/metrics/step_figures.h"
#include "protos/worker.pb.h"

namespace ringfleet::coordinator {

// Not thread-safe: the thread in FleetEpoch::RunSteps uses it. Delivers the
// events of requests without a lock held.
class EpochSteps : public StepSource {
 public:
  // All arguments must outlive this object.
  EpochSteps(FleetEpoch& epoch, FleetRequests& requests, BenchTurn& bench,
             ExpertMoves& moves, StepFigures& figures)
      : epoch_(epoch),
        requests_(requests),
        bench_(bench),
        moves_(moves),
        figures_(figures) {}

  std::optional<v1::StepPlan> NextPlan() override;
  std::optional<cluster::Deadline::Clock::time_point> held_until()
      const override;
  absl::Status OnResult(const v1::StepResult& merged) override;

  // Returns whether a step has been done.
  bool stepped() const { return stepped_; }

 private:
  // Gives the steps of a benchmark that is done back to the requests.
  void RetireBench();

  FleetEpoch& epoch_;
  FleetRequests& requests_;
  BenchTurn& bench_;
  ExpertMoves& moves_;
  StepFigures& figures_;
  bool stepped_ = false;
};

}  // namespace ringfleet::coordinator

#endif  // RINGFLEET_COORDINATOR_FLEET_EPOCH_STEPS_H_
