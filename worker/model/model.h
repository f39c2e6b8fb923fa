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

// Settings of a model, equal on all ranks of an epoch.
struct ModelSettings {
  // Type of summands between ranks.
  cluster::Wire wire = cluster::Wire::kF32;
  // Rows per rank from which sequence-parallel layers multiply while they
  // exchange rows. Sums of experts also need cluster::ExpertsHaveRows.
  size_t fuse_rows = cluster::kMinShardedRows;
  // Most routes that a coordinate takes in a layer, in multiples of its fair
  // share (ExpertDispatch::LimitRoutes). 0: no limit. Weight gathering ignores
  // the limit.
  double expert_capacity = 0;
  TunedTiles tiles;
};

// One rank's part of a model in one epoch. Belongs to the executor's thread;
// `pool` works for it during a call.
class Model {
 public:
  // All arguments but `settings` must outlive the model. `communicator` spans
  // the ranks of this rank's data group. `data_axis` spans the ranks with the
  // same coordinates in all data groups; null: there is one group. Experts may
  // move between calls, in `layout` and `weights` together, on all ranks alike.
  Model(const cluster::ModelSpec& spec, const cluster::ShardPlan& plan,
        const cluster::ExpertLayout& layout, const Weights& weights,
        kernels::ThreadPool& pool, KvCache& cache,
        TimedCommunicator& communicator, TimedCommunicator* data_axis,
        const ModelSettings& settings);

  // Returns the number of layers with a cache: the main model's, then the MTP
  // layer's.
  static int CacheLayers(const cluster::ModelSpec& spec,
                         const Weights& weights);

  // Evaluates a step by `strategy`.
  //   wanted: rows of the batch, ascending, equal in the whole data group
  //   hidden [rows, D] f32: output after the final norm, with the same bits on
  //     every rank of the data group; only the wanted rows are set
  // Requires ids below the vocabulary's size, and cache blocks for the batch's
  // positions. Either all ranks have an observer or none. All data groups call
  // it together with their own batches, which may be empty.
  // Errors: those of the collectives. The epoch is over.
  absl::Status Forward(const StepStrategy& strategy, const Batch& batch,
                       absl::Span<const uint32_t> wanted,
                       std::optional<StepObserver> observer, float* hidden);

  // Evaluates the multi-token prediction layer (DeepSeek-V3, arXiv:2412.19437,
  // section 2.2), which predicts the token after the next one.
  //   next.ids[i]: the token behind the position of row i
  //   hidden [rows, D] f32: input, after the final norm
  //   out [rows, D] f32: ready for the head; may not overlap hidden
  // Requires has_mtp(). All data groups call it together, as Forward.
  // Errors: those of the collectives. The epoch is over.
  absl::Status ForwardMtp(const Batch& next, const float* hidden, float* out);
  bool has_mtp() const { return !weights_.mtp.empty(); }

  // Computes hidden W_head^T for this rank's part of the vocabulary.
  //   hidden [rows, D] f32     logits [rows, plan().vocab.size()] f32
  void Logits(const float* hidden, size_t rows, float* logits);

  const cluster::ModelSpec& spec() const { return spec_; }
  const cluster::ShardPlan& plan() const { return plan_; }
  TimedCommunicator& communicator() { return communicator_; }
  kernels::ThreadPool& pool() { return pool_; }
  // Exact tokens per [layer][expert], empty for dense layers. The caller may
  // take and zero the counts between calls.
  std::vector<std::vector<uint64_t>>& expert_counts() { return expert_counts_; }
  // Routes per [layer] that no coordinate took.
  std::vector<uint64_t>& dropped_counts() { return dropped_counts_; }
  // Bytes of weights and cache that all calls have needed so far
  // (StepResult.bytes_read).
  uint64_t bytes_read() const { return bytes_read_; }

 private:
  LayerContext MakeContext();
  // Sets group_rows_ for a pass in which this data group has `rows` rows.
  // Errors: those of AllGather; DATA_LOSS: a count that no plan has.
  absl::Status ShareRowCounts(size_t rows);

  const cluster::ModelSpec& spec_;
  const cluster::ShardPlan& plan_;
  const std::vector<cluster::ShardPlan> plans_;  // All ranks'.
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
  std::vector<uint64_t> row_counts_;  // By data group.
  std::vector<float> mtp_concat_;     // [rows, 2 D]
  std::vector<std::vector<uint64_t>> expert_counts_;
  std::vector<uint64_t> dropped_counts_;
  uint64_t bytes_read_ = 0;
};

}  // namespace ringfleet::worker

#endif  // RINGFLEET_WORKER_MODEL_MODEL_H_
