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

// What all ranks of an epoch agree on.
struct EpochSettings {
  ModelSettings model;
  v1::PrefillStrategy prefill_strategy = v1::PREFILL_STRATEGY_AUTO;
  absl::Duration collective_timeout = absl::InfiniteDuration();
  int context = 0;  // Positions in each slot.
};

// A loaded shard connected with its peers: what a Run stream drives. Step is
// called by one thread, whose shard it is alone; Abort from any.
class WorkerEpoch {
 public:
  // Reserves the caches for settings.context positions in each slot. `recorder`
  // and `trace` (may be null) must outlive the epoch.
  //
  // Errors: RESOURCE_EXHAUSTED: the system has no memory for them.
  static absl::StatusOr<std::shared_ptr<WorkerEpoch>> Create(
      uint64_t epoch, std::shared_ptr<LoadedShard> shard,
      std::shared_ptr<ExpertStatistics> statistics,
      std::unique_ptr<cluster::Transport> transport,
      cluster::AlgorithmTable table, cluster::FlightRecorder* recorder,
      cluster::TraceRecorder* trace, const EpochSettings& settings);

  ~WorkerEpoch();

  absl::Status Step(const v1::StepPlan& plan, v1::StepResult* result);

  // Loads what this rank lacks for `changes` beside what it has, for a plan
  // that names `number`; replaces what was prepared before. Any thread may call
  // it, one at a time.
  //
  // Errors: those of ExpertLayout::Merge and StageExperts; INVALID_ARGUMENT: a
  // layer without experts; CANCELLED: the epoch has been aborted.
  absl::Status PrepareExperts(
      uint64_t number, const v1::ExpertLayout& changes,
      uint64_t available_bytes, const std::string& coordinator,
      cluster::CancellableCalls* fetching,
      absl::FunctionRef<absl::Status(uint64_t done, uint64_t total)> report);

  // Wakes a step that waits for peers; it ends with the first cause.
  void Abort(const absl::Status& cause) {
    aborted_ = true;
    transport_->Abort(cause);
  }

  uint64_t id() const { return id_; }
  uint64_t cache_bytes() const;

  // Each kernel thread has a CPU of its own: the one that calls Step is to stay
  // on the first.
  bool pinned() const { return shard_->pool->pinned(); }

 private:
  // Cache and model of one set of weights.
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

  absl::Status SwitchTo(uint64_t number);

  const uint64_t id_;
  const std::shared_ptr<LoadedShard> shard_;
  std::atomic<bool> aborted_ = false;
  Mutex mu_;
  // The shard's, for other threads than Step's.
  cluster::ExpertLayout layout_ ABSL_GUARDED_BY(mu_);
  // For the plan that names the number; 0: none.
  uint64_t staged_number_ ABSL_GUARDED_BY(mu_) = 0;
  std::optional<StagedWeights> staged_ ABSL_GUARDED_BY(mu_);
  const std::shared_ptr<ExpertStatistics> statistics_;
  std::unique_ptr<cluster::Transport> transport_;
  cluster::GroupCommunicator communicator_;  // Of the data group.
  TimedCommunicator timed_;
  // Over data groups; null where there is one.
  const std::unique_ptr<cluster::GroupCommunicator> data_communicator_;
  const std::unique_ptr<TimedCommunicator> data_axis_;
  Instance main_;
  std::optional<Instance> reference_;
  Executor executor_;
};

}  // namespace ringfleet::worker

#endif  // RINGFLEET_WORKER_EXECUTION_WORKER_EPOCH_H_
