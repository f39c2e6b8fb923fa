// SPDX-License-Identifier: Apache-2.0
// The fleet as a whole: waits for workers, forms an epoch of them, runs the
// scheduler's steps, and forms again when an epoch has failed.
//
//   WAITING -> LOADING -> READY -> FAILED -> LOADING -> ...  and STOPPING
//
// After a failure all workers form an epoch again as soon as every rank has a
// living member: at once when all have survived, with growing pauses when that
// fails again and again. Who still holds what it is to have loads nothing.
// Where whole data groups have survived and hold all experts between them, they
// go on alone; once every rank has a member again, the missing ones load beside
// them, and all form an epoch when no sequence runs. A failed load that trying
// again cannot cure (a bad or different checkpoint, too little memory) waits
// until a worker registers.
#ifndef RINGFLEET_COORDINATOR_FLEET_FLEET_H_
#define RINGFLEET_COORDINATOR_FLEET_FLEET_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "cluster/process/deadline.h"
#include "coordinator/fleet/fleet_epoch.h"
#include "coordinator/fleet/membership.h"
#include "coordinator/scheduling/bench_planner.h"
#include "coordinator/scheduling/request.h"
#include "coordinator/scheduling/scheduler.h"
#include "kernels/mutex.h"
#include "protos/cluster.pb.h"
#include "protos/coordinator.pb.h"
#include "protos/worker.pb.h"

namespace ringfleet::coordinator {

// For Statistics, where the caller sets no deadline.
inline constexpr absl::Duration kStatisticsTimeout = absl::Seconds(30);

// Thread-safe.
class Fleet : private StepSource {
 public:
  // `build` is what workers must be.
  Fleet(FleetOptions options, v1::BuildInfo build);
  ~Fleet() override;  // Shutdown, unless done before.
  Fleet(const Fleet&) = delete;
  Fleet& operator=(const Fleet&) = delete;

  // As the Membership service defines them.
  absl::StatusOr<v1::RegisterResponse> Register(
      const v1::RegisterRequest& request);
  absl::Status Heartbeat(const v1::HeartbeatRequest& request);

  v1::ClusterState State() const;

  // Waits until the state has another version than `*version`, which becomes
  // its version. False when the deadline passed first.
  bool WaitForChange(uint64_t* version, cluster::Deadline deadline);

  // Waits until requests can be submitted. `cancelled` is asked every 50 ms.
  //
  // Errors: the cause, when the fleet has failed and nothing but a user can
  // help. UNAVAILABLE: the deadline has passed (names what the fleet waits
  // for), or the coordinator stops. CANCELLED: `cancelled` said so.
  absl::Status WaitReady(cluster::Deadline deadline,
                         const std::function<bool()>& cancelled = nullptr);

  // Queues a request, which gets its end through its events whatever happens.
  //
  // Errors (then no event follows): UNAVAILABLE: not ready.
  // INVALID_ARGUMENT: see Scheduler::Submit.
  absl::Status Submit(std::shared_ptr<const Request> request);

  // NOT_FOUND: no such request waits or runs.
  absl::Status Cancel(absl::string_view id);

  // What rank 0 has counted; a reset is for all ranks. UNAVAILABLE: not ready.
  // Other errors are those of a worker.
  absl::StatusOr<v1::StatisticsResponse> Statistics(bool reset_expert_counts,
                                                    cluster::Deadline deadline);

  // How busy the experts' places are by these statistics; nothing where there
  // is one place.
  std::vector<v1::ExpertBalance> BalanceOf(
      const v1::StatisticsResponse& statistics) const;

  // Lets `bench` plan the steps as soon as nothing else runs, until it is done;
  // it learns of everything through its events, also of the epoch's end. Waits
  // a moment for a benchmark before it whose caller may have left.
  //
  // Errors: UNAVAILABLE: not ready. FAILED_PRECONDITION: another benchmark
  // runs, or, with `only_if_idle`, requests run or wait.
  absl::Status StartBench(std::shared_ptr<BenchPlanner> bench,
                          bool only_if_idle);
  // Lets it plan, after it has said that it owns the fleet.
  void GoOnWithBench(BenchPlanner& bench);
  // Ends it at the next step. Does nothing to one that is done.
  void CancelBench(BenchPlanner& bench, const absl::Status& cause);

