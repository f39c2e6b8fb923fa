// SPDX-License-Identifier: Apache-2.0
// The one benchmark that may plan a fleet's steps in place of its requests.
//
//   free -> taken -> planning -> done -> free
//
// A benchmark that has taken its turn plans once no request runs. It gives the
// steps back when it is done. The end of the epoch ends it too.
#ifndef RINGFLEET_COORDINATOR_FLEET_BENCH_TURN_H_
#define RINGFLEET_COORDINATOR_FLEET_BENCH_TURN_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "coordinator/scheduling/bench_planner.h"
#include "kernels/mutex.h"
#include "protos/worker.pb.h"

namespace ringfleet::coordinator {

// Thread-safe. Its lock also serialises the planner. The caller wakes the epoch
// after a change.
class BenchTurn {
 public:
  struct Epoch {
    uint64_t id = 0;
    uint32_t groups = 1;       // Data groups.
    uint32_t group_slots = 1;  // Slots of each.
    std::string workers;       // "3 of 4 workers serve", for errors.
  };

  void Open(Epoch epoch);
  // Ends the benchmark with `cause`.
  void Close(const absl::Status& cause);

  // Waits a moment for a benchmark whose caller may have left. Returns true if
  // none runs any more.
  bool AwaitFree();

  // Errors: UNAVAILABLE: not open. FAILED_PRECONDITION: another benchmark runs,
  // or `bench` has more sequences than there are slots.
  absl::Status Take(std::shared_ptr<BenchPlanner> bench);
  // Lets `bench` go on: once when it owns the steps, then at each rest. Does
  // nothing once its turn is over.
  void GoOn(BenchPlanner& bench);
  // Ends `bench` at the next step. Does nothing once its turn is over.
  void Cancel(BenchPlanner& bench, const absl::Status& cause);

  bool free() const;

  // The thread that runs the epoch's steps calls these functions.
  bool owns_steps() const;
  // Gives a benchmark that has the turn the steps behind `last_step`. Requires
  // that no request runs.
  void OwnSteps(uint64_t last_step);
  std::optional<v1::StepPlan> NextPlan();
  absl::Status OnResult(const v1::StepResult& merged);
  // Frees the turn of a benchmark that is done, and returns the last step that
  // the benchmark has planned. Returns nothing if no benchmark is done.
  std::optional<uint64_t> Retire();

 private:
  mutable Mutex mu_;
  CondVar freed_;
  std::optional<Epoch> epoch_ ABSL_GUARDED_BY(mu_);           // While open.
  std::shared_ptr<BenchPlanner> bench_ ABSL_GUARDED_BY(mu_);  // Null: free.
};

}  // namespace ringfleet::coordinator

#endif  // RINGFLEET_COORDINATOR_FLEET_BENCH_TURN_H_
