// SPDX-License-Identifier: Apache-2.0
// The fleet as a whole: waits for workers, forms an epoch of them, runs its
// steps, and forms the next epoch when one has failed.
//
//   WAITING -> LOADING -> READY -> FAILED -> LOADING -> ...  and STOPPING
//
// The fleet wires objects that each have a lock of their own:
//
//   Formation       members; when and of which members an epoch may be formed
//   FleetRequests   requests that wait or run
//   BenchTurn       the benchmark that plans the steps instead
//   ExpertMoves     where experts are, and their moves
//   EpochSteps      whose plan the next step is
//   Growth          how a narrowed fleet becomes whole again
//   StepFigures     counts of all steps, for metrics
//   ChangeCounter   what threads wait for
//
// Locks are never nested: no object calls another, or a worker, while it holds
// its lock. When an epoch is ready, the objects are opened for it before the
// state is READY. When it has ended, Growth is closed first, then the state is
// FAILED, then the others are closed. A worker that an epoch keeps and that
// still holds its shard loads nothing.
#ifndef RINGFLEET_COORDINATOR_FLEET_FLEET_H_
#define RINGFLEET_COORDINATOR_FLEET_FLEET_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "cluster/process/deadline.h"
#include "coordinator/fleet/bench_turn.h"
#include "coordinator/fleet/change_counter.h"
#include "coordinator/fleet/epoch_steps.h"
#include "coordinator/fleet/expert_moves.h"
#include "coordinator/fleet/fleet_epoch.h"
#include "coordinator/fleet/fleet_requests.h"
#include "coordinator/fleet/formation.h"
#include "coordinator/fleet/growth.h"
#include "coordinator/metrics/step_figures.h"
#include "coordinator/scheduling/bench_planner.h"
#include "coordinator/scheduling/request.h"
#include "kernels/mutex.h"
#include "protos/cluster.pb.h"
#include "protos/coordinator.pb.h"
#include "protos/worker.pb.h"

namespace ringfleet::coordinator {

// Thread-safe.
class Fleet {
 public:
  // Workers must be of `build`.
  Fleet(FleetOptions options, v1::BuildInfo build);
  ~Fleet();  // Shutdown, unless done before.
  Fleet(const Fleet&) = delete;
  Fleet& operator=(const Fleet&) = delete;

  // See the Membership service.
  absl::StatusOr<v1::RegisterResponse> Register(
      const v1::RegisterRequest& request);
  absl::Status Heartbeat(const v1::HeartbeatRequest& request);

  v1::ClusterState State() const;

  // Waits until the state has another version than `*version`, and sets
  // `*version` to it. Returns false if the deadline passes first.
  bool WaitForChange(uint64_t* version, cluster::Deadline deadline);

  // Waits until requests can be submitted. Asks `cancelled` every 50 ms.
  //
  // Errors: the cause, when the fleet has failed and waiting cannot help.
  // UNAVAILABLE: the deadline has passed (names what the fleet waits for), or
  // the coordinator stops. CANCELLED: `cancelled` returned true.
  absl::Status WaitReady(cluster::Deadline deadline,
                         const std::function<bool()>& cancelled = nullptr);

  // Queues a request, also while the fleet is not ready. Its events tell its
  // end, whatever happens. A request outlives the failure of an epoch, but for
  // a fleet that gives up: see Scheduler.
  //
  // Errors (no event follows): the cause, when the fleet has failed and waiting
  // cannot help. UNAVAILABLE: the coordinator stops. Those of
  // Scheduler::Submit. INVALID_ARGUMENT: more ids than
  // FleetOptions::most_prompt_ids.
  absl::Status Submit(std::shared_ptr<const Request> request);

  // NOT_FOUND: no such request waits or runs.
  absl::Status Cancel(absl::string_view id);

  // Returns the statistics of rank 0. A reset is for all ranks. UNAVAILABLE:
  // not ready. Other errors are those of a worker.
  absl::StatusOr<v1::StatisticsResponse> Statistics(bool reset_expert_counts,
                                                    cluster::Deadline deadline);

  // Returns how busy the coordinates of each layer's experts are by these
  // statistics. Empty where experts have one coordinate only, or ranks are
  // missing.
  std::vector<v1::ExpertBalance> BalanceOf(
      const v1::StatisticsResponse& statistics) const;

  // Lets `bench` plan the steps as soon as nothing else runs, until it is done.
  // Its events tell everything, the epoch's end included. An earlier benchmark,
  // whose caller may have left, gets a moment to end.
  //
  // Errors: UNAVAILABLE: not ready. FAILED_PRECONDITION: another benchmark
  // runs, or requests run or wait with `only_if_idle`, or the workers that
  // serve have too few slots.
  absl::Status StartBench(std::shared_ptr<BenchPlanner> bench,
                          bool only_if_idle);
  // Lets `bench` go on after its event Owned or Rests.
  void GoOnWithBench(BenchPlanner& bench);
  // Ends `bench` at the next step. Does nothing once it is done.
  void CancelBench(BenchPlanner& bench, const absl::Status& cause);