  // What each host reads from memory, GB/s of 1e9 bytes, all its workers at
  // once; the mean over the hosts. Slows steps down. UNAVAILABLE: not ready.
  // Other errors are those of a worker.
  absl::StatusOr<double> MeasureHostRead();

  // Records what the workers do until `await_end` returns, which is called once
  // all of them record, and calls `on_progress`, by one thread at a time: with
  // `started` before that, with each rank's description and events behind it.
  // False from `await_end`: nobody wants them any more.
  //
  // Errors: UNAVAILABLE: not ready. Others are those of a worker, by name.
  absl::Status Trace(
      const v1::TraceRequest& request, const std::function<bool()>& await_end,
      const std::function<void(const v1::TraceProgress&)>& on_progress);

  // Moves experts to where they balance what the ranks have had to do: first
  // tells of a proposal, then, unless that is all that is wanted, of loading,
  // while steps go on. Nothing moves if the imbalance is below `threshold`.
  // False from `on_progress`: the caller left. What has moved before an error
  // stays.
  //
  // Errors: UNAVAILABLE: not ready. FAILED_PRECONDITION: experts are moving.
  // INVALID_ARGUMENT: they have one place only. DEADLINE_EXCEEDED: a benchmark
  // leaves no step for it. Others are those of a worker, by name.
  absl::Status Rebalance(
      const v1::RebalanceRequest& request, double threshold,
      const std::function<bool(const v1::RebalanceProgress&)>& on_progress);

  // Machines that the workers of the epoch run on; 0 before the first one.
  int CountHosts() const;

  // Positions per sequence; 0 unless ready.
  uint32_t context() const;
  uint32_t slots() const { return options_.slots; }
  // Of the latent cache: as asked for, or what follows from the weights.
  v1::CacheDtype cache_dtype() const {
    if (options_.cache_dtype != v1::CACHE_DTYPE_UNSPECIFIED) {
      return options_.cache_dtype;
    }
    return options_.dtype == v1::DTYPE_F32 ? v1::CACHE_DTYPE_F32
                                           : v1::CACHE_DTYPE_BF16;
  }

  // Fails all requests with UNAVAILABLE, ends the epoch and all waits. Later
  // calls do nothing.
  void Shutdown();

 private:
  std::optional<v1::StepPlan> NextPlan() override;
  absl::Status OnResult(const v1::StepResult& merged) override;

  void Main();      // Thread: forms epochs and runs them.
  void Watchdog();  // Thread: leases and limits of time.
  // Waits until an epoch may be formed; null when stopping.
  std::shared_ptr<FleetEpoch> NextEpoch();
  // Of the whole fleet, with experts where they are now.
  FleetOptions WholeFleet() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Ranks that an epoch has to do without: those that have no member, and those
  // with which the fleet did not become whole before anybody else registered.
  std::vector<int> AbsentRanks() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Of the next epoch, if one can be formed of those that are there.
  struct Formation {
    FleetOptions options;
    std::vector<cluster::Member> members;
  };
  std::optional<Formation> NextFormation() const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Whether the epoch lacks ranks of the fleet.
  bool Narrowed(const FleetEpoch& epoch) const {
    return static_cast<int>(epoch.members().size()) <
           options_.mesh.world_size();
  }
  void Grower();  // Thread: makes a narrowed epoch's fleet whole again.
  // Loads what `epoch` lacks while it serves.
  absl::Status LoadMissing(const FleetEpoch& epoch);
  // Ends `epoch` when no sequence runs; who waits enters the next one. False:
  // it goes on, because sequences ran on for too long, or somebody is gone
  // again.
  bool HandOver(FleetEpoch& epoch);
  // When no epoch follows for them.
  void FailHandedOver(const absl::Status& cause);
  absl::Status RunEpoch(FleetEpoch& epoch);
  void EndEpoch(FleetEpoch& epoch, const absl::Status& cause);
  // When one may, if it can.
  bool MayForm() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status WhyNotReady() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool FailedForGood() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void SetState(v1::FleetState state) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Changed() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void DeliverUpdates();
  void Balancer();  // Thread: moves experts from time to time.
  // `threshold`: imbalance below which nothing moves.
  absl::Status MoveExperts(
      FleetEpoch& epoch, const ExpertFacts& facts,
      const v1::RebalanceRequest& request, double threshold,
      const std::function<bool(const v1::RebalanceProgress&)>& on_progress);
  // Lets the next plan say that experts, which all ranks have prepared, change
  // places, and waits for its result.
  absl::Status SwitchExperts(FleetEpoch& epoch, uint64_t number,
                             const cluster::ExpertLayout& layout);
  void PlanMove(std::optional<v1::StepPlan>* plan)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void NoteMoved(uint64_t step) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void FailMove(const absl::Status& cause) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Whether the benchmark makes the plans; takes it over when it may.
  bool BenchPlans() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Gives the fleet back after a benchmark that is done.
  void RetireBench() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // Experts about to change places.
  struct ExpertMove {
    uint64_t number = 0;
    cluster::ExpertLayout layout;  // From then on.
    uint64_t step = 0;             // Whose plan says so; 0: none yet.
    bool ended = false;
    absl::Status status;  // Once ended.
  };

