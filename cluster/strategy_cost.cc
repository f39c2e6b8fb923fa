// SPDX-License-Identifier: Apache-2.0
#include "cluster/strategy_cost.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cluster/algorithm_table.h"
#include "cluster/wire_format.h"
#include "kernels/check.h"

namespace ringfleet::cluster {
namespace {

// Of one rank's summary of a row of logits, which ranks gather to draw.
constexpr uint64_t kDrawBytes = 32;

ModelSpec WithOwnHead(ModelSpec spec) {
  spec.tie_word_embeddings = false;  // A tied head is a matrix all the same.
  return spec;
}

int64_t CeilDivide(int64_t a, int64_t b) { return (a + b - 1) / b; }

// The share of a rank under a strategy.
ShardPlan PlanFor(const ModelSpec& spec, const Strategy& strategy, int rank) {
  MeshShape mesh = strategy.mesh;
  if (strategy.kind == StrategyKind::kGatheredWeights ||
      strategy.kind == StrategyKind::kPipeline) {
    return PlanShard(spec, {}, 0).value();
  }
  const int groups = mesh.data;
  mesh = {.data = 1, .expert = groups * mesh.expert, .tensor = mesh.tensor};
  ShardPlan plan = PlanShard(spec, mesh, rank).value();
  if (groups > 1) {
    const int size = strategy.mesh.world_size() / groups;
    plan.heads = SplitRange(spec.num_attention_heads, size, rank % size);
  }
  return plan;
}

}  // namespace

std::string Strategy::Name() const {
  const auto axes = [this] {
    if (mesh.expert == 1) return absl::StrCat("tensor ", mesh.tensor);
    if (mesh.tensor == 1) return absl::StrCat("expert ", mesh.expert);
    return absl::StrCat("expert ", mesh.expert, " x tensor ", mesh.tensor);
  };
  switch (kind) {
    case StrategyKind::kMesh:
      return axes();
    case StrategyKind::kDataGroups:
      return absl::StrCat("data ", mesh.data, " x ", axes());
    case StrategyKind::kSequenceParallel:
      return absl::StrCat("sequence-parallel prefill, ", axes());
    case StrategyKind::kGatheredWeights:
      return absl::StrCat("weight gathering ", mesh.world_size());
    case StrategyKind::kPipeline:
      return absl::StrCat("layer pipeline ", mesh.world_size());
  }
  return "";
}

bool Strategy::IsRunnable() const {
  return (kind == StrategyKind::kMesh ||
          kind == StrategyKind::kSequenceParallel) &&
         mesh.data == 1 && mesh.world_size() <= kMaxGroupSize;
}

ModelOnFleet::ModelOnFleet(CostInputs inputs)
    : inputs_(std::move(inputs)),
      dense_(LayerTensors(inputs_.spec, false)),
      moe_(LayerTensors(inputs_.spec, true)),
      root_(RootTensors(WithOwnHead(inputs_.spec))) {}

RankShare ModelOnFleet::Share(const ShardPlan& plan, int rank) const {
  return RankShare(inputs_, dense_, moe_, root_, plan, inputs_.hosts[rank]);
}

StrategyCost::StrategyCost(const ModelOnFleet& model, const Strategy& strategy)
    : model_(model), strategy_(strategy) {
  RF_CHECK(strategy.mesh.world_size() == model.world());
  shares_.reserve(model.world());
  for (int rank = 0; rank < model.world(); ++rank) {
    shares_.push_back(
        model.Share(PlanFor(model.inputs().spec, strategy, rank), rank));
  }
}

uint64_t StrategyCost::ActivationBytes(int64_t tokens) const {
  const auto hidden = static_cast<size_t>(model_.inputs().spec.hidden_size);
  return WireFormat(model_.inputs().wire, hidden)
      .EncodedBytes(0, static_cast<size_t>(tokens) * hidden);
}

int StrategyCost::MoeLayers() const {
  const ModelSpec& spec = model_.inputs().spec;
  int layers = 0;
  for (int i = 0; i < spec.num_hidden_layers; ++i) {
    layers += spec.IsMoeLayer(i) ? 1 : 0;
  }
  return layers;
}

StepCost StrategyCost::Step(const StepShape& step) const {
  switch (strategy_.kind) {
    case StrategyKind::kGatheredWeights:
      return GatheredStep(step);
    case StrategyKind::kPipeline:
      return PipelineStep(step);
    default:
      return MeshStep(step);
  }
}

StepCost StrategyCost::MeshStep(const StepShape& step) const {
  const ModelSpec& spec = model_.inputs().spec;
  const NetworkSpec& network = model_.inputs().network;
  const int world = model_.world();
  const int groups = strategy_.mesh.data;
  const int layers = spec.num_hidden_layers;
  const int moe_layers = MoeLayers();
  const double tokens = static_cast<double>(step.tokens());
  StepShape in_group = step;
  in_group.sequences = CeilDivide(step.sequences, groups);

  StepCost cost;
  double moe = 0;
  double dense = 0;
  for (const RankShare& share : shares_) {
    const PartCost attention = share.Attention(in_group);
    const PartCost mlp = share.DenseMlp(tokens);
    cost.attention = std::max(cost.attention, attention.seconds);
    dense = std::max(dense, mlp.seconds);
    cost.bytes_read += attention.bytes * layers;
    cost.bytes_read += mlp.bytes * (layers - moe_layers);
    if (moe_layers > 0) {
      const PartCost experts = share.Moe(tokens, /*busiest=*/true);
      moe = std::max(moe, experts.seconds);
      cost.bytes_read += experts.bytes * moe_layers;
    }
    if (step.draws) {
      const PartCost head = share.Head(static_cast<double>(step.sequences));
      cost.head = std::max(cost.head, head.seconds);
      cost.bytes_read += head.bytes;
    }
  }
  cost.attention *= layers;
  cost.feed_forward = dense * (layers - moe_layers) + moe * moe_layers;
  cost.overhead = kLayerOverheadSeconds * layers;
  if (world == 1) return cost;

  const auto add = [&cost](const ExchangeCost& exchange, int times) {
    cost.exchange += times * exchange.seconds;
    cost.wire_bytes += times * exchange.sent_bytes;
  };
  if (strategy_.kind == StrategyKind::kSequenceParallel && step.rows > 1) {
    // Latents, activations; the sums of attention and of experts. They travel
    // while products run.
    const uint64_t hidden = ActivationBytes(step.tokens());
    const uint64_t latents =
        hidden * (spec.q_lora_rank + spec.cache_row()) / spec.hidden_size;
    add(AllGatherCost(latents, world, network), layers);
    add(AllGatherCost(hidden, world, network), 3 * layers);
    cost.collectives = 4 * layers;
    const double hidden_behind = cost.attention + cost.feed_forward;
    cost.exchange =
        std::max(0.1 * cost.exchange, cost.exchange - hidden_behind);
  } else if (groups > 1) {
    add(AllReduceCost(ActivationBytes(in_group.tokens()), world / groups,
                      network),
        layers);
    add(AllGatherCost(ActivationBytes(step.tokens()), groups, network), layers);
    add(AllReduceCost(ActivationBytes(step.tokens()), world, network), layers);
    cost.collectives = 3 * layers;
  } else {
    add(AllReduceCost(ActivationBytes(step.tokens()), world, network),
        2 * layers);
    cost.collectives = 2 * layers;
  }
  if (step.draws) {
    add(AllGatherCost(kDrawBytes * world * step.sequences, world, network), 1);
  }
  return cost;
}

StepCost StrategyCost::GatheredStep(const StepShape& step) const {
  const ModelSpec& spec = model_.inputs().spec;
  const int world = model_.world();
  const int layers = spec.num_hidden_layers;
  const int moe_layers = MoeLayers();
  StepShape own = step;
  if (step.sequences >= world || step.rows == 1) {
    own.sequences = CeilDivide(step.sequences, world);
  } else {
    own.rows = CeilDivide(step.rows, world);
    own.first_position = step.first_position + step.rows - own.rows;
  }
  StepCost cost;
  double attention_bytes = 0;
  double dense_bytes = 0;
  double moe_bytes = 0;
  double dense = 0;
  double moe = 0;
  const double tokens = static_cast<double>(own.tokens());
  for (const RankShare& share : shares_) {
    const PartCost attention = share.Attention(own);
    const PartCost mlp = share.DenseMlp(tokens);
    const PartCost experts =
        moe_layers > 0 ? share.Moe(tokens, /*busiest=*/false) : PartCost();
    const PartCost head = share.Head(static_cast<double>(own.sequences));
    cost.attention = std::max(cost.attention, attention.seconds);
    cost.head = std::max(cost.head, step.draws ? head.seconds : 0);
    dense = std::max(dense, mlp.seconds);
    moe = std::max(moe, experts.seconds);
    attention_bytes = attention.bytes;
    dense_bytes = mlp.bytes;
    moe_bytes = experts.bytes;
    cost.bytes_read += attention.bytes * layers +
                       mlp.bytes * (layers - moe_layers) +
                       experts.bytes * moe_layers + head.bytes;
  }
  cost.attention *= layers;
  cost.feed_forward = dense * (layers - moe_layers) + moe * moe_layers;
  cost.overhead = kLayerOverheadSeconds * layers;
  if (world == 1) return cost;
  // The cache counts as read, not as gathered; it is small beside weights.
  const double gathered = attention_bytes * layers +
                          dense_bytes * (layers - moe_layers) +
                          moe_bytes * moe_layers;
  const ExchangeCost exchange = AllGatherCost(static_cast<uint64_t>(gathered),
                                              world, model_.inputs().network);
  cost.wire_bytes = exchange.sent_bytes;
  cost.collectives = 2 * layers;
  cost.exchange =
      std::max(0.0, exchange.seconds - cost.attention - cost.feed_forward);
  return cost;
}

std::vector<StepCost> StrategyCost::Stages(const StepShape& step) const {
  const ModelSpec& spec = model_.inputs().spec;
  std::vector<StepCost> stages(shares_.size());
  for (size_t rank = 0; rank < shares_.size(); ++rank) {
    const Range range = SplitRange(spec.num_hidden_layers, model_.world(),
                                   static_cast<int>(rank));
    StepCost& stage = stages[rank];
    const double tokens = static_cast<double>(step.tokens());
    const PartCost attention = shares_[rank].Attention(step);
    const PartCost dense = shares_[rank].DenseMlp(tokens);
    PartCost moe;
    if (MoeLayers() > 0) moe = shares_[rank].Moe(tokens, /*busiest=*/false);
    for (int layer = range.begin; layer < range.end; ++layer) {
      const PartCost& mlp = spec.IsMoeLayer(layer) ? moe : dense;
      stage.attention += attention.seconds;
      stage.feed_forward += mlp.seconds;
      stage.bytes_read += attention.bytes + mlp.bytes;
      stage.overhead += kLayerOverheadSeconds;
    }
    if (rank + 1 == shares_.size() && step.draws) {
      const PartCost head =
          shares_[rank].Head(static_cast<double>(step.sequences));
      stage.head = head.seconds;
      stage.bytes_read += head.bytes;
    }
  }
  return stages;
}

StepCost StrategyCost::PipelineStep(const StepShape& step) const {
  const int world = model_.world();
  const int64_t batches = std::min<int64_t>(world, step.sequences);
  StepShape one = step;
  one.sequences = CeilDivide(step.sequences, batches);
  StepCost sum;
  double slowest = 0;
  for (const StepCost& stage : Stages(one)) {
    sum.attention += stage.attention;
    sum.feed_forward += stage.feed_forward;
    sum.head += stage.head;
    sum.overhead += stage.overhead;
    sum.bytes_read += stage.bytes_read;
    slowest = std::max(slowest, stage.seconds());
  }
  const ExchangeCost hop = AllGatherCost(2 * ActivationBytes(one.tokens()), 2,
                                         model_.inputs().network);
  sum.exchange = (world - 1) * hop.seconds;
  sum.wire_bytes = hop.sent_bytes * static_cast<double>(batches);
  // The time until every batch has been through all stages once.
  const double factor =
      std::max(1.0, slowest * static_cast<double>(batches) / sum.seconds());
  sum.attention *= factor;
  sum.feed_forward *= factor;
  sum.head *= factor;
  sum.overhead *= factor;
  sum.exchange *= factor;
  sum.bytes_read *= static_cast<double>(batches);
  return sum;
}

double StrategyCost::PipelinePrefill(int64_t tokens, int64_t chunk) const {
  double total = 0;
  for (int64_t first = 0; first < tokens; first += chunk) {
    const StepShape step = {.rows = std::min(chunk, tokens - first),
                            .first_position = first,
                            .draws = first + chunk >= tokens};
    double slowest = 0;
    double sum = 0;
    for (const StepCost& stage : Stages(step)) {
      slowest = std::max(slowest, stage.seconds());
      sum += stage.seconds();
    }
    total += step.draws ? sum : slowest;
  }
  return total;
}

double StrategyCost::PrefillSeconds(int64_t tokens, int64_t chunk) const {
  if (tokens <= 0) return 0;
  if (strategy_.kind == StrategyKind::kPipeline) {
    return PipelinePrefill(tokens, chunk);
  }
  // A rank that gathers weights takes as many tokens at once as a step holds.
  if (strategy_.kind == StrategyKind::kGatheredWeights) chunk = 8192;
  const auto step = [&](int64_t first) {
    return Step({.rows = std::min(chunk, tokens - first),
                 .first_position = first,
                 .draws = first + chunk >= tokens})
        .seconds();
  };
  // Whole chunks differ in the positions before them only, on which their time
  // depends linearly; the last one is for itself.
  const int64_t whole = (tokens - 1) / chunk;
  double total = step(whole * chunk);
  if (whole > 0) {
    total +=
        static_cast<double>(whole) * (step(0) + step((whole - 1) * chunk)) / 2;
  }
  return total;
}

ShardSizes StrategyCost::Weights(int rank) const {
  const ModelSpec& spec = model_.inputs().spec;
  const WeightForms& forms = model_.inputs().forms;
  const ShardPlan& plan = shares_[rank].plan();
  if (strategy_.kind == StrategyKind::kPipeline) {
    return StageSizesOf(
        spec, plan, forms,
        SplitRange(spec.num_hidden_layers, model_.world(), rank), rank == 0,
        rank + 1 == model_.world());
  }
  ShardSizes sizes = ShardSizesOf(spec, plan, forms);
  if (strategy_.kind == StrategyKind::kGatheredWeights) {
    for (uint64_t& bytes : sizes.bytes) bytes = bytes / model_.world() + 1;
  }
  return sizes;
}

uint64_t StrategyCost::CacheBytes(int rank, int64_t batch,
                                  int64_t context) const {
  const CostInputs& inputs = model_.inputs();
  int64_t sequences = batch;
  if (strategy_.kind == StrategyKind::kDataGroups) {
    sequences = CeilDivide(batch, strategy_.mesh.data);
  } else if (strategy_.kind == StrategyKind::kGatheredWeights) {
    sequences = CeilDivide(batch, model_.world());
  }
  const uint64_t all =
      cluster::CacheBytes(inputs.spec, inputs.cache_dtype, sequences, context);
  if (strategy_.kind != StrategyKind::kPipeline) return all;
  const Range layers =
      SplitRange(inputs.spec.num_hidden_layers, model_.world(), rank);
  return all / inputs.spec.num_hidden_layers * layers.size();
}

}  // namespace ringfleet::cluster