  // See coordinator/fleet/host_read.h. UNAVAILABLE: not ready.
  absl::StatusOr<double> MeasureHostRead();

  // See coordinator/fleet/epoch_trace.h. UNAVAILABLE: not ready.
  absl::Status Trace(
      const v1::TraceRequest& request, const std::function<bool()>& await_end,
      const std::function<void(const v1::TraceProgress&)>& on_progress);

  // Moves experts so that they balance the ranks' recent load. Reports a
  // proposal first. Then experts load and move while steps go on, unless the
  // request is a dry run or the imbalance is below `threshold`. `on_progress`
  // returns false when the caller has left. Moves done before an error stay.
  //
  // Errors: UNAVAILABLE: not ready. FAILED_PRECONDITION: experts are moving,
  // ranks are missing, or the fleet is reproducible. INVALID_ARGUMENT: experts
  // have one coordinate only. DEADLINE_EXCEEDED: a benchmark leaves no step for
  // a move. Others are those of a worker, by name.
  absl::Status Rebalance(
      const v1::RebalanceRequest& request, double threshold,
      const std::function<bool(const v1::RebalanceProgress&)>& on_progress);

  // Returns the number of machines that run the epoch's workers; 0 before the
  // first epoch.
  int CountHosts() const;

  // Positions per sequence; 0 unless ready.
  uint32_t context() const;
  // Time that the last load took, until the fleet was ready.
  double load_ms() const { return view().load_ms; }
  // Returns what a benchmark may take. Nothing: not ready.
  std::optional<BenchRoom> bench_room() const;
  // Returns the type of the latent cache: the setting, or the weights' default.
  v1::CacheDtype cache_dtype() const {
    if (options_.settings.cache_type() != v1::CACHE_DTYPE_UNSPECIFIED) {
      return options_.settings.cache_type();
    }
    return options_.settings.dtype() == v1::DTYPE_F32 ? v1::CACHE_DTYPE_F32
                                                      : v1::CACHE_DTYPE_BF16;
  }

  // Fails all requests and later calls with `cause`, and ends the epoch and all
  // waits. Later calls of End and Shutdown do nothing.
  void End(const absl::Status& cause);
  // Ends with UNAVAILABLE: the coordinator is stopping.
  void Shutdown();
  // Returns true after End or Shutdown.
  bool has_ended() const { return stopping(); }

 private:
  void Main();      // Thread: forms epochs and runs them.
  void Watchdog();  // Thread: leases and limits of time.

  // Waits until an epoch may be formed. Returns null if the fleet stops.
  std::shared_ptr<FleetEpoch> NextEpoch();
  std::shared_ptr<FleetEpoch> BeginEpoch(Formation::NextEpoch next);
  // Forms the epoch and runs it to its end; returns the cause.
  absl::Status RunEpoch(const std::shared_ptr<FleetEpoch>& epoch,
                        EpochSteps& steps);
  void EndEpoch(const FleetEpoch& epoch, const absl::Status& cause,
                bool stepped);

  // The state that other objects and threads see.
  struct View {
    v1::FleetState state = v1::FLEET_STATE_WAITING;
    // The last epoch's failure; OK once one is ready. The cause of the end
    // while stopping.
    absl::Status error;
    std::shared_ptr<FleetEpoch> epoch;
    double load_ms = 0;
    // Loading or ready.
    bool live() const {
      return state == v1::FLEET_STATE_LOADING || state == v1::FLEET_STATE_READY;
    }
  };
  View view() const {
    MutexLock lock(&mu_);
    return view_;
  }
  bool stopping() const { return view().state == v1::FLEET_STATE_STOPPING; }
  // Returns the epoch that serves. Errors: those of WhyNotReady.
  absl::StatusOr<std::shared_ptr<FleetEpoch>> ReadyEpoch() const;
  bool FailedForGood(const View& view) const;
  absl::Status WhyNotReady(const View& view) const;
  // Ends the epoch if one of its members is gone.
  void ReportGone();
  // Takes the imbalance of experts from a heartbeat.
  void NoteExperts(const v1::HeartbeatRequest& heartbeat);
  // Makes the epoch ask for a plan.
  void Wake();

  const FleetOptions options_;
  const v1::BuildInfo build_;

  ChangeCounter changes_;
  Formation formation_;
  FleetRequests requests_;
  BenchTurn bench_;
  ExpertMoves moves_;
  StepFigures figures_;
  Growth growth_;

  mutable Mutex mu_;
  View view_
      ABSL_GUARDED_BY(mu_);  // Its epoch may be forming, running or over.

  std::thread main_;
  std::thread watchdog_;
};

}  // namespace ringfleet::coordinator

#endif  // RINGFLEET_COORDINATOR_FLEET_FLEET_H_
