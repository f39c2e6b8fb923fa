// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_WORKER_EPOCH_H_
#define RINGFLEET_WORKER_EPOCH_H_

#include <cstdint>
#include <memory>
#include <optional>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "cluster/algorithm_table.h"
#include "cluster/group_communicator.h"
#include "cluster/transport.h"
#include "worker/executor.h"
#include "worker/expert_statistics.h"
#include "worker/kv_cache.h"
#include "worker/loaded_shard.h"
#include "worker/model.h"
#include "worker/timed_communicator.h"

namespace ringfleet::worker {

// A loaded shard connected with its peers: what a Run stream drives. Step is
// called by one thread; Abort from any.
class Epoch {
 public:
  // Reserves the caches for `context` positions in each slot. `recorder` and
  // `trace` (may be null) must outlive the epoch.
  //
  // Errors: RESOURCE_EXHAUSTED: the system has no memory for them.
  static absl::StatusOr<std::shared_ptr<Epoch>> Create(
      uint64_t epoch, std::shared_ptr<LoadedShard> shard,
      std::shared_ptr<ExpertStatistics> statistics,
      std::unique_ptr<cluster::Transport> transport,
      cluster::AlgorithmTable table, cluster::FlightRecorder* recorder,
      cluster::TraceRecorder* trace, const ModelSettings& settings,
      absl::Duration collective_timeout, int context);

  ~Epoch();

  absl::Status Step(const v1::StepPlan& plan, v1::StepResult* result);

  // Wakes a step that waits for peers; it ends with the first cause.
  void Abort(const absl::Status& cause) { transport_->Abort(cause); }

  uint64_t cache_bytes() const;

  // Each kernel thread has a CPU of its own: the one that calls Step is to stay
  // on the first.
  bool pinned() const { return shard_->pool->pinned(); }

 private:
  // Cache and model of one set of weights.
  struct Instance {
    Instance(LoadedShard& shard, const Weights& weights, KvCache reserved,
             TimedCommunicator& communicator, const ModelSettings& settings);
    KvCache cache;
    Model model;
  };

  Epoch(uint64_t epoch, std::shared_ptr<LoadedShard> shard,
        std::shared_ptr<ExpertStatistics> statistics,
        std::unique_ptr<cluster::Transport> transport,
        cluster::AlgorithmTable table, cluster::FlightRecorder* recorder,
        cluster::TraceRecorder* trace, const ModelSettings& settings,
        absl::Duration collective_timeout, KvCache cache,
        std::optional<KvCache> reference_cache);

  const std::shared_ptr<LoadedShard> shard_;
  const std::shared_ptr<ExpertStatistics> statistics_;
  std::unique_ptr<cluster::Transport> transport_;
  cluster::GroupCommunicator communicator_;
  TimedCommunicator timed_;
  Instance main_;
  std::optional<Instance> reference_;
  Executor executor_;
};

}  // namespace ringfleet::worker

#endif  // RINGFLEET_WORKER_EPOCH_H_