  const FleetOptions options_;
  const v1::BuildInfo build_;

  mutable Mutex mu_;
  CondVar changed_;
  cluster::Membership membership_ ABSL_GUARDED_BY(mu_);
  v1::FleetState state_ ABSL_GUARDED_BY(mu_) = v1::FLEET_STATE_WAITING;
  absl::Status error_ ABSL_GUARDED_BY(mu_);  // Of the last epoch.
  uint64_t version_ ABSL_GUARDED_BY(mu_) = 1;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::shared_ptr<FleetEpoch> epoch_
      ABSL_GUARDED_BY(mu_);  // Forming, running, last.
  std::unique_ptr<Scheduler> scheduler_ ABSL_GUARDED_BY(mu_);  // While READY.
  std::shared_ptr<BenchPlanner> bench_ ABSL_GUARDED_BY(mu_);   // Or null.
  // Where experts are, in this epoch and the next.
  cluster::ExpertLayout layout_ ABSL_GUARDED_BY(mu_);
  std::vector<int> place_slots_ ABSL_GUARDED_BY(mu_);      // As in ExpertFacts.
  std::shared_ptr<ExpertMove> move_ ABSL_GUARDED_BY(mu_);  // Or null.
  uint64_t last_move_ ABSL_GUARDED_BY(mu_) = 0;
  bool rebalancing_ ABSL_GUARDED_BY(mu_) = false;
  // An epoch like the one that follows a narrowed one, while its missing ranks
  // load; or null.
  std::shared_ptr<FleetEpoch> ahead_ ABSL_GUARDED_BY(mu_);
  // The epoch is about to end for the sake of a whole one.
  bool handing_over_ ABSL_GUARDED_BY(mu_) = false;
  // Ranks that the epoch after a handover has and the one before had not; none
  // once it has run a step.
  std::vector<int> grown_ranks_ ABSL_GUARDED_BY(mu_);
  // Ranks to do without while so many registrations have been seen.
  std::vector<int> excluded_ranks_ ABSL_GUARDED_BY(mu_);
  uint64_t excluded_registrations_ ABSL_GUARDED_BY(mu_) = 0;
  // Who waited when it ended.
  std::vector<std::shared_ptr<const Request>> handed_over_ ABSL_GUARDED_BY(mu_);
  double load_ms_ ABSL_GUARDED_BY(mu_) = 0;
  // Of the checkpoint that the first epoch has read; empty before that.
  std::string fingerprint_ ABSL_GUARDED_BY(mu_);
  // Registrations seen when the last epoch was formed.
  uint64_t formed_registrations_ ABSL_GUARDED_BY(mu_) = 0;
  // When the next epoch may be formed: after a pause, and when so many
  // registrations have been seen.
  absl::Duration pause_ ABSL_GUARDED_BY(mu_);
  cluster::Deadline form_after_ ABSL_GUARDED_BY(mu_);
  uint64_t form_registrations_ ABSL_GUARDED_BY(mu_) = 0;

  std::thread main_;
  std::thread watchdog_;
  std::thread balancer_;  // If experts move by themselves.
  std::thread grower_;    // If there are several data groups.
};

}  // namespace ringfleet::coordinator

#endif  // RINGFLEET_COORDINATOR_FLEET_FLEET_H_
