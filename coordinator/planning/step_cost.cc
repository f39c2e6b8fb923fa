// SPDX-License-Identifier: Apache-2.0
#include "coordinator/planning/step_cost.h"

#include <algorithm>
#include <cmath>

#include "cluster/collectives/algorithm_table.h"
#include "kernels/attention/latent_cache.h"
#include "kernels/attention/mla.h"

namespace ringfleet::coordinator {
namespace {

using cluster::Algorithm;
using cluster::AlgorithmTable;
using cluster::AttentionSeconds;
using cluster::HostSpec;
using cluster::kMaxGroupSize;
using cluster::LocalMatrices;
using cluster::LocalMatrix;
using cluster::ModelSpec;
using cluster::ModelTensor;
using cluster::Operation;
using cluster::ProductSeconds;
using cluster::ShardPlan;
using cluster::WeightClass;

// The last of a feed-forward network's, [hidden_size, width].
bool IsLast(cluster::Split split) {
  return split == cluster::Split::kDenseColumns ||
         split == cluster::Split::kSharedColumns ||
         split == cluster::Split::kExpertColumns;
}

PartCost Products(const std::vector<LocalMatrix>& matrices,
                  WeightClass weight_class, double rows, const HostSpec& host,
                  RankShare::Matrices which = RankShare::Matrices::kAll) {
  PartCost cost;
  for (const LocalMatrix& matrix : matrices) {
    if (matrix.tensor->weight_class == weight_class &&
        matrix.tensor->rows > 0 &&
        (which == RankShare::Matrices::kAll ||
         IsLast(matrix.tensor->split) ==
             (which == RankShare::Matrices::kLast))) {
      cost.Add(ProductCost(matrix, rows, host));
    }
  }
  return cost;
}

// Those that heads divide like this, but for what expands the cache's latents.
PartCost AttentionProducts(const std::vector<LocalMatrix>& matrices,
                           cluster::Split split, double rows,
                           const HostSpec& host) {
  PartCost cost;
  for (const LocalMatrix& matrix : matrices) {
    const ModelTensor& tensor = *matrix.tensor;
    if (tensor.weight_class == WeightClass::kAttention && tensor.rows > 0 &&
        tensor.split == split && matrix.transposed_bytes == 0) {
      cost.Add(ProductCost(matrix, rows, host));
    }
  }
  return cost;
}

// With o further messages behind a first one.
double MessageSeconds(int messages, const NetworkSpec& network) {
  return network.latency_seconds + kMessageSeconds +
         (messages - 1) * kFurtherMessageSeconds;
}

double ByteSeconds(const NetworkSpec& network) {
  return std::max(kSoftwareSecondsPerByte,
                  1 / (network.bytes_per_second * kPayloadShare));
}

}  // namespace

PartCost ProductCost(const LocalMatrix& matrix, double rows,
                     const HostSpec& host) {
  if (matrix.bytes == 0 || rows <= 0) return {};
  const auto bytes = static_cast<double>(matrix.bytes);
  const auto outputs = static_cast<double>(matrix.rows);
  const double product = ProductSeconds(
      host, matrix.form, outputs * static_cast<double>(matrix.columns), bytes,
      rows);
  const double crossings = kOutputCrossings * rows * outputs * sizeof(float) /
                           host.read_bytes_per_second;
  return {.seconds = product + crossings, .bytes = bytes};
}

ExchangeCost AllReduceCost(uint64_t bytes, int size,
                           const NetworkSpec& network) {
  if (size < 2) return {};
  const double n = static_cast<double>(bytes);
  const double per_byte = ByteSeconds(network);
  const double share = 2 * n * (size - 1) / size;
  const ExchangeCost two_shot = {
      .seconds = 2 * MessageSeconds(size - 1, network) + share * per_byte,
      .sent_bytes = share};
  const ExchangeCost ring = {
      .seconds = 2 * (size - 1) * MessageSeconds(1, network) + share * per_byte,
      .sent_bytes = share};
  if (size > kMaxGroupSize) {
    return two_shot.seconds < ring.seconds ? two_shot : ring;
  }
  switch (
      AlgorithmTable::Default().Choose(Operation::kAllReduce, bytes, size)) {
    case Algorithm::kTwoShot:
      return two_shot;
    case Algorithm::kRing:
      return ring;
    default:
      return {.seconds =
                  MessageSeconds(size - 1, network) + (size - 1) * n * per_byte,
              .sent_bytes = (size - 1) * n};
  }
}

ExchangeCost AllGatherCost(uint64_t bytes, int size,
                           const NetworkSpec& network) {
  if (size < 2) return {};
  const double sent = static_cast<double>(bytes) * (size - 1) / size;
  return {.seconds =
              MessageSeconds(size - 1, network) + sent * ByteSeconds(network),
          .sent_bytes = sent};
}

double DistinctExperts(double experts, double chosen, double tokens) {
  if (experts <= 0) return 0;
  return experts * (1 - std::pow(1 - chosen / experts, tokens));
}

double MeanMaximum(int trials, double p, int groups) {
  if (groups <= 1 || p >= 1) return trials * p;
  // Sum over j >= 0 of P(maximum > j) = 1 - P(one <= j)^groups.
  double mass = std::pow(1 - p, trials);  // P(one == j)
  double below = mass;                    // P(one <= j)
  double mean = 0;
  for (int j = 0; j < trials; ++j) {
    mean += 1 - std::pow(std::min(below, 1.0), groups);
    mass *= static_cast<double>(trials - j) / (j + 1) * p / (1 - p);
    below += mass;
  }
  return mean;
}

RankShare::RankShare(const CostInputs& inputs,
                     const std::vector<ModelTensor>& dense,
                     const std::vector<ModelTensor>& moe,
                     const std::vector<ModelTensor>& root,
                     const ShardPlan& plan, const HostSpec& host)
    : inputs_(inputs),
      plan_(plan),
      host_(host),
      dense_(LocalMatrices(dense, inputs.spec, plan, inputs.forms)),
      moe_(LocalMatrices(moe, inputs.spec, plan, inputs.forms)),
      root_(LocalMatrices(root, inputs.spec, plan, inputs.forms)) {}

PartCost RankShare::Attention(const StepShape& step) const {
  const ModelSpec& spec = inputs_.spec;
  const double tokens = static_cast<double>(step.tokens());
  const double heads = plan_.heads.size();
  const double nope_and_v = spec.qk_nope_head_dim + spec.v_head_dim;
  const kernels::LatentRowFormat format = {
      .dtype = inputs_.cache_dtype,
      .kv_lora_rank = static_cast<size_t>(spec.kv_lora_rank),
      .rope_dim = static_cast<size_t>(spec.qk_rope_head_dim)};
  const bool expands = kernels::PreferMaterialized(
      {.format = format,
       .heads = static_cast<size_t>(plan_.heads.size()),
       .nope_dim = static_cast<size_t>(spec.qk_nope_head_dim),
       .v_dim = static_cast<size_t>(spec.v_head_dim)},
      {.first_position = step.first_position,
       .num_queries = static_cast<size_t>(step.rows)});
  const double positions = static_cast<double>(step.first_position + step.rows);

  PartCost cost;
  for (const LocalMatrix& matrix : dense_) {
    if (matrix.tensor->weight_class != WeightClass::kAttention) continue;
    if (matrix.transposed_bytes == 0) {
      cost.Add(ProductCost(matrix, tokens, host_));
    } else if (expands) {
      // Every visible position of every sequence, the weights once.
      cost.Add(ProductCost(
          matrix, static_cast<double>(step.sequences) * positions, host_));
    } else {
      // W_UK's copy instead of its rows of kv_b, so together all rows.
      LocalMatrix values = matrix;
      values.rows = static_cast<uint64_t>(heads) * spec.v_head_dim;
      values.bytes = static_cast<uint64_t>(static_cast<double>(matrix.bytes) *
                                           spec.v_head_dim / nope_and_v);
      LocalMatrix keys = matrix;
      keys.rows = static_cast<uint64_t>(heads) * spec.kv_lora_rank;
      keys.columns = spec.qk_nope_head_dim;
      keys.bytes = matrix.transposed_bytes;
      cost.Add(ProductCost(values, tokens, host_));
      cost.Add(ProductCost(keys, tokens, host_));
    }
  }
  const double visible = static_cast<double>(step.first_position) +
                         (static_cast<double>(step.rows) + 1) / 2;
  const double per_pair = expands
                              ? 2.0 * (spec.qk_head_dim() + spec.v_head_dim)
                              : 2.0 * (spec.cache_row() + spec.kv_lora_rank);
  PartCost core = {.bytes = static_cast<double>(step.sequences) * positions *
                            static_cast<double>(format.bytes())};
  // A rank without heads still writes the rows, and counts them as read.
  if (heads > 0) {
    if (!expands) {
      const double numbers = spec.cache_row() + spec.kv_lora_rank;
      core.seconds = kAbsorbedCrossings * tokens * heads * numbers *
                     sizeof(float) / host_.read_bytes_per_second;
    }
    core.seconds += AttentionSeconds(
        host_, {.operations = tokens * visible * heads * per_pair,
                .bytes = core.bytes,
                .heads = heads,
                .cache = inputs_.cache_dtype,
                .expanded = expands});
  }
  cost.Add(core);
  return cost;
}

PartCost RankShare::DenseMlp(double tokens, Matrices matrices) const {
  return Products(dense_, WeightClass::kDenseMlp, tokens, host_, matrices);
}

PartCost RankShare::Moe(double own, double all, bool busiest,
                        Matrices matrices) const {
  const ModelSpec& spec = inputs_.spec;
  PartCost cost = Products(moe_, WeightClass::kRouter, own, host_, matrices);
  cost.Add(Products(moe_, WeightClass::kSharedExperts, own, host_, matrices));
  const double experts = spec.n_routed_experts;
  const double chosen = spec.num_experts_per_tok;
  const double p = DistinctExperts(experts, chosen, all) / experts;
  // Tokens of an expert that has any: mean and standard deviation of a binomial
  // number that is not 0.
  const double expected = all * chosen / experts;
  double rows = expected / p;
  const double deviation = std::sqrt(std::max(
      0.0, expected * (1 - chosen / experts + expected) / p - rows * rows));
  const double mean = plan_.experts.size() * p;
  double visited = mean;
  const int groups = plan_.mesh.num_coordinates();
  if (busiest && groups > 1) {
    visited = MeanMaximum(plan_.experts.size(), p, groups);
    // All have some: now the number of their tokens differs, like the largest
    // of `groups` normal numbers.
    rows *=
        1 + p * std::sqrt(2 * std::log(groups) * (groups - 1) / (all * chosen));
  }
  // More tokens than the mean cost more than fewer save: two points stand for
  // the distribution.
  const double spread = std::min(deviation, rows - 1);
  const PartCost fewer = Products(moe_, WeightClass::kRoutedExperts,
                                  rows - spread, host_, matrices);
  const PartCost more = Products(moe_, WeightClass::kRoutedExperts,
                                 rows + spread, host_, matrices);
  cost.Add({.seconds = (fewer.seconds + more.seconds) / 2 * visited,
            .bytes = fewer.bytes * mean});
  return cost;
}

PartCost RankShare::Head(double tokens) const {
  PartCost cost = Products(root_, WeightClass::kHead, tokens, host_);
  // Each thread takes sequences of its own.
  const double rounds = std::ceil(tokens / host_.threads);
  cost.seconds += rounds * plan_.vocab.size() * kDrawSecondsPerLogit;
  return cost;
}

PartCost RankShare::Latents(double rows) const {
  return AttentionProducts(dense_, cluster::Split::kNone, rows, host_);
}

PartCost RankShare::Router(double rows) const {
  return Products(moe_, WeightClass::kRouter, rows, host_);
}

PartCost RankShare::Queries(double rows) const {
  return AttentionProducts(dense_, cluster::Split::kHeadRows, rows, host_);
}

PartCost RankShare::Outputs(double rows) const {
  return AttentionProducts(dense_, cluster::Split::kHeadColumns, rows, host_);
}

PartCost RankShare::GateUp(double rows, bool moe) const {
  return moe ? Products(moe_, WeightClass::kSharedExperts, rows, host_,
                        Matrices::kFirst)
             : Products(dense_, WeightClass::kDenseMlp, rows, host_,
                        Matrices::kFirst);
}

}  // namespace ringfleet::coordinator
