// SPDX-License-Identifier: Apache-2.0
#include "worker/moe_layer.h"

#include <algorithm>
#include <numeric>

#include "kernels/elementwise.h"
#include "kernels/matmul.h"
#include "kernels/router.h"
#include "worker/read_bytes.h"

namespace ringfleet::worker {
namespace {

kernels::RouterParameters MakeRouterParameters(const cluster::ModelSpec& spec) {
  kernels::RouterParameters parameters;
  parameters.score = spec.scoring_func == cluster::ScoringFunc::kSigmoid
                         ? kernels::RouterScore::kSigmoid
                         : kernels::RouterScore::kSoftmax;
  switch (spec.topk_method) {
    case cluster::TopkMethod::kGreedy:
      parameters.method = kernels::RouterMethod::kGreedy;
      break;
    case cluster::TopkMethod::kGroupLimitedGreedy:
      parameters.method = kernels::RouterMethod::kGroupLimitedGreedy;
      break;
    case cluster::TopkMethod::kNoauxTc:
      parameters.method = kernels::RouterMethod::kNoauxTc;
      break;
  }
  parameters.num_experts = spec.n_routed_experts;
  parameters.num_experts_per_tok = spec.num_experts_per_tok;
  parameters.n_group = spec.n_group;
  parameters.topk_group = spec.topk_group;
  parameters.norm_topk_prob = spec.norm_topk_prob;
  parameters.routed_scaling_factor =
      static_cast<float>(spec.routed_scaling_factor);
  return parameters;
}

// FNV-1a over the chosen ids, carried on from layer to layer.
uint64_t HashIds(uint64_t hash, const int32_t* ids, size_t count) {
  constexpr uint64_t kPrime = 0x100000001b3;
  for (size_t i = 0; i < count; ++i) {
    hash = (hash ^ static_cast<uint64_t>(ids[i] + 1)) * kPrime;
  }
  return hash;
}

kernels::SwigluExpert ExpertOf(const MlpWeights& weights,
                               absl::Span<const uint32_t> rows,
                               const float* row_weights) {
  return {.gate = &weights.gate,
          .up = &weights.up,
          .down = &weights.down,
          .rows = rows,
          .weights = row_weights};
}

}  // namespace

absl::Span<const uint32_t> ListRows(Workspace& workspace,
                                    absl::Span<const kernels::RowRange> rows) {
  workspace.listed_rows.clear();
  for (const kernels::RowRange& range : rows) {
    for (size_t row = range.begin; row < range.end; ++row) {
      workspace.listed_rows.push_back(static_cast<uint32_t>(row));
    }
  }
  return workspace.listed_rows;
}

void RouteRows(LayerContext& context, const MoeWeights& weights, const float* x,
               size_t rows) {
  const cluster::TraceScope scope(context.trace, "routing");
  const cluster::ModelSpec& spec = context.spec;
  Workspace& workspace = context.workspace;
  const size_t count = rows * spec.num_experts_per_tok;
  float* logits = Grow(workspace.route_logits, rows * spec.n_routed_experts);
  context.bytes_read += weights.router.bytes();
  workspace.router_x.Assign(kernels::Activations::Form::kF32, x, rows,
                            spec.hidden_size, spec.hidden_size, context.pool);
  kernels::MatMul(weights.router, workspace.router_x, logits, context.pool);
  kernels::RouteLogits(
      MakeRouterParameters(spec), logits, rows,
      weights.router_bias.empty() ? nullptr : weights.router_bias.data(),
      Grow(workspace.route_scratch, 3 * spec.n_routed_experts),
      Grow(workspace.route_ids, count), Grow(workspace.route_weights, count));
}

void NoteRoutes(LayerContext& context, int layer, size_t rows) {
  const int32_t* ids = context.workspace.route_ids.data();
  const size_t count = rows * context.spec.num_experts_per_tok;
  context.routing_hash = HashIds(context.routing_hash, ids, count);
  if (context.expert_counts == nullptr) return;
  std::vector<uint64_t>& counts = (*context.expert_counts)[layer];
  for (size_t i = 0; i < count; ++i) ++counts[ids[i]];
}

void AssignRows(LayerContext& context, cluster::Range experts,
                absl::Span<const kernels::RowRange> rows) {
  Workspace& workspace = context.workspace;
  const size_t chosen = context.spec.num_experts_per_tok;
  const auto for_each_route = [&](auto visit) {
    for (const kernels::RowRange& range : rows) {
      for (size_t i = range.begin * chosen; i < range.end * chosen; ++i) {
        const int expert = workspace.route_ids[i] - experts.begin;
        if (expert >= 0 && expert < experts.size()) visit(i, expert);
      }
    }
  };
  std::vector<size_t>& first = workspace.first_assigned;
  first.assign(experts.size() + 1, 0);
  for_each_route([&](size_t, int expert) { ++first[expert + 1]; });
  std::partial_sum(first.begin(), first.end(), first.begin());
  uint32_t* assigned_rows = Grow(workspace.assigned_rows, first.back());
  float* assigned_weights = Grow(workspace.assigned_weights, first.back());
  for_each_route([&](size_t i, int expert) {
    const size_t at = first[expert]++;
    assigned_rows[at] = static_cast<uint32_t>(i / chosen);
    assigned_weights[at] = workspace.route_weights[i];
  });
  // Each entry has become the begin of the one behind it.
  std::copy_backward(first.begin(), first.end() - 1, first.end());
  first[0] = 0;
}

void NoteFeedForward(LayerContext& context, const LayerWeights& weights,
                     int layer, size_t rows) {
  if (!weights.is_moe) {
    context.bytes_read += MlpReadBytes(weights.dense);
    return;
  }
  NoteRoutes(context, layer, rows);
  Workspace& workspace = context.workspace;
  const cluster::Range own = context.plan.experts;
  std::vector<char>& chosen = workspace.chosen_experts;
  chosen.assign(own.size(), 0);
  const size_t count = rows * context.spec.num_experts_per_tok;
  for (size_t i = 0; i < count; ++i) {
    const int expert = workspace.route_ids[i] - own.begin;
    if (expert >= 0 && expert < own.size()) chosen[expert] = 1;
  }
  for (size_t e = 0; e < chosen.size(); ++e) {
    if (chosen[e] == 0) continue;
    context.bytes_read += MlpReadBytes(weights.moe.experts[e]);
  }
  if (weights.moe.shared.gate.rows() > 0) {
    context.bytes_read += MlpReadBytes(weights.moe.shared);
  }
}

void FeedForward(LayerContext& context, const LayerWeights& weights,
                 const kernels::Activations& x,
                 const kernels::SwigluOutput& out) {
  const cluster::TraceScope scope(context.trace,
                                  weights.is_moe ? "experts" : "dense MLP");
  Workspace& workspace = context.workspace;
  std::vector<kernels::SwigluExpert>& networks = workspace.experts;
  networks.clear();
  const MoeWeights& moe = weights.moe;
  if (!weights.is_moe) {
    networks.push_back(
        ExpertOf(weights.dense, ListRows(workspace, out.rows), nullptr));
  } else if (moe.shared.gate.rows() > 0) {
    networks.push_back(
        ExpertOf(moe.shared, ListRows(workspace, out.rows), nullptr));
  }
  if (weights.is_moe) {
    AssignRows(context, context.plan.experts, out.rows);
    for (size_t e = 0; e < moe.experts.size(); ++e) {
      const size_t begin = workspace.first_assigned[e];
      const size_t size = workspace.first_assigned[e + 1] - begin;
      if (size == 0) continue;
      networks.push_back(ExpertOf(
          moe.experts[e],
          absl::MakeConstSpan(workspace.assigned_rows.data() + begin, size),
          workspace.assigned_weights.data() + begin));
    }
  }
  kernels::Swiglu(networks, x, context.spec.hidden_size, out, &workspace.swiglu,
                  context.pool);
}

}  // namespace ringfleet::worker
