// SPDX-License-Identifier: Apache-2.0
#include "coordinator/planning/strategy_cost.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cluster/collectives/algorithm_table.h"
#include "cluster/wire/wire_format.h"
#include "kernels/attention/latent_cache.h"
#include "kernels/check.h"
#include "kernels/products/activations.h"
#include "kernels/products/weight_matrix.h"

namespace ringfleet::coordinator {
namespace {

using cluster::CeilDivide;
using cluster::ExpertsHaveRows;
using cluster::kMaxGroupSize;
using cluster::kMinShardedRows;
using cluster::LayerTensors;
using cluster::ModelSpec;
using cluster::PlanShard;
using cluster::PrefillStrategyName;
using cluster::Range;
using cluster::RootTensors;
using cluster::ShardPlan;
using cluster::ShardSizes;
using cluster::ShardSizesOf;
using cluster::SplitRange;
using cluster::StageSizesOf;
using cluster::StrategyOfStep;
using cluster::WeightForms;

// Bytes of a rank's summary of a row of logits. Ranks gather it to draw.
constexpr uint64_t kDrawBytes = 32;

// A row as products of that form read it.
size_t ActivationRowBytes(const WeightForms& forms, size_t columns) {
  kernels::Activations row;
  row.Reshape(kernels::ActivationFormFor(forms.products), 0, columns);
  return row.StoredRowBytes();
}

// The share of a rank under a strategy.
ShardPlan PlanFor(const ModelSpec& spec, const Strategy& strategy, int rank) {
  if (strategy.kind == StrategyKind::kPipeline) {
    return PlanShard(spec, {}, 0).value();
  }
  return PlanShard(spec, strategy.mesh, rank).value();
}

}  // namespace

std::string Strategy::Name() const {
  const auto axes = [this]() -> std::string {
    if (mesh.data > 1) {
      std::string text = absl::StrCat("data ", mesh.data);
      if (mesh.expert > 1) absl::StrAppend(&text, " x expert ", mesh.expert);
      if (mesh.tensor > 1) absl::StrAppend(&text, " x tensor ", mesh.tensor);
      return text;
    }
    if (mesh.expert == 1) return absl::StrCat("tensor ", mesh.tensor);
    if (mesh.tensor == 1) return absl::StrCat("expert ", mesh.expert);
    return absl::StrCat("expert ", mesh.expert, " x tensor ", mesh.tensor);
  };
  switch (kind) {
    case StrategyKind::kMesh:
      if (prefill == v1::PREFILL_STRATEGY_AUTO) return axes();
      return absl::StrCat(PrefillStrategyName(prefill), " prefill, ", axes());
    case StrategyKind::kPipeline:
      return absl::StrCat("layer pipeline ", mesh.world_size());
  }
  return "";
}

bool Strategy::IsRunnable() const {
  return kind == StrategyKind::kMesh && mesh.world_size() <= kMaxGroupSize &&
         (mesh.data == 1 || prefill != v1::PREFILL_STRATEGY_WEIGHT_GATHER);
}

ModelOnFleet::ModelOnFleet(CostInputs inputs)
    : inputs_(std::move(inputs)),
      dense_(LayerTensors(inputs_.spec, false)),
      moe_(LayerTensors(inputs_.spec, true)),
      root_(RootTensors(inputs_.spec)) {}

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
    if (strategy.prefill == v1::PREFILL_STRATEGY_WEIGHT_GATHER) {
      whole_.push_back(
          model.Share(PlanShard(model.inputs().spec, {}, 0).value(), rank));
    }
  }
}

uint64_t StrategyCost::ActivationBytes(int64_t tokens) const {
  const auto hidden = static_cast<size_t>(model_.inputs().spec.hidden_size);
  return cluster::WireFormat(model_.inputs().wire, hidden)
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
  if (strategy_.kind == StrategyKind::kPipeline) return PipelineStep(step);
  const int groups = strategy_.mesh.data;
  switch (StrategyOfStep(strategy_.prefill,
                         CeilDivide(step.sequences, groups) * step.rows,
                         step.rows, model_.world() / groups)) {
    case v1::PREFILL_STRATEGY_WEIGHT_GATHER:
      return GatheredStep(step);
    case v1::PREFILL_STRATEGY_SEQUENCE_PARALLEL:
      return MeshStep(step, true);
    default:
      return MeshStep(step, false);
  }
}

