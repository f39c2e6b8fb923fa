// SPDX-License-Identifier: Apache-2.0
#include "worker/moe_layer.h"

#include <algorithm>
#include <cstring>

#include "kernels/elementwise.h"
#include "kernels/matmul.h"
#include "kernels/router.h"

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

}  // namespace

void SwigluMlp(LayerContext& context, const MlpWeights& weights, const float* x,
               size_t rows, float* out) {
  const size_t columns = weights.gate.rows();
  float* gate = Grow(context.workspace.gate, rows * columns);
  float* up = Grow(context.workspace.up, rows * columns);
  kernels::MatMul(weights.gate, x, rows, gate, context.pool);
  kernels::MatMul(weights.up, x, rows, up, context.pool);
  kernels::SiluMultiply(gate, up, rows * columns);
  kernels::MatMul(weights.down, gate, rows, out, context.pool);
}

void MoeLayer(LayerContext& context, const MoeWeights& weights, int layer,
              const float* x, size_t rows, float* partial) {
  const cluster::ModelSpec& spec = context.spec;
  Workspace& workspace = context.workspace;
  const size_t hidden = spec.hidden_size;
  const size_t chosen = spec.num_experts_per_tok;

  if (weights.shared.gate.rows() > 0) {
    SwigluMlp(context, weights.shared, x, rows, partial);
  } else {
    std::fill(partial, partial + rows * hidden, 0.0f);
  }

  int32_t* ids = Grow(workspace.route_ids, rows * chosen);
  float* route_weights = Grow(workspace.route_weights, rows * chosen);
  float* logits = Grow(workspace.route_logits, rows * spec.n_routed_experts);
  kernels::MatMul(weights.router, x, rows, logits, context.pool);
  kernels::RouteLogits(
      MakeRouterParameters(spec), logits, rows,
      weights.router_bias.empty() ? nullptr : weights.router_bias.data(),
      Grow(workspace.route_scratch, 3 * spec.n_routed_experts), ids,
      route_weights);
  context.routing_hash = HashIds(context.routing_hash, ids, rows * chosen);
  if (context.expert_counts != nullptr) {
    std::vector<uint64_t>& counts = (*context.expert_counts)[layer];
    for (size_t i = 0; i < rows * chosen; ++i) ++counts[ids[i]];
  }

  const cluster::Range owned = context.plan.experts;
  for (int expert = owned.begin; expert < owned.end; ++expert) {
    workspace.assigned_rows.clear();
    workspace.assigned_weights.clear();
    for (size_t i = 0; i < rows * chosen; ++i) {
      if (ids[i] != expert) continue;
      workspace.assigned_rows.push_back(static_cast<uint32_t>(i / chosen));
      workspace.assigned_weights.push_back(route_weights[i]);
    }
    const size_t assigned = workspace.assigned_rows.size();
    if (assigned == 0) continue;
    float* gathered = Grow(workspace.gathered, assigned * hidden);
    for (size_t i = 0; i < assigned; ++i) {
      std::memcpy(gathered + i * hidden,
                  x + workspace.assigned_rows[i] * hidden,
                  hidden * sizeof(float));
    }
    float* out = Grow(workspace.expert_out, assigned * hidden);
    SwigluMlp(context, weights.experts[expert - owned.begin], gathered,
              assigned, out);
    for (size_t i = 0; i < assigned; ++i) {
      kernels::AddScaledTo(workspace.assigned_weights[i], out + i * hidden,
                           hidden,
                           partial + workspace.assigned_rows[i] * hidden);
    }
  }
}

}  // namespace ringfleet::worker
