// SPDX-License-Identifier: Apache-2.0
// Predicts the time of a step under each way to spread a model over hosts.
// Workers can run a mesh. Other ways are predicted only for comparison.
#ifndef RINGFLEET_COORDINATOR_PLANNING_STRATEGY_COST_H_
#define RINGFLEET_COORDINATOR_PLANNING_STRATEGY_COST_H_

#include <cstdint>
#include <string>
#include <vector>

#include "cluster/model/prefill_strategy.h"
#include "cluster/model/shard_plan.h"
#include "cluster/model/shard_sizes.h"
#include "coordinator/planning/step_cost.h"

namespace ringfleet::coordinator {

enum class StrategyKind : uint8_t {
  // A mesh of data x expert x tensor ranks. Sequences and caches are split over
  // `data`, heads over expert x tensor, experts over data x expert, and the
  // columns of each expert over `tensor`. Strategy::prefill tells how prompts
  // are evaluated.
  kMesh,
  // A pipeline. Each rank has consecutive layers.
  kPipeline,
};

struct Strategy {
  StrategyKind kind = StrategyKind::kMesh;
  cluster::MeshShape mesh;
  // The way in which a mesh evaluates prompts.
  //   REPLICATED: each layer has two all-reduces of activations, as in a decode
  //     step
  //   SEQUENCE_PARALLEL: each rank has a part of the rows between products
  //   WEIGHT_GATHER: each rank has a part of the rows and receives the weights
  //     of each layer
  //   AUTO: StrategyOfStep chooses one of the three for each step
  //     (prefill_strategy.h)
  v1::PrefillStrategy prefill = v1::PREFILL_STRATEGY_AUTO;
  // Returns a name such as "tensor 4", "replicated prefill, tensor 4" or "layer
  // pipeline 4".
  std::string Name() const;
  // Returns whether workers can run this strategy.
  bool IsRunnable() const;
};

// A model on a fleet, which all StrategyCost objects share. Immutable.
class ModelOnFleet {
 public:
  explicit ModelOnFleet(CostInputs inputs);
  ModelOnFleet(const ModelOnFleet&) = delete;
  ModelOnFleet& operator=(const ModelOnFleet&) = delete;

  const CostInputs& inputs() const { return inputs_; }
  // Number of ranks. Each host has one rank.
  int world() const { return static_cast<int>(inputs_.hosts.size()); }
  // Returns the share by `plan` on the host of `rank`.
  RankShare Share(const cluster::ShardPlan& plan, int rank) const;

 private:
  const CostInputs inputs_;
  const std::vector<cluster::ModelTensor> dense_;
  const std::vector<cluster::ModelTensor> moe_;
  const std::vector<cluster::ModelTensor> root_;
};

// Predicts the cost of one strategy for one model and fleet.
class StrategyCost {
 public:
  // Requires strategy.mesh.world_size() == model.world(). `model` must outlive
  // this object.
  StrategyCost(const ModelOnFleet& model, const Strategy& strategy);

  const Strategy& strategy() const { return strategy_; }
  // Returns the cost of one step.
  StepCost Step(const StepShape& step) const;
  // Returns the seconds of a prompt of `tokens` tokens. Each step evaluates
  // `chunk` tokens of the prompt.
  double PrefillSeconds(int64_t tokens, int64_t chunk) const;

  // Returns the bytes of a rank's weights.
  cluster::ShardSizes Weights(int rank) const;
  // Returns the bytes of a rank's cache for `batch` sequences of `context`
  // positions each.
  uint64_t CacheBytes(int rank, int64_t batch, int64_t context) const;

 private:
  // Returns the cost of a step on a mesh, replicated or sequence-parallel.
  StepCost MeshStep(const StepShape& step, bool sequence_parallel) const;
  // Adds the exchanges of `layers` sequence-parallel layers in one data group.
  // `moe`: the layers have experts. Counts only the part of an exchange that is
  // longer than the products beside it. Adds the loss of products that run in
  // pieces.
  void AddSequenceParallelExchange(const StepShape& step, bool moe, int layers,
                                   StepCost* cost) const;
  // Adds the exchanges between data groups of `layers` layers with experts.
  // Each data group has the tokens of `in_group`.
  void AddExpertExchange(const StepShape& in_group, int layers,
                         StepCost* cost) const;
  // Return the cost of a step with gathered weights, or on a pipeline.
  StepCost GatheredStep(const StepShape& step) const;
  StepCost PipelineStep(const StepShape& step) const;
  // Returns the seconds of a prompt on a pipeline.
  double PipelinePrefill(int64_t tokens, int64_t chunk) const;
  // Returns the cost of each pipeline stage for one step, without the exchanges
  // between stages.
  std::vector<StepCost> Stages(const StepShape& step) const;
  // Returns the bytes of activations of `tokens` tokens on the wire.
  uint64_t ActivationBytes(int64_t tokens) const;
  int MoeLayers() const;

  const ModelOnFleet& model_;
  const Strategy strategy_;
  std::vector<RankShare> shares_;  // By rank.
  // Shares of the whole model on each rank's host, for gathered weights. By
  // rank.
  std::vector<RankShare> whole_;
};

}  // namespace ringfleet::coordinator

#endif  // RINGFLEET_COORDINATOR_PLANNING_STRATEGY_COST_H_
