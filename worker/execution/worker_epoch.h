// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_WORKER_EXECUTION_WORKER_EPOCH_H_
#define RINGFLEET_WORKER_EXECUTION_WORKER_EPOCH_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "cluster/collectives/algorithm_table.h"
#include "cluster/collectives/group_communicator.h"
#include "cluster/transport/transport.h"
#include "kernels/mutex.h"
#include "worker/execution/executor.h"
#include "worker/execution/expert_statistics.h"
#include "worker/execution/loaded_shard.h"
#include "worker/execution/stage_experts.h"
#include "worker/fused/timed_communicator.h"
#include "worker/model/kv_cache.h"
#include "worker/model/model.h"

namespace ringfleet::worker {

// Settings of an epoch. All ranks have equal settings.
struct EpochSettings {
  ModelSettings model;
  v1::PrefillStrategy prefill_strategy = v1::PREFILL_STRATEGY_AUTO;
  absl::Duration collective_timeout = absl::InfiniteDuration();
  int context = 0;       // Most positions of a sequence.
  int cache_blocks = 0;  // In the data group's cache.
};

// A loaded shard that is connected with its peers. The plans of a Run stream
// drive the epoch. One thread calls Step, and nobody else uses the shard during
// Step. Any thread may call Abort.
class WorkerEpoch {
 public:
  // Reserves the caches' settings.cache_blocks blocks. `recorder`
  // and `trace` may be null. Both must outlive the epoch.
  //
  // Errors: RESOURCE_EXHAUSTED: the system has no memory for the caches.
  static absl::StatusOr<std::shared_ptr<WorkerEpoch>> Create(
      uint64_t epoch, std::shared_ptr<LoadedShard> shard,
      std::shared_ptr<ExpertStatistics> statistics,
      std::unique_ptr<cluster::Transport> transport,
      cluster::AlgorithmTable table, cluster::FlightRecorder* recorder,
      cluster::TraceRecorder* trace, const EpochSettings& settings);

  ~WorkerEpoch();

  // Switches to prepared experts if the plan has an expert_move, then executes
  // the plan. An error aborts the epoch on all ranks.
  // Errors: those of Executor::Step. FAILED_PRECONDITION: PrepareExperts has
  // not prepared the plan's expert_move.
  absl::Status Step(const v1::StepPlan& plan, v1::StepResult* result);

  // Loads the experts that this rank lacks after `changes`, and keeps them
  // until Step executes the plan whose expert_move is `number`. Drops the
  // experts of an earlier PrepareExperts. Any thread may call PrepareExperts,
  // one thread at a time.
  //
  // Errors: those of ExpertLayout::Merge and StageExperts. INVALID_ARGUMENT: a
  // layer in `changes` has no experts. CANCELLED: the epoch has been aborted.
  absl::Status PrepareExperts(
      uint64_t number, const v1::ExpertLayout& changes,
      uint64_t available_bytes, const std::string& coordinator,
      cluster::CancellableCalls* fetching,
      absl::FunctionRef<absl::Status(uint64_t done, uint64_t total)> report);

  // Aborts the epoch. A step that waits for peers wakes and returns the first
  // cause of all Abort calls. Any thread may call Abort.
  void Abort(const absl::Status& cause) {
    aborted_ = true;
    transport_->Abort(cause);
  }

  uint64_t id() const { return id_; }
  // Returns where experts are. Any thread may call it.
  cluster::ExpertLayout layout() {
    MutexLock lock(&mu_);
    return layout_;
  }
  // Bytes of the model's cache and of the reference's cache.
  uint64_t cache_bytes() const;

  // Returns whether each thread of the pool has a CPU of its own. The thread
  // that calls Step must then stay on the first of the CPUs.
  bool pinned() const { return shard_->pool->pinned(); }

 private:
  // The model and the cache of one set of weights.
  struct Instance {
    Instance(LoadedShard& shard, const Weights& weights, KvCache reserved,
             TimedCommunicator& communicator, TimedCommunicator* data_axis,
             const ModelSettings& settings);
    KvCache cache;
    Model model;
  };

  WorkerEpoch(uint64_t epoch, std::shared_ptr<LoadedShard> shard,
              std::shared_ptr<ExpertStatistics> statistics,
              std::unique_ptr<cluster::Transport> transport,
              cluster::AlgorithmTable table, cluster::FlightRecorder* recorder,
              cluster::TraceRecorder* trace, const EpochSettings& settings,
              KvCache cache, std::optional<KvCache> reference_cache);

  // Moves the experts of expert_move `number` into the weights.
  absl::Status SwitchTo(uint64_t number);

  const uint64_t id_;
  const std::shared_ptr<LoadedShard> shard_;
  const cluster::FlightRecorder* const recorder_;
  std::atomic<bool> aborted_ = false;
  Mutex mu_;
  // Copy of the shard's layout, for threads other than the thread of Step.
  cluster::ExpertLayout layout_ ABSL_GUARDED_BY(mu_);
  // The expert_move for which staged_ was loaded. 0: nothing is staged.
  uint64_t staged_number_ ABSL_GUARDED_BY(mu_) = 0;
  std::optional<StagedWeights> staged_ ABSL_GUARDED_BY(mu_);
  const std::shared_ptr<ExpertStatistics> statistics_;
  std::unique_ptr<cluster::Transport> transport_;
  cluster::GroupCommunicator communicator_;  // Spans this data group's ranks.
  TimedCommunicator timed_;
  // Spans the data groups; null: there is one.
  const std::unique_ptr<cluster::GroupCommunicator> data_communicator_;
  const std::unique_ptr<TimedCommunicator> data_axis_;
  Instance main_;
  std::optional<Instance> reference_;
  Executor executor_;
};

}  // namespace ringfleet::worker

#endif  // RINGFLEET_WORKER_EXECUTION_WORKER_EPOCH_H_