StepCost StrategyCost::MeshStep(const StepShape& step,
                                bool sequence_parallel) const {
  const ModelSpec& spec = model_.inputs().spec;
  const NetworkSpec& network = model_.inputs().network;
  const int groups = strategy_.mesh.data;
  const int group_size = model_.world() / groups;
  const int layers = spec.num_hidden_layers;
  const int moe_layers = MoeLayers();
  StepShape in_group = step;
  in_group.sequences = CeilDivide(step.sequences, groups);
  const double tokens = static_cast<double>(in_group.tokens());

  StepCost cost;
  double moe = 0;
  double dense = 0;
  // Weights that each rank has whole multiply its own tokens only.
  const double own = sequence_parallel ? tokens / group_size : tokens;
  for (const RankShare& share : shares_) {
    const PartCost attention = share.Attention(in_group);
    const PartCost mlp = share.DenseMlp(tokens);
    cost.attention = std::max(
        cost.attention, attention.seconds - share.Latents(tokens).seconds +
                            share.Latents(own).seconds);
    dense = std::max(dense, mlp.seconds);
    cost.bytes_read += attention.bytes * layers;
    cost.bytes_read += mlp.bytes * (layers - moe_layers);
    if (moe_layers > 0) {
      const PartCost experts = share.Moe(
          tokens, static_cast<double>(step.tokens()), /*busiest=*/true);
      moe = std::max(moe, experts.seconds - share.Router(tokens).seconds +
                              share.Router(own).seconds);
      cost.bytes_read += experts.bytes * moe_layers;
    }
    if (step.draws) {
      const PartCost head = share.Head(static_cast<double>(in_group.sequences));
      cost.head = std::max(cost.head, head.seconds);
      cost.bytes_read += head.bytes;
    }
  }
  cost.attention *= layers;
  cost.feed_forward = dense * (layers - moe_layers) + moe * moe_layers;
  cost.overhead = kLayerOverheadSeconds * layers;
  if (model_.world() == 1) return cost;

  const auto add = [&cost](const ExchangeCost& exchange, int times) {
    cost.exchange += times * exchange.seconds;
    cost.wire_bytes += times * exchange.sent_bytes;
  };
  if (sequence_parallel) {
    AddSequenceParallelExchange(in_group, /*moe=*/false, layers - moe_layers,
                                &cost);
    AddSequenceParallelExchange(in_group, /*moe=*/true, moe_layers, &cost);
  } else if (group_size > 1) {
    add(AllReduceCost(ActivationBytes(in_group.tokens()), group_size, network),
        2 * layers);
    cost.collectives = 2 * layers;
  }
  if (step.rows > 1) {
    cost.exchange += kPromptWaitShare * (cost.attention + cost.feed_forward);
  }
  if (groups > 1) {
    // How many rows each group has in the step.
    add(AllGatherCost(sizeof(uint64_t) * groups, groups, network), 1);
    AddExpertExchange(in_group, moe_layers, &cost);
  }
  if (step.draws && group_size > 1) {
    add(AllGatherCost(kDrawBytes * group_size * in_group.sequences, group_size,
                      network),
        1);
  }
  return cost;
}

void StrategyCost::AddExpertExchange(const StepShape& in_group, int layers,
                                     StepCost* cost) const {
  const CostInputs& inputs = model_.inputs();
  const ModelSpec& spec = inputs.spec;
  const int groups = strategy_.mesh.data;
  const auto tokens = static_cast<double>(in_group.tokens());
  const double route_bytes =
      spec.num_experts_per_tok * (sizeof(int32_t) + sizeof(float));
  // Tokens of a group that need a certain other coordinate.
  const double go =
      tokens * (1 - std::pow(1 - 1.0 / strategy_.mesh.num_coordinates(),
                             spec.num_experts_per_tok));
  const auto add = [&](double bytes_of_each) {
    const ExchangeCost exchange = AllGatherCost(
        static_cast<uint64_t>(bytes_of_each * groups), groups, inputs.network);
    cost->exchange += layers * exchange.seconds;
    cost->wire_bytes += layers * exchange.sent_bytes;
    cost->collectives += layers;
  };
  add(tokens * route_bytes);
  add(go *
      static_cast<double>(ActivationRowBytes(inputs.forms, spec.hidden_size)));
  add(go * static_cast<double>(ActivationBytes(1)));
}

