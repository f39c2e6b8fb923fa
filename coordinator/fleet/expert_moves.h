// SPDX-License-Identifier: Apache-2.0
// Where the experts of a fleet are, and how they move while it serves: all
// ranks load what they lack, round by round, and each round takes effect with
// one step that all ranks do.
#ifndef RINGFLEET_COORDINATOR_FLEET_EXPERT_MOVES_H_
#define RINGFLEET_COORDINATOR_FLEET_EXPERT_MOVES_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "cluster/model/expert_layout.h"
#include "coordinator/fleet/fleet_epoch.h"
#include "kernels/mutex.h"
#include "protos/coordinator.pb.h"
#include "protos/worker.pb.h"

namespace ringfleet::coordinator {

// Thread-safe. Calls no other object while it holds its lock.
class ExpertMoves {
 public:
  using OnProgress = std::function<bool(const v1::RebalanceProgress&)>;

  // `fleet` must outlive this object. With a rebalance interval a thread moves
  // experts from time to time.
  explicit ExpertMoves(const FleetOptions& fleet);
  ~ExpertMoves();  // Stop, unless done before.
  ExpertMoves(const ExpertMoves&) = delete;
  ExpertMoves& operator=(const ExpertMoves&) = delete;

  // Lets experts move in `epoch` until Close. A whole epoch's layout becomes
  // that of the fleet.
  void Open(std::shared_ptr<FleetEpoch> epoch);
  // Ends a move that waits for its step with `cause`.
  void Close(const absl::Status& cause);
  // Ends the thread. The epoch must have been stopped.
  void Stop();

  // Returns where experts are, in this epoch and the next.
  cluster::ExpertLayout layout() const;

  // Returns how busy the coordinates of each layer's experts are by these
  // statistics. Empty: experts have one coordinate only.
  std::vector<v1::ExpertBalance> BalanceOf(
      const v1::StatisticsResponse& statistics) const;

  // See Fleet::Rebalance.
  absl::Status Rebalance(FleetEpoch& epoch, const v1::RebalanceRequest& request,
                         double threshold, const OnProgress& on_progress);

  // The thread that runs the epoch's steps calls these functions. They return
  // whether a move waits for a plan, let a plan carry the move, and take note
  // of a result.
  bool awaits_step() const;
  void AddTo(v1::StepPlan* plan);
  void OnResult(uint64_t step);

 private:
  // Experts that every rank has prepared and that are about to change
  // coordinates.
  struct Switch {
    uint64_t number = 0;
    cluster::ExpertLayout layout;  // Once it has ended well.
    uint64_t step = 0;             // The step that carries it; 0: none yet.
    bool ended = false;
    absl::Status status;  // Once ended.
  };

  void Run();  // Thread: moves experts at each interval.
  // Moves experts to the coordinates that `facts` and the workers' statistics
  // ask for; the caller has set moving_.
  absl::Status Move(FleetEpoch& epoch, const ExpertFacts& facts,
                    const v1::RebalanceRequest& request, double threshold,
                    const OnProgress& on_progress);
  // Lets the next plan say that prepared experts change coordinates, and waits
  // for its result.
  absl::Status SwitchTo(FleetEpoch& epoch, uint64_t number,
                        const cluster::ExpertLayout& layout);
  void EndSwitch(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const FleetOptions& fleet_;

  mutable Mutex mu_;
  CondVar changed_;
  std::shared_ptr<FleetEpoch> epoch_ ABSL_GUARDED_BY(mu_);  // While open.
  absl::Status closed_ ABSL_GUARDED_BY(mu_);                // The last cause.
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  bool moving_ ABSL_GUARDED_BY(mu_) = false;
  cluster::ExpertLayout layout_ ABSL_GUARDED_BY(mu_);
  // Replicas that each coordinate holds in a layer
  // (ExpertFacts::coordinate_replicas).
  std::vector<int> coordinate_replicas_ ABSL_GUARDED_BY(mu_);
  uint64_t last_number_ ABSL_GUARDED_BY(mu_) = 0;
  std::shared_ptr<Switch> switch_ ABSL_GUARDED_BY(mu_);  // Or null.

  std::thread thread_;
};

}  // namespace ringfleet::coordinator

#endif  // RINGFLEET_COORDINATOR_FLEET_EXPERT_MOVES_H_
