// SPDX-License-Identifier: Apache-2.0
#include "worker/model/moe_layer.h"

#include <algorithm>
#include <numeric>

#include "absl/base/casts.h"
#include "absl/strings/str_cat.h"
#include "kernels/elementwise.h"
#include "kernels/products/matmul.h"
#include "kernels/products/router.h"
#include "worker/model/read_bytes.h"

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

// Prime of FNV-1a, which hashes the decisions of every rank from layer to
// layer.
constexpr uint64_t kHashPrime = 0x100000001b3;

uint64_t HashIds(uint64_t hash, absl::Span<const int32_t> ids) {
  for (const int32_t id : ids) {
    hash = (hash ^ static_cast<uint64_t>(id + 1)) * kHashPrime;
  }
  return hash;
}

uint64_t HashLoads(uint64_t hash, absl::Span<const double> loads) {
  for (const double load : loads) {
    hash = (hash ^ absl::bit_cast<uint64_t>(load)) * kHashPrime;
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

// Returns the name of the feed-forward part in a trace.
const char* PartName(const LayerWeights& weights) {
  return weights.is_moe ? "experts" : "dense MLP";
}

}  // namespace

absl::Span<const uint32_t> ListRows(Workspace& workspace,
                                    absl::Span<const kernels::RowRange> rows,
                                    size_t end) {
  workspace.listed_rows.clear();
  for (const kernels::RowRange& range : rows) {
    for (size_t row = range.begin; row < std::min(range.end, end); ++row) {
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

absl::Status CheckRoutes(const LayerContext& context, size_t rows) {
  const int32_t* const ids = context.workspace.route_ids.data();
  const size_t chosen = context.spec.num_experts_per_tok;
  const int32_t experts = context.spec.n_routed_experts;
  for (size_t i = 0; i < rows * chosen; ++i) {
    if (ids[i] >= 0 && ids[i] < experts) continue;
    return absl::DataLossError(
        absl::StrCat("row ", i / chosen, " of a step goes to expert ", ids[i],
                     ", want 0 to ", experts - 1));
  }
  return absl::OkStatus();
}

void NoteRoutes(LayerContext& context, int layer, size_t rows) {
  const int32_t* ids = context.workspace.route_ids.data();
  const size_t count = rows * context.spec.num_experts_per_tok;
  context.routing_hash =
      HashIds(context.routing_hash, absl::MakeConstSpan(ids, count));
  if (context.expert_counts == nullptr) return;
  std::vector<uint64_t>& counts = (*context.expert_counts)[layer];
  for (size_t i = 0; i < count; ++i) ++counts[ids[i]];
}

void AssignRows(LayerContext& context, const int32_t* experts,
                size_t num_experts, absl::Span<const kernels::RowRange> rows) {
  Workspace& workspace = context.workspace;
  const size_t chosen = context.spec.num_experts_per_tok;
  const auto for_each_route = [&](auto visit) {
    for (const kernels::RowRange& range : rows) {
      for (size_t i = range.begin * chosen; i < range.end * chosen; ++i) {
        if (experts[i] >= 0) visit(i, experts[i]);
      }
    }
  };
  std::vector<size_t>& first = workspace.first_assigned;
  first.assign(num_experts + 1, 0);
  for_each_route([&](size_t, int32_t e) { ++first[e + 1]; });
  std::partial_sum(first.begin(), first.end(), first.begin());
  uint32_t* assigned_rows = Grow(workspace.assigned_rows, first.back());
  float* assigned_weights = Grow(workspace.assigned_weights, first.back());
  for_each_route([&](size_t i, int32_t e) {
    const size_t at = first[e]++;
    assigned_rows[at] = static_cast<uint32_t>(i / chosen);
    assigned_weights[at] = workspace.route_weights[i];
  });
  // Each entry holds the first index of the entry behind it. Shift them back.
  std::copy_backward(first.begin(), first.end() - 1, first.end());
  first[0] = 0;
}

void NoteFeedForward(LayerContext& context, const LayerWeights& weights,
                     int layer) {
  if (!weights.is_moe) {
    context.bytes_read += MlpReadBytes(weights.dense);
    return;
  }
  Workspace& workspace = context.workspace;
  const GroupRows& group_rows = context.group_rows;
  NoteRoutes(context, layer, group_rows.all());
  const size_t each = context.spec.num_experts_per_tok;
  const size_t count = group_rows.all() * each;
  const absl::Span<const int32_t> ids(workspace.route_ids.data(), count);
  std::vector<size_t>& ends = workspace.exchange.route_ends;
  ends.clear();
  for (size_t group = 1; group < group_rows.offsets.size(); ++group) {
    ends.push_back(group_rows.offsets[group] * each);
  }
  int32_t* replicas = Grow(workspace.route_replicas, count);
  if (context.reproducible) {
    workspace.dispatch.AssignByToken(context.layout, layer, ids, each);
  } else {
    workspace.dispatch.Assign(context.layout, layer, ids, ends);
  }
  if (context.expert_capacity > 0) {
    workspace.dispatch.LimitRoutes(
        context.expert_capacity,
        absl::MakeConstSpan(workspace.route_weights.data(), count));
    if (context.dropped_counts != nullptr) {
      (*context.dropped_counts)[layer] += workspace.dispatch.dropped();
    }
  }
  workspace.dispatch.FindReplicas(
      context.layout, layer, context.plan.expert_coordinate, ids, replicas);
  // Ranks whose layouts differ have other loads.
  context.routing_hash =
      HashLoads(context.routing_hash, workspace.dispatch.loads());
  std::vector<char>& chosen = workspace.chosen_experts;
  chosen.assign(weights.moe.experts.size(), 0);
  for (size_t i = 0; i < count; ++i) {
    if (replicas[i] >= 0) chosen[replicas[i]] = 1;
  }
  for (size_t e = 0; e < chosen.size(); ++e) {
    if (chosen[e] == 0) continue;
    context.bytes_read += MlpReadBytes(weights.moe.experts[e]);
  }
  if (weights.moe.shared.gate.rows() > 0) {
    context.bytes_read += MlpReadBytes(weights.moe.shared);
  }
}

namespace {

void MakeHidden(LayerContext& context, const LayerWeights& weights,
                const kernels::Activations& x, const EarlyProducts& early,
                absl::Span<const kernels::RowRange> rows) {
  Workspace& workspace = context.workspace;
  std::vector<kernels::SwigluExpert>& networks = workspace.experts;
  networks.clear();
  const MoeWeights& moe = weights.moe;
  if (!weights.is_moe) {
    networks.push_back(
        ExpertOf(weights.dense, ListRows(workspace, rows), nullptr));
  } else if (moe.shared.gate.rows() > 0) {
    // Rows of other data groups get the shared expert in their own group.
    networks.push_back(ExpertOf(
        moe.shared, ListRows(workspace, rows, /*end=*/context.group_rows.own()),
        nullptr));
  }
  if (!networks.empty()) {
    networks.front().gate_x = early.gate;
    networks.front().up_x = early.up;
  }
  if (weights.is_moe) {
    AssignRows(context, workspace.route_replicas.data(), moe.experts.size(),
               rows);
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
  kernels::SwigluHidden(networks, x, &workspace.swiglu, context.pool);
}

void AddUp(LayerContext& context, const kernels::SwigluOutput& out) {
  kernels::SwigluDown(context.workspace.experts, context.spec.hidden_size, out,
                      &context.workspace.swiglu, context.pool);
}

}  // namespace

void FeedForward(LayerContext& context, const LayerWeights& weights,
                 const kernels::Activations& x, const EarlyProducts& early,
                 const kernels::SwigluOutput& out) {
  const cluster::TraceScope scope(context.trace, PartName(weights));
  MakeHidden(context, weights, x, early, out.rows);
  AddUp(context, out);
}

void FeedForwardHidden(LayerContext& context, const LayerWeights& weights,
                       const kernels::Activations& x,
                       const EarlyProducts& early,
                       absl::Span<const kernels::RowRange> rows) {
  const cluster::TraceScope scope(context.trace, PartName(weights));
  MakeHidden(context, weights, x, early, rows);
}

void FeedForwardSums(LayerContext& context, const LayerWeights& weights,
                     const kernels::SwigluOutput& out) {
  const cluster::TraceScope scope(context.trace, PartName(weights));
  AddUp(context, out);
}

}  // namespace ringfleet::worker
