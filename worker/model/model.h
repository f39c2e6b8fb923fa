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
  // Least number of rows per rank with which sequence-parallel layers multiply
  // while they exchange rows. The sum over experts is fused only if
  // cluster::ExpertsHaveRows returns true, too.
  size_t fuse_rows = cluster::kMinShardedRows;
  // Largest number of routes that a coordinate takes in a layer, in multiples
  // of the coordinate's fair share (ExpertDispatch::LimitRoutes). 0: no limit.
  // Weight gathering ignores the limit.
  double expert_capacity = 0;
  // True if a row's bits must not depend on the rows beside it and on its data
  // group: the copy of an expert follows from the token alone
  // (ExpertDispatch::AssignByToken), and the sums of experts are added in the
  // order of data groups.
  bool reproducible = false;
  TunedTiles tiles;
};

// One rank's part of a model in one epoch. Belongs to the executor's thread.
// The threads of `pool` work for the model during a call.
class Model {
 public:
  // All arguments but `settings` must outlive the model. `communicator` spans
  // the ranks of this rank's data group. `data_axis` spans the data groups: the
  // ranks whose coordinates on the expert and tensor axes equal this rank's.
  // Null: there is one data group. Experts may move between calls if `layout`
  // and `weights` change together on all ranks.
  Model(const cluster::ModelSpec& spec, const cluster::ShardPlan& plan,
        const cluster::ExpertLayout& layout, const Weights& weights,
        kernels::ThreadPool& pool, KvCache& cache,
        TimedCommunicator& communicator, TimedCommunicator* data_axis,
        const ModelSettings& settings);

  // Returns the number of layers that need a cache: those of the main model,
  // and the MTP layers of `weights`.
  static int CacheLayers(const cluster::ModelSpec& spec,
                         const Weights& weights);

  // Evaluates the layers for a step by `strategy`.
  //   wanted: indices of rows in the batch, ascending, equal on all ranks of
  //     the data group
  //   hidden [rows, D] f32: output after the final norm, with the same bits on
  //     every rank of the data group; only the wanted rows are set
  // Requires ids below the vocabulary's size, and cache blocks for the batch's
  // positions. Either all ranks have an observer or none has. All data groups
  // call Forward together, each with its own batch. A batch may be empty.
  // Errors: those of the collectives. The epoch is over.
  absl::Status Forward(const StepStrategy& strategy, const Batch& batch,
                       absl::Span<const uint32_t> wanted,
                       std::optional<StepObserver> observer, float* hidden);

  // Evaluates the multi-token prediction layer (DeepSeek-V3, arXiv:2412.19437,
  // section 2.2), which predicts the token after the next one.
  //   next.ids[i]: the token at the position after row i
  //   hidden [rows, D] f32: input, after the final norm
  //   out [rows, D] f32: output, the input of Logits; must not overlap hidden
  // Requires has_mtp(). All data groups call ForwardMtp together.
  // Errors: those of the collectives. The epoch is over.
  absl::Status ForwardMtp(const Batch& next, const float* hidden, float* out);
  // ModelSettings::reproducible.
  bool reproducible() const { return settings_.reproducible; }
  bool has_mtp() const { return !weights_.mtp.empty(); }

  // Computes logits = hidden W_head^T for this rank's part of the vocabulary.
  //   hidden [rows, D] f32     logits [rows, plan().vocab.size()] f32
  void Logits(const float* hidden, size_t rows, float* logits);

  const cluster::ModelSpec& spec() const { return spec_; }
  const cluster::ShardPlan& plan() const { return plan_; }
  TimedCommunicator& communicator() { return communicator_; }
  kernels::ThreadPool& pool() { return pool_; }
  // Number of tokens per [layer][expert] over all calls so far; empty for dense
  // layers. The caller may take and zero the counts between calls.
  std::vector<std::vector<uint64_t>>& expert_counts() { return expert_counts_; }
  // Number of routes per [layer] that ExpertDispatch::LimitRoutes has dropped.
  std::vector<uint64_t>& dropped_counts() { return dropped_counts_; }
  // Bytes of weights and cache that all calls have needed so far
  // (StepResult.bytes_read).
  uint64_t bytes_read() const { return bytes_read_; }

 private:
  LayerContext MakeContext();
  // Sets group_rows_ for a pass in which this data group has `rows` rows.
  // Errors: those of AllGather. DATA_LOSS: a data group has more rows than any
  // plan.
  absl::Status ShareRowCounts(size_t rows);

  const cluster::ModelSpec& spec_;
  const cluster::ShardPlan& plan_;
  const std::vector<cluster::ShardPlan> plans_;  // By rank in the world.
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
