// SPDX-License-Identifier: Apache-2.0
// One life of a fleet, from loading to its first failure: the same workers
// load a model, connect with each other and run steps. It ends with one cause,
// which every request of the epoch gets.
#ifndef RINGFLEET_COORDINATOR_FLEET_FLEET_EPOCH_H_
#define RINGFLEET_COORDINATOR_FLEET_FLEET_EPOCH_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "cluster/model/shard_plan.h"
#include "cluster/process/deadline.h"
#include "coordinator/fleet/epoch_failures.h"
#include "coordinator/fleet/fleet_options.h"
#include "coordinator/fleet/worker_client.h"
#include "coordinator/membership/membership.h"
#include "kernels/mutex.h"
#include "protos/types.pb.h"
#include "protos/worker.pb.h"

namespace ringfleet::coordinator {

// Source of steps and receiver of results. Called by the thread in RunSteps.
class StepSource {
 public:
  virtual ~StepSource() = default;
  // Returns the next plan, or nothing if there is none until a result,
  // held_until() or Wake().
  virtual std::optional<v1::StepPlan> NextPlan() = 0;
  // Returns the time to which NextPlan holds a plan back. Nothing: it does not.
  virtual std::optional<cluster::Deadline::Clock::time_point> held_until()
      const = 0;
  virtual absl::Status OnResult(const v1::StepResult& merged) = 0;
};

// Thread-safe. One thread calls Form and RunSteps, once each.
class FleetEpoch {
 public:
  // `members` are in the order of the epoch's ranks; their ranks in the fleet
  // may differ. `fingerprint` is the checkpoint that the fleet began with;
  // empty: the fleet begins with this epoch. `on_change` is called without
  // locks held when Progress() has changed.
  FleetEpoch(FleetOptions options, uint64_t id, std::vector<Member> members,
             std::string fingerprint, std::function<void()> on_change);
  ~FleetEpoch();
  FleetEpoch(const FleetEpoch&) = delete;
  FleetEpoch& operator=(const FleetEpoch&) = delete;

  // Loads and connects all ranks and opens their Run streams. An error cancels
  // everything.
  absl::Status Form();

  // Is called instead of Form: makes `ranks` load their shards for a later
  // epoch like this one. Other ranks may serve in another epoch meanwhile. A
  // rank that has loaded its shard keeps the shard.
  absl::Status LoadAhead(const std::vector<int>& ranks);

  // Runs steps until the epoch fails or is stopped; returns the cause.
  absl::Status RunSteps(StepSource& source);

  // Makes RunSteps ask for a plan. Cheap.
  void Wake();

  // Ends the epoch with `cause`, which precedes any failure.
  void Stop(const absl::Status& cause);

  // Ends the epoch because a member has lost its lease or its process.
  void ReportLost(uint64_t member_id, absl::string_view why);

  // Ends steps that take too long, and calls that hang after a failure. A
  // thread that nothing blocks calls it about every 100 ms.
  void Tick();

  struct RankProgress {
    uint64_t bytes_done = 0;
    uint64_t bytes_total = 0;
    uint64_t resident_bytes = 0;
    uint64_t cache_bytes = 0;
    std::string fetches_from;    // As in WorkerState.
    uint64_t bytes_fetched = 0;  // This and the next as in LoadProgress.
    uint64_t tensor_bytes_fetched = 0;
    uint64_t tensor_bytes_read = 0;
    bool from_shard_cache = false;
    bool kept = false;
    std::string reload_cause;  // As in LoadProgress.
    std::string warning;
    bool loaded = false;
  };
  std::vector<RankProgress> Progress() const;
  // Sets the bytes that a rank holds once its experts have moved.
  void SetResidentBytes(int rank, uint64_t bytes);

  uint64_t id() const { return id_; }
  // Return the most positions of a sequence, the cache blocks of a data group,
  // and the fingerprint that all ranks have read. Require Form.
  uint32_t context() const;
  uint32_t cache_blocks() const;
  std::string fingerprint() const;
  const std::vector<Member>& members() const { return members_; }
  const cluster::MeshShape& mesh() const { return options_.mesh; }
  // Returns where experts were when the epoch began.
  const cluster::ExpertLayout& layout() const { return options_.layout; }
  WorkerClient& client(int rank) { return *clients_[rank]; }

