// SPDX-License-Identifier: Apache-2.0
// The time of a step under each way of spreading a model over hosts. Workers
// run a mesh. The other ways are estimated, so that a plan can compare them.
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
  // The `data` axis divides sequences and caches. Heads are split over expert x
  // tensor. Experts are spread over data x expert. The columns of each expert
  // are split over `tensor`. Strategy.prefill says how prompts are evaluated.
  kMesh,
  // Each rank has consecutive layers.
  kPipeline,
};

struct Strategy {
  StrategyKind kind = StrategyKind::kMesh;
  cluster::MeshShape mesh;
  // Evaluation of prompts on a mesh. REPLICATED: each layer has two all-reduces
  // of activations, as in a decode step. SEQUENCE_PARALLEL: each rank has a
  // part of the tokens between blocks. WEIGHT_GATHER: each rank keeps a part of
  // the tokens and receives the weights of each layer. AUTO: prefill_strategy.h
  // decides.
  v1::PrefillStrategy prefill = v1::PREFILL_STRATEGY_AUTO;
  // "tensor 4", "replicated prefill, tensor 4", "layer pipeline 4", ...
  std::string Name() const;
  // True: workers can run this strategy.
  bool IsRunnable() const;
};

// Input of every StrategyCost: a model on a fleet. Immutable.
class ModelOnFleet {
 public:
  explicit ModelOnFleet(CostInputs inputs);
  ModelOnFleet(const ModelOnFleet&) = delete;
  ModelOnFleet& operator=(const ModelOnFleet&) = delete;

  const CostInputs& inputs() const { return inputs_; }
  int world() const { return static_cast<int>(inputs_.hosts.size()); }
  RankShare Share(const cluster::ShardPlan& plan, int rank) const;

 private:
  const CostInputs inputs_;
  const std::vector<cluster::ModelTensor> dense_;
  const std::vector<cluster::ModelTensor> moe_;
  const std::vector<cluster::ModelTensor> root_;
};

// Computes the cost of one strategy for one model and fleet. Requires
// mesh.world_size() == model.world().
class StrategyCost {
 public:
  // `model` must outlive this object.
  StrategyCost(const ModelOnFleet& model, const Strategy& strategy);

  const Strategy& strategy() const { return strategy_; }
  StepCost Step(const StepShape& step) const;
  // Returns the seconds of a prompt of `tokens` tokens in steps of `chunk`
  // tokens, as the coordinator plans them.
  double PrefillSeconds(int64_t tokens, int64_t chunk) const;

  cluster::ShardSizes Weights(int rank) const;
  // Returns a rank's cache for `batch` sequences of `context` positions.
  uint64_t CacheBytes(int rank, int64_t batch, int64_t context) const;

 private:
  // Returns the cost of a step on a mesh. Activations are replicated unless
  // `sequence_parallel`.
  StepCost MeshStep(const StepShape& step, bool sequence_parallel) const;
  // Adds the exchanges of a data group's sequence-parallel layers; `moe`:
  // layers with experts. Counts the part of the exchanges that products do not
  // hide, and the loss of products in pieces.
  void AddSequenceParallelExchange(const StepShape& step, bool moe, int layers,
                                   StepCost* cost) const;
  // Adds the exchanges of layers with experts between several data groups, each
  // with the tokens of `in_group`.
  void AddExpertExchange(const StepShape& in_group, int layers,
                         StepCost* cost) const;
  StepCost GatheredStep(const StepShape& step) const;
  StepCost PipelineStep(const StepShape& step) const;
  double PipelinePrefill(int64_t tokens, int64_t chunk) const;
  // Returns the cost of each pipeline stage for one step, without hops.
  std::vector<StepCost> Stages(const StepShape& step) const;
  uint64_t ActivationBytes(int64_t tokens) const;  // On the wire.
  int MoeLayers() const;

  const ModelOnFleet& model_;
  const Strategy strategy_;
  std::vector<RankShare> shares_;  // By rank.
  // Shares of ranks that gather weights, as if each rank had the whole model.
  std::vector<RankShare> whole_;
};

}  // namespace ringfleet::coordinator

#endif  // RINGFLEET_COORDINATOR_PLANNING_STRATEGY_COST_H_