void StrategyCost::AddSequenceParallelExchange(const StepShape& step, bool moe,
                                               int layers,
                                               StepCost* cost) const {
  if (layers == 0) return;
  const CostInputs& inputs = model_.inputs();
  const ModelSpec& spec = inputs.spec;
  const int world = strategy_.mesh.group_size();
  // Tokens go to other groups' experts, and nothing beside these.
  const bool travels = moe && strategy_.mesh.data > 1;
  const auto tokens = static_cast<uint64_t>(step.tokens());
  const kernels::LatentRowFormat cache_row = {
      .dtype = inputs.cache_dtype,
      .kv_lora_rank = static_cast<size_t>(spec.kv_lora_rank),
      .rope_dim = static_cast<size_t>(spec.qk_rope_head_dim)};
  const size_t query_columns =
      spec.q_lora_rank > 0 ? spec.q_lora_rank : spec.hidden_size;
  const auto gather = [&](size_t columns, size_t more) {
    return AllGatherCost(
        tokens * (ActivationRowBytes(inputs.forms, columns) + more), world,
        inputs.network);
  };
  const ExchangeCost latents = gather(query_columns, cache_row.bytes());
  const ExchangeCost normed =
      gather(spec.hidden_size,
             spec.num_experts_per_tok * (sizeof(int32_t) + sizeof(float)));
  const ExchangeCost sums =
      AllGatherCost(ActivationBytes(step.tokens()), world, inputs.network);
  double queries = 0;
  double outputs = 0;
  double gate_up = 0;
  for (const RankShare& share : shares_) {
    const auto rows = static_cast<double>(tokens);
    gate_up = std::max(gate_up, share.GateUp(rows, moe).seconds);
    queries = std::max(queries, share.Queries(rows).seconds);
    outputs = std::max(outputs, share.Outputs(rows).seconds);
  }
  const auto add = [&](const ExchangeCost& exchange, double behind) {
    // A core that sends does not multiply.
    const double least = exchange.sent_bytes * kSoftwareSecondsPerByte;
    cost->exchange += layers * std::max({0.0, exchange.seconds - behind,
                                         std::min(exchange.seconds, least)});
    cost->wire_bytes += layers * exchange.sent_bytes;
    cost->collectives += layers;
  };
  // As workers decide (worker/strategies/sequence_parallel.cc).
  const bool beside = tokens / static_cast<uint64_t>(world) >= kMinShardedRows;
  add(latents, beside ? queries : 0);
  add(sums, beside ? outputs : 0);
  add(normed, beside && !travels ? gate_up : 0);
  const bool fed_beside =
      beside && !travels &&
      (!moe || ExpertsHaveRows(spec, tokens / static_cast<uint64_t>(world)));
  if (!fed_beside) return add(sums, 0);
  // The last matrix is gone through in `world` pieces; sums travel once the
  // first of these is there.
  const auto last = [&](double rows) {
    double seconds = 0;
    for (const RankShare& share : shares_) {
      const PartCost part =
          moe ? share.Moe(rows, rows, /*busiest=*/true,
                          RankShare::Matrices::kLast)
              : share.DenseMlp(rows, RankShare::Matrices::kLast);
      seconds = std::max(seconds, part.seconds);
    }
    return seconds;
  };
  const auto rows = static_cast<double>(tokens);
  const double piece = last(rows / world);
  cost->feed_forward += layers * std::max(0.0, piece * world - last(rows));
  add(sums, piece * (world - 1));
}

StepCost StrategyCost::GatheredStep(const StepShape& step) const {
  const ModelSpec& spec = model_.inputs().spec;
  const int world = model_.world();
  const int layers = spec.num_hidden_layers;
  const int moe_layers = MoeLayers();
  StepShape own = step;
  if (step.sequences >= world) {
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
  for (const RankShare& share : whole_) {
    const PartCost attention = share.Attention(own);
    const PartCost mlp = share.DenseMlp(tokens);
    const PartCost experts = moe_layers > 0
                                 ? share.Moe(tokens, tokens, /*busiest=*/false)
                                 : PartCost();
    const PartCost head = share.Head(static_cast<double>(own.sequences));
    cost.attention = std::max(cost.attention, attention.seconds);
    cost.head = std::max(cost.head, step.draws ? head.seconds : 0);
    dense = std::max(dense, mlp.seconds);
    moe = std::max(moe, experts.seconds);
    attention_bytes = attention.bytes;
    dense_bytes = mlp.bytes;
    if (moe_layers > 0) {
      moe_bytes = share
                      .Moe(tokens, static_cast<double>(step.tokens()),
                           /*busiest=*/false)
                      .bytes;
    }
    cost.bytes_read += attention.bytes * layers +
                       mlp.bytes * (layers - moe_layers) +
                       experts.bytes * moe_layers + head.bytes;
  }
  cost.attention *= layers;
  cost.feed_forward = dense * (layers - moe_layers) + moe * moe_layers;
  cost.overhead = kLayerOverheadSeconds * layers;
  if (world == 1) return cost;
  // Experts that any rank's tokens go to. The cache counts as read, not as
  // gathered; it is small beside weights.
  const double gathered = attention_bytes * layers +
                          dense_bytes * (layers - moe_layers) +
                          moe_bytes * moe_layers;
  const ExchangeCost exchange = AllGatherCost(static_cast<uint64_t>(gathered),
                                              world, model_.inputs().network);
  cost.wire_bytes = exchange.sent_bytes;
  cost.collectives = 2 * layers;
  cost.exchange = exchange.seconds +
                  kPromptWaitShare * (cost.attention + cost.feed_forward);
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
    if (MoeLayers() > 0) {
      moe = shares_[rank].Moe(tokens, tokens, /*busiest=*/false);
    }
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
  return ShardSizesOf(spec, plan, forms);
}

uint64_t StrategyCost::CacheBytes(int rank, int64_t batch,
                                  int64_t context) const {
  const CostInputs& inputs = model_.inputs();
  // A pipeline's mesh is that of the plan's choice.
  const int groups =
      strategy_.kind == StrategyKind::kMesh ? strategy_.mesh.data : 1;
  const int64_t sequences = CeilDivide(batch, groups);
  const uint64_t all =
      cluster::CacheBytes(inputs.spec, inputs.cache_dtype, sequences, context);
  if (strategy_.kind != StrategyKind::kPipeline) return all;
  const Range layers =
      SplitRange(inputs.spec.num_hidden_layers, model_.world(), rank);
  return all / inputs.spec.num_hidden_layers * layers.size();
}

}  // namespace ringfleet::coordinator