  // Return whether loading failed in a way that trying again cannot cure, or a
  // worker serves another coordinator; and the members that have gone. Require
  // the epoch's end.
  bool permanent() const;
  std::vector<uint64_t> LostMembers() const;

 private:
  // Asks all ranks for the files they have, so that others can fetch them.
  absl::Status FindFiles();
  // Loads the ranks for which `loads` returns true.
  absl::Status Load(const std::function<bool(int)>& loads);
  absl::Status ConnectAll();
  // Calls `call` for all ranks at once. Returns the cause of the first failure.
  absl::Status OnEveryRank(const std::function<absl::Status(int)>& call);
  v1::LoadRequest LoadRequestFor(int rank) const;
  void OnLoadProgress(int rank, const v1::LoadProgress& progress);
  // Ends the epoch unless a rank reads the checkpoint that the fleet began
  // with.
  void CheckUnchanged(int rank, const std::string& fingerprint);
  // Returns the rank itself, or a source of its checkpoint if the rank fetches.
  int RankWithFiles(int rank) const;
  // Describes the difference between two ranks' checkpoints; "" if it is
  // unknown.
  std::string CompareCheckpoints(int want, int got);
  void OnStepResult(int rank, v1::StepResult result);
  void Report(int rank, const absl::Status& status, bool lost,
              bool stopping = false);
  // Ends the epoch with a status of this process's own.
  void Decide(const absl::Status& verdict);
  bool Ended() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return !verdict_.ok() || !failures_.empty();
  }
  bool ResultsComplete() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  std::string Where(EpochPhase phase) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Waits for the best cause, cancels everything and returns it.
  absl::Status Conclude();
  void CancelAll();

  const FleetOptions options_;
  const uint64_t id_;
  const std::vector<Member> members_;
  const std::string fleet_fingerprint_;
  const std::function<void()> on_change_;

  mutable Mutex mu_;
  CondVar changed_;
  EpochPhase phase_ ABSL_GUARDED_BY(mu_) = EpochPhase::kLoading;
  absl::Status verdict_ ABSL_GUARDED_BY(mu_);  // The cause, once decided.
  bool permanent_ ABSL_GUARDED_BY(mu_) = false;
  EpochFailures failures_ ABSL_GUARDED_BY(mu_);
  cluster::Deadline cancel_at_ ABSL_GUARDED_BY(mu_) =
      cluster::Deadline::Infinite();
  std::vector<RankProgress> progress_ ABSL_GUARDED_BY(mu_);
  // The files of each rank, and the sources for ranks that lack some.
  std::vector<v1::FindCheckpointResponse> found_ ABSL_GUARDED_BY(mu_);
  std::vector<v1::FileSource> sources_ ABSL_GUARDED_BY(mu_);
  std::vector<std::string> fingerprints_ ABSL_GUARDED_BY(mu_);
  bool comparing_ ABSL_GUARDED_BY(mu_) = false;     // Two checkpoints differ.
  uint32_t context_ ABSL_GUARDED_BY(mu_) = 0;       // 0: no rank has loaded.
  uint32_t cache_blocks_ ABSL_GUARDED_BY(mu_) = 0;  //
  int unfinished_calls_ ABSL_GUARDED_BY(mu_) = 0;
  bool woken_ ABSL_GUARDED_BY(mu_) = false;
  // Steps sent and not yet merged, with the time by which each must be done.
  std::deque<std::pair<uint64_t, cluster::Deadline>> steps_
      ABSL_GUARDED_BY(mu_);
  uint64_t last_step_ ABSL_GUARDED_BY(mu_) = 0;  // Last step sent.
  std::vector<std::deque<v1::StepResult>> results_ ABSL_GUARDED_BY(mu_);

  // Last member: the clients' threads report to the members above.
  std::vector<std::unique_ptr<WorkerClient>> clients_;
};

// Returns the load of members[rank] in an epoch of these members, without
// sources of files.
v1::LoadRequest MakeLoadRequest(const FleetOptions& options,
                                const std::vector<Member>& members, int rank);

// Hashes the settings that all ranks of an epoch must agree in.
uint64_t ConfigHash(const FleetOptions& options, absl::string_view fingerprint,
                    uint32_t context, uint32_t cache_blocks);

}  // namespace ringfleet::coordinator

#endif  // RINGFLEET_COORDINATOR_FLEET_FLEET_EPOCH_H_
