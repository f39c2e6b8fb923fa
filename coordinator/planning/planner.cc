// SPDX-License-Identifier: Apache-2.0
#include "coordinator/planning/planner.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cluster/collectives/algorithm_table.h"
#include "kernels/attention/latent_cache.h"
#include "kernels/check.h"

namespace ringfleet::coordinator {
namespace {

using cluster::HostSpec;
using cluster::kMaxGroupSize;
using cluster::LeastOf;
using cluster::MeshShape;
using cluster::PlanShard;
using cluster::ShardSizes;
using cluster::ShardSizesOf;

// Differences below this are within what the model can tell.
constexpr double kTie = 0.01;

std::vector<MeshShape> Meshes(int world) {
  std::vector<MeshShape> meshes;
  for (int data = 1; data <= world; ++data) {
    if (world % data != 0) continue;
    for (int expert = 1; expert <= world / data; ++expert) {
      if (world / data % expert != 0) continue;
      meshes.push_back(
          {.data = data, .expert = expert, .tensor = world / data / expert});
    }
  }
  return meshes;
}

// Returns the bytes that one rank has left; saturates at the ends of int64.
int64_t FreeBytes(const HostSpec& host, const RankMemory& use) {
  const double left = static_cast<double>(host.memory_bytes) -
                      static_cast<double>(use.weights.total()) -
                      static_cast<double>(use.cache_bytes) -
                      static_cast<double>(use.buffer_bytes);
  return static_cast<int64_t>(std::clamp(left, -9e18, 9e18));
}

// A strategy with what no batch or context changes.
struct Prepared {
  Prepared(const ModelOnFleet& on_fleet, const Strategy& strategy)
      : model(on_fleet), cost(on_fleet, strategy) {
    for (int rank = 0; rank < model.world(); ++rank) {
      weights.push_back(cost.Weights(rank));
    }
  }
  const ModelOnFleet& model;
  const StrategyCost cost;
  std::vector<ShardSizes> weights;
};

Candidate Evaluate(const Prepared& prepared, const PlanRequest& request) {
  const StrategyCost& cost = prepared.cost;
  Candidate candidate = {.strategy = cost.strategy(),
                         .fits = true,
                         .runnable = cost.strategy().IsRunnable()};
  candidate.decode = cost.Step(
      {.sequences = request.batch, .first_position = request.context});
  candidate.decode_tps =
      static_cast<double>(request.batch) / candidate.decode.seconds();
  candidate.prefill_tps =
      static_cast<double>(request.context) /
      cost.PrefillSeconds(request.context, request.prefill_chunk);
  candidate.prompt =
      cost.Step({.rows = std::min(request.context, request.prefill_chunk),
                 .draws = request.context <= request.prefill_chunk});
  for (int rank = 0; rank < prepared.model.world(); ++rank) {
    RankMemory use = {
        .weights = prepared.weights[rank],
        .cache_bytes = cost.CacheBytes(rank, request.batch, request.context),
        .buffer_bytes = kPlannedBufferBytes};
    use.free_bytes = FreeBytes(prepared.model.inputs().hosts[rank], use);
    candidate.fits &= use.free_bytes >= 0;
    candidate.ranks.push_back(use);
  }
  return candidate;
}

Candidate Evaluate(const ModelOnFleet& model, const PlanRequest& request,
                   const Strategy& strategy) {
  return Evaluate(Prepared(model, strategy), request);
}

int64_t LeastFree(const Candidate& candidate) {
  int64_t least = std::numeric_limits<int64_t>::max();
  for (const RankMemory& rank : candidate.ranks) {
    least = std::min(least, rank.free_bytes);
  }
  return least;
}

// Returns true if `a` is to be preferred.
bool Better(const Candidate& a, const Candidate& b) {
  if (a.fits != b.fits) return a.fits;
  if (!a.fits) return LeastFree(a) > LeastFree(b);
  if (a.runnable != b.runnable) return a.runnable;
  const double ratio = a.decode_tps / b.decode_tps;
  if (ratio > 1 + kTie || ratio < 1 / (1 + kTie)) return ratio > 1;
  return a.prefill_tps > b.prefill_tps;
}

std::string MemoryText(const Candidate& candidate, const CostInputs& inputs) {
  size_t rank = 0;
  for (size_t i = 1; i < candidate.ranks.size(); ++i) {
    if (candidate.ranks[i].free_bytes < candidate.ranks[rank].free_bytes) {
      rank = i;
    }
  }
  const double memory = static_cast<double>(inputs.hosts[rank].memory_bytes);
  const double free = static_cast<double>(candidate.ranks[rank].free_bytes);
  return absl::StrFormat("does not fit: rank %d needs %.1f GiB of %.1f", rank,
                         std::ldexp(memory - free, -30),
                         std::ldexp(memory, -30));
}

std::string CannotRun(const Strategy& strategy) {
  switch (strategy.kind) {
    case StrategyKind::kMesh:
      if (strategy.mesh.world_size() <= kMaxGroupSize) {
        return "data groups lack the weights of other groups' experts";
      }
      return absl::StrCat("this program runs at most ", kMaxGroupSize,
                          " workers");
    case StrategyKind::kPipeline:
      return "this program has no layer pipeline";
  }
  return "";
}

// "25 % slower", "as fast"
std::string RatioText(double rate, double reference) {
  const double ratio = rate / reference;
  if (ratio > 1 + kTie) {
    return absl::StrFormat("%.0f %% faster", 100 * (ratio - 1));
  }
  if (ratio < 1 - kTie) {
    return absl::StrFormat("%.0f %% slower", 100 * (1 - ratio));
  }
  return "as fast";
}

// The part of a decode step in which two candidates differ most; empty when
// that is too little to be seen.
std::string PartText(const StepCost& cost, const StepCost& reference) {
  struct Part {
    const char* name;
    double StepCost::*seconds;
  };
  constexpr Part kParts[] = {{"attention", &StepCost::attention},
                             {"feed-forward", &StepCost::feed_forward},
                             {"the head", &StepCost::head},
                             {"exchanges", &StepCost::exchange}};
  const Part* largest = kParts;
  const auto difference = [&](const Part& part) {
    return std::abs(cost.*part.seconds - reference.*part.seconds);
  };
  for (const Part& part : kParts) {
    if (difference(part) > difference(*largest)) largest = &part;
  }
  const std::string own =
      absl::StrFormat("%.2f", 1e3 * (cost.*largest->seconds));
  const std::string other =
      absl::StrFormat("%.2f", 1e3 * (reference.*largest->seconds));
  if (own == other) return "";
  return absl::StrCat(largest->name, " take ", own, " ms a step instead of ",
                      other);
}

std::string WhyNot(const Candidate& candidate, const Candidate& choice,
                   const CostInputs& inputs) {
  std::string text;
  if (!candidate.fits) absl::StrAppend(&text, MemoryText(candidate, inputs));
  if (!candidate.runnable) {
    absl::StrAppend(&text, text.empty() ? "" : "; ",
                    CannotRun(candidate.strategy));
  }
  if (!choice.fits) return text;
  absl::StrAppend(&text, text.empty() ? "" : "; ", "decode ",
                  RatioText(candidate.decode_tps, choice.decode_tps),
                  ", prefill ",
                  RatioText(candidate.prefill_tps, choice.prefill_tps));
  const std::string part = PartText(candidate.decode, choice.decode);
  if (!part.empty()) absl::StrAppend(&text, ": ", part);
  return text;
}

// Keeps only the best of the candidates with several data groups.
void KeepBestDataGroups(std::vector<Candidate>* candidates) {
  const auto has_groups = [](const Candidate& candidate) {
    return candidate.strategy.mesh.data > 1;
  };
  std::optional<Candidate> best;
  for (const Candidate& candidate : *candidates) {
    if (!has_groups(candidate)) continue;
    if (!best.has_value() || Better(candidate, *best)) best = candidate;
  }
  std::erase_if(*candidates, has_groups);
  if (best.has_value()) candidates->push_back(*std::move(best));
}

// A fleet of `hosts` hosts of which each has the least of all.
CostInputs Uniform(const CostInputs& inputs, int hosts) {
  CostInputs uniform = inputs;
  uniform.hosts.assign(hosts, LeastOf(inputs.hosts));
  return uniform;
}

bool MeshFits(const PlanRequest& request, const HostSpec& host,
              const MeshShape& mesh) {
  const CostInputs& inputs = request.inputs;
  const int64_t sequences = (request.batch + mesh.data - 1) / mesh.data;
  RankMemory use = {.cache_bytes = CacheBytes(inputs.spec, inputs.cache_dtype,
                                              sequences, request.context),
                    .buffer_bytes = kPlannedBufferBytes};
  for (int rank = 0; rank < mesh.world_size(); ++rank) {
    use.weights = ShardSizesOf(
        inputs.spec, PlanShard(inputs.spec, mesh, rank).value(), inputs.forms);
    if (FreeBytes(host, use) < 0) return false;
  }
  return true;
}

std::optional<HostsNeeded> FindHostsNeeded(const PlanRequest& request) {
  const HostSpec host = Uniform(request.inputs, 1).hosts.front();
  const ShardSizes all = ShardSizesOf(
      request.inputs.spec, PlanShard(request.inputs.spec, {}, 0).value(),
      request.inputs.forms);
  // Fewer could not even hold one copy of all weights.
  const double least =
      static_cast<double>(all.total()) / static_cast<double>(host.memory_bytes);
  if (least > kMaxPlannedHosts) return std::nullopt;
  for (int hosts = std::max(1, static_cast<int>(least));
       hosts <= kMaxPlannedHosts; ++hosts) {
    for (const MeshShape& mesh : Meshes(hosts)) {
      if (MeshFits(request, host, mesh)) return HostsNeeded{hosts, mesh};
    }
  }
  return std::nullopt;
}

uint64_t MaxPositions(const Candidate& choice, const CostInputs& inputs) {
  constexpr uint64_t kBlock = kernels::kCacheBlockPositions;
  const uint64_t block_bytes =
      CacheBytes(inputs.spec, inputs.cache_dtype, 1, kBlock);
  uint64_t least = std::numeric_limits<uint64_t>::max();
  for (const RankMemory& rank : choice.ranks) {
    const int64_t left =
        rank.free_bytes + static_cast<int64_t>(rank.cache_bytes);
    least = std::min(least,
                     left <= 0 ? 0 : static_cast<uint64_t>(left) / block_bytes);
  }
  return least * kBlock * choice.strategy.mesh.data;
}

}  // namespace

FleetPlan MakeFleetPlan(const PlanRequest& request) {
  const ModelOnFleet model(request.inputs);
  const int world = model.world();
  RF_CHECK(world >= 1 && world <= kMaxPlannedHosts);
  RF_CHECK(request.batch >= 1 && request.context >= 1);
  std::vector<Candidate> candidates;
  for (const MeshShape& mesh : Meshes(world)) {
    candidates.push_back(Evaluate(model, request, {.mesh = mesh}));
  }
  // Not a sort: within ties the order is not transitive.
  const auto best =
      std::min_element(candidates.begin(), candidates.end(), Better);
  FleetPlan plan;
  plan.choice = *best;
  plan.fits = plan.choice.fits;
  candidates.erase(best);
  KeepBestDataGroups(&candidates);
  plan.alternatives = std::move(candidates);
  if (world > 1) {
    const MeshShape mesh = plan.choice.strategy.mesh;
    for (const v1::PrefillStrategy prefill :
         {v1::PREFILL_STRATEGY_REPLICATED,
          v1::PREFILL_STRATEGY_WEIGHT_GATHER}) {
      plan.alternatives.push_back(
          Evaluate(model, request, {.mesh = mesh, .prefill = prefill}));
    }
    plan.alternatives.push_back(Evaluate(
        model, request, {.kind = StrategyKind::kPipeline, .mesh = mesh}));
  }
  for (Candidate& candidate : plan.alternatives) {
    candidate.why_not = WhyNot(candidate, plan.choice, request.inputs);
  }
  std::stable_sort(plan.alternatives.begin(), plan.alternatives.end(),
                   [](const Candidate& a, const Candidate& b) {
                     return a.decode_tps > b.decode_tps;
                   });
  plan.max_positions = MaxPositions(plan.choice, request.inputs);
  if (!plan.fits) plan.hosts_needed = FindHostsNeeded(request);
  return plan;
}

std::vector<TableCell> PlanTable(const PlanRequest& request,
                                 const std::vector<int>& hosts,
                                 const std::vector<int64_t>& batches,
                                 const std::vector<int64_t>& contexts) {
  std::vector<TableCell> cells;
  for (const int count : hosts) {
    const ModelOnFleet model(Uniform(request.inputs, count));
    std::vector<Prepared> meshes;
    for (const MeshShape& mesh : Meshes(count)) {
      meshes.emplace_back(model, Strategy{.mesh = mesh});
    }
    for (const int64_t batch : batches) {
      for (const int64_t context : contexts) {
        PlanRequest cell_request = request;
        cell_request.batch = batch;
        cell_request.context = context;
        std::optional<Candidate> best;
        for (const Prepared& mesh : meshes) {
          Candidate candidate = Evaluate(mesh, cell_request);
          if (!best.has_value() || Better(candidate, *best)) {
            best = std::move(candidate);
          }
        }
        cells.push_back({.hosts = count,
                         .batch = batch,
                         .context = context,
                         .fits = best->fits,
                         .runnable = best->runnable,
                         .mesh = best->strategy.mesh,
                         .decode_tps = best->decode_tps,
                         .prefill_tps = best->prefill_tps});
      }
    }
  }
  return cells;
}

}  // namespace ringfleet::coordinator
