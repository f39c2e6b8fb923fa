// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_WORKER_MODEL_MODEL_H_
#define RINGFLEET_WORKER_MODEL_MODEL_H_

#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "cluster/collectives/communicator.h"
#include "cluster/model/expert_layout.h"
#include "cluster/model/model_spec.h"
#include "cluster/model/prefill_strategy.h"
#include "cluster/model/shard_plan.h"
#include "kernels/attention/rope.h"
#include "kernels/thread_pool.h"
#include "worker/fused/tuned_tiles.h"
#include "worker/model/batch.h"
#include "worker/model/kv_cache.h"
#include "worker/model/layer_context.h"
#include "worker/model/step_strategy.h"
#include "worker/model/weights.h"

namespace ringfleet::worker {

// What all ranks of an epoch agree in.
struct ModelSettings {
  cluster::Wire wire = cluster::Wire::kF32;
  // Rows per rank from which sequence-parallel layers multiply while they
  // exchange rows, and do not do one after the other; experts only where
  // cluster::ExpertsHaveRows.
  size_t fuse_rows = cluster::kMinShardedRows;
  // Routes that a place takes in a layer, in fair shares, but where weights are
  // gathered; 0: all (ExpertDispatch::LimitPlaces).
  double expert_capacity = 0;
  TunedTiles tiles;
};

// One rank's part of a model, in one epoch. The executor's thread calls it;
// `pool` works for it during a call.
class Model {
 public:
  // All arguments must outlive the model. `communicator` spans the ranks of
  // this rank's data group, `data_axis` those that have its place in each
  // group; null where there is one group. Between calls, on all ranks alike,
  // experts may move: in `layout` and with it in `weights`.
  Model(const cluster::ModelSpec& spec, const cluster::ShardPlan& plan,
        const cluster::ExpertLayout& layout, const Weights& weights,
        kernels::ThreadPool& pool, KvCache& cache,
        TimedCommunicator& communicator, TimedCommunicator* data_axis,
        const ModelSettings& settings);

  // Layers that need a cache: the main model's, and the MTP layer's behind.
  static int CacheLayers(const cluster::ModelSpec& spec,
                         const Weights& weights);

  // Evaluates a step: hidden [rows, D] f32 after the final norm, the same bits
  // on every rank of the data group, in the `wanted` rows (ascending, the same
  // on each); other rows are unspecified. Requires ids below the vocabulary's
  // size, and slots that hold blocks for the batch's positions. All ranks
  // observe or none. All data groups call it, with their own batches, which may
  // be empty; the same holds for ForwardMtp.
  // Errors: of the collectives; the epoch is over.
  absl::Status Forward(const StepStrategy& strategy, const Batch& batch,
                       absl::Span<const uint32_t> wanted,
                       std::optional<StepObserver> observer, float* hidden);

  // The multi-token prediction layer (DeepSeek-V3, arXiv:2412.19437, section
  // 2.2) at the batch's positions: from hidden [rows, D] after the final norm
  // and the ids that follow, what predicts the ids after those.
  //   next.ids[i] is the token behind the position of row i
  //   out [rows, D] f32, ready for the head; may not overlap hidden
  // Requires has_mtp().
  absl::Status ForwardMtp(const Batch& next, const float* hidden, float* out);
  bool has_mtp() const { return !weights_.mtp.empty(); }

  // logits [rows, plan().vocab.size()] = hidden W_head^T, this rank's rows.
  void Logits(const float* hidden, size_t rows, float* logits);

  const cluster::ModelSpec& spec() const { return spec_; }
  const cluster::ShardPlan& plan() const { return plan_; }
  TimedCommunicator& communicator() { return communicator_; }
  kernels::ThreadPool& pool() { return pool_; }
  // Exact tokens per [layer][expert], empty for dense layers.
  std::vector<std::vector<uint64_t>>& expert_counts() { return expert_counts_; }
  // Of these, by layer, those that no place took.
  std::vector<uint64_t>& dropped_counts() { return dropped_counts_; }
  // Of weights and cache that the calls above needed, since the model was made
  // (StepResult.bytes_read).
  uint64_t bytes_read() const { return bytes_read_; }

 private:
  LayerContext MakeContext();
  // How many rows each data group has in the pass that begins.
  absl::Status ShareRowCounts(size_t rows);

  const cluster::ModelSpec& spec_;
  const cluster::ShardPlan& plan_;
  const std::vector<cluster::ShardPlan> plans_;  // Of all ranks.
  const cluster::ExpertLayout& layout_;
  const Weights& weights_;
  const kernels::Rope rope_;
  const float softmax_scale_;
  kernels::ThreadPool& pool_;
  KvCache& cache_;
  TimedCommunicator& communicator_;
  TimedCommunicator* const data_axis_;
  const ModelSettings settings_;
  Workspace workspace_;
  GroupRows group_rows_;
  std::vector<uint64_t> row_counts_;  // By group.
  std::vector<float> mtp_concat_;     // [rows, 2 D]
  std::vector<std::vector<uint64_t>> expert_counts_;
  std::vector<uint64_t> dropped_counts_;
  uint64_t bytes_read_ = 0;
};

}  // namespace ringfleet::worker

#endif  // RINGFLEET_WORKER_MODEL_MODEL_H_
