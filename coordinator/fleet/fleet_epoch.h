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
#include "coordinator/fleet/fleet_options.h"
#include "coordinator/fleet/membership.h"
#include "coordinator/fleet/worker_client.h"
#include "kernels/mutex.h"
#include "protos/types.pb.h"
#include "protos/worker.pb.h"

namespace ringfleet::coordinator {

// Where steps come from and results go. Called by the thread in RunSteps.
class StepSource {
 public:
  virtual ~StepSource() = default;
  // Nothing: until a result or Wake().
  virtual std::optional<v1::StepPlan> NextPlan() = 0;
  virtual absl::Status OnResult(const v1::StepResult& merged) = 0;
};

// Thread-safe; Form and RunSteps are called once each, by one thread.
class FleetEpoch {
 public:
  // `members` holds every rank's, in order; in the fleet they may have other
  // ranks. `fingerprint` is that of the
  // checkpoint that the fleet has begun with; empty: it begins with this epoch.
  // `on_change` is called without locks held when what Progress() returns has
  // changed.
  FleetEpoch(FleetOptions options, uint64_t id, std::vector<Member> members,
             std::string fingerprint, std::function<void()> on_change);
  ~FleetEpoch();
  FleetEpoch(const FleetEpoch&) = delete;
  FleetEpoch& operator=(const FleetEpoch&) = delete;

  // Loads and connects all ranks and opens their Run streams. On an error
  // everything is cancelled.
  absl::Status Form();

  // Instead of Form: makes some ranks load what they are to have in an epoch
  // like this one, while others may serve in another. Who has loaded it keeps
  // it then.
  absl::Status LoadAhead(const std::vector<int>& ranks);

  // Runs steps until the epoch fails or is stopped; returns the cause.
  absl::Status RunSteps(StepSource& source);

  // Makes RunSteps ask for a plan. Cheap.
  void Wake();

  // Ends the epoch with `cause`, which precedes any failure.
  void Stop(const absl::Status& cause);

  // Ends the epoch because a member is gone: its lease or its process.
  void ReportLost(uint64_t member_id, absl::string_view why);

  // To be called every 100 ms or so from a thread that nothing blocks: ends
  // steps that take too long, and calls that hang on after a failure.
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
    std::string warning;
    bool loaded = false;
  };
  std::vector<RankProgress> Progress() const;
  // What a rank holds once its experts have moved.
  void SetResidentBytes(int rank, uint64_t bytes);

  uint64_t id() const { return id_; }
  // After Form: positions per slot, and which checkpoint all ranks have read.
  uint32_t context() const;
  std::string fingerprint() const;
  const std::vector<Member>& members() const { return members_; }
  const cluster::MeshShape& mesh() const { return options_.mesh; }
  WorkerClient& client(int rank) { return *clients_[rank]; }

  // After the end: whether loading failed in a way that trying again cannot
  // cure, and who has gone.
  bool permanent() const;
  std::vector<uint64_t> LostMembers() const;

 private:
  enum class Phase { kLoading, kConnecting, kRunning };

  struct Failure {
    int rank = 0;
    absl::Status status;  // As the worker or the connection told it.
    bool lost = false;    // Known to be gone.
    Phase phase = Phase::kLoading;
    bool stopping = false;  // The worker says that it is being stopped.
  };

  // Asks all ranks what they have, so that some can fetch it from others.
  absl::Status FindFiles();
  // Those ranks of which `loads` says so.
  absl::Status Load(const std::function<bool(int)>& loads);
  absl::Status ConnectAll();
  // Calls `call` for all ranks at once; the cause of the first failure.
  absl::Status OnEveryRank(const std::function<absl::Status(int)>& call);
  // As messages have it.
  v1::ExpertLayout Experts() const;
  v1::LoadRequest LoadRequestFor(int rank) const;
  uint64_t MemoryLimit(int rank) const;
  int RanksOnHost(int rank) const;
  void OnLoadProgress(int rank, const v1::LoadProgress& progress);
  // Ends the epoch unless a rank reads what the fleet has begun with.
  void CheckUnchanged(int rank, const std::string& fingerprint);
  // The rank itself, or of one that fetches a source of the same checkpoint.
  int RankWithFiles(int rank) const;
  // What two ranks read differently, if they can tell; else nothing.
  std::string CompareCheckpoints(int want, int got);
  void OnStepResult(int rank, v1::StepResult result);
  void Report(int rank, const absl::Status& status, bool lost,
              bool stopping = false);
  // Ends the epoch with a status that this process has found itself.
  void Decide(const absl::Status& verdict);
  bool Ended() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return !verdict_.ok() || !failures_.empty();
  }
  bool ResultsComplete() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool IsLost(const Failure& failure) const;
  int Weight(const Failure& failure) const;
  std::string Where(Phase phase) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
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
  Phase phase_ ABSL_GUARDED_BY(mu_) = Phase::kLoading;
  absl::Status verdict_ ABSL_GUARDED_BY(mu_);  // The cause, once decided.
  bool permanent_ ABSL_GUARDED_BY(mu_) = false;
  std::vector<Failure> failures_ ABSL_GUARDED_BY(mu_);  // At most one a rank.
  cluster::Deadline cancel_at_ ABSL_GUARDED_BY(mu_) =
      cluster::Deadline::Infinite();
  std::vector<RankProgress> progress_ ABSL_GUARDED_BY(mu_);
  // Who has which files, by rank, and what follows for those that lack some.
  std::vector<v1::FindCheckpointResponse> found_ ABSL_GUARDED_BY(mu_);
  std::vector<v1::FileSource> sources_ ABSL_GUARDED_BY(mu_);
  std::vector<std::string> fingerprints_ ABSL_GUARDED_BY(mu_);
  bool comparing_ ABSL_GUARDED_BY(mu_) = false;  // Two that differ.
  uint32_t context_ ABSL_GUARDED_BY(mu_) = 0;
  int unfinished_calls_ ABSL_GUARDED_BY(mu_) = 0;
  bool woken_ ABSL_GUARDED_BY(mu_) = false;
  // Steps sent and not yet merged, with the time by which each must be done.
  std::deque<std::pair<uint64_t, cluster::Deadline>> steps_
      ABSL_GUARDED_BY(mu_);
  uint64_t last_step_ ABSL_GUARDED_BY(mu_) = 0;  // Sent.
  std::vector<std::deque<v1::StepResult>> results_ ABSL_GUARDED_BY(mu_);

  // Last, so that their threads end before what they report to.
  std::vector<std::unique_ptr<WorkerClient>> clients_;
};

// Equal on all ranks that may connect: a hash of what they must agree in.
uint64_t ConfigHash(const FleetOptions& options, absl::string_view fingerprint,
                    uint32_t context);

}  // namespace ringfleet::coordinator

#endif  // RINGFLEET_COORDINATOR_FLEET_FLEET_EPOCH_H_
