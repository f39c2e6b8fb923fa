// SPDX-License-Identifier: Apache-2.0
#include "cluster/placement/placement_layout.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cluster/process/status_macros.h"

namespace ringfleet::cluster {
namespace {

// A GPU this much slower than the fastest is a mistake in the units.
constexpr float kMaxSlowness = 1e6f;
constexpr double kMaxMemory = 1e18;  // An exabyte, in bytes.

absl::Status WrongSize(absl::string_view what, int64_t value,
                       absl::string_view want) {
  return absl::InvalidArgumentError(
      absl::StrCat(what, " ", value, ", want ", want));
}

// Splits `total` in proportion to `weights`, part i at most most[i]: whole
// parts first, then one each in order of what was cut off. Less than `total` in
// all where that does not fit.
std::vector<int> Apportion(int total, absl::Span<const double> weights,
                           absl::Span<const int> most) {
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  std::vector<int> parts;
  std::vector<double> cut_off;
  int left = total;
  for (size_t i = 0; i < weights.size(); ++i) {
    const double quota = total * weights[i] / sum;
    parts.push_back(std::min(static_cast<int>(quota), most[i]));
    cut_off.push_back(quota - std::floor(quota));
    left -= parts.back();
  }
  std::vector<int> order(weights.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int a, int b) { return cut_off[a] > cut_off[b]; });
  for (bool room = true; left > 0 && room;) {
    room = false;
    for (const int i : order) {
      if (left == 0 || parts[i] == most[i]) continue;
      ++parts[i];
      --left;
      room = true;
    }
  }
  return parts;
}

absl::Status CheckGpus(const PlacementRequest& request) {
  const size_t num_gpus = static_cast<size_t>(request.num_gpus);
  const std::vector<int>& slots = request.gpu_slots;
  if (!slots.empty() && slots.size() != num_gpus) {
    return WrongSize("number of GPUs with slots",
                     static_cast<int64_t>(slots.size()),
                     absl::StrCat(num_gpus));
  }
  int64_t sum = 0;
  for (size_t g = 0; g < slots.size(); ++g) {
    if (slots[g] < 1) {
      return WrongSize(absl::StrCat("GPU ", g, ": slots"), slots[g],
                       "at least 1");
    }
    sum += slots[g];
  }
  if (!slots.empty() && sum != request.num_replicas) {
    return WrongSize("slots of all GPUs together", sum,
                     absl::StrCat(request.num_replicas, ", the replicas"));
  }
  const std::vector<float>& speeds = request.gpu_speeds;
  if (!speeds.empty() && speeds.size() != num_gpus) {
    return WrongSize("number of GPUs with speeds",
                     static_cast<int64_t>(speeds.size()),
                     absl::StrCat(num_gpus));
  }
  if (speeds.empty()) return absl::OkStatus();
  const float fastest = *std::max_element(speeds.begin(), speeds.end());
  for (size_t g = 0; g < speeds.size(); ++g) {
    if (!(speeds[g] > 0) || std::isinf(speeds[g]) ||
        fastest / speeds[g] > kMaxSlowness) {
      return absl::InvalidArgumentError(absl::StrCat(
          "GPU ", g, ": speed ", speeds[g],
          ", want more than 0, within a millionth of the fastest"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckSizes(int num_experts, const PlacementRequest& request) {
  if (request.num_gpus < 1 || request.num_gpus > kMaxReplicas) {
    return WrongSize("GPUs", request.num_gpus,
                     absl::StrCat("1 to ", kMaxReplicas));
  }
  if (request.num_replicas < num_experts ||
      request.num_replicas > kMaxReplicas) {
    return WrongSize(
        "replicas", request.num_replicas,
        absl::StrCat(num_experts, " (one of each expert) to ", kMaxReplicas));
  }
  if (request.gpu_slots.empty() &&
      request.num_replicas % request.num_gpus != 0) {
    return WrongSize(
        "replicas", request.num_replicas,
        absl::StrCat("a multiple of the ", request.num_gpus, " GPUs"));
  }
  return CheckGpus(request);
}

// Returns true if groups stay on nodes. Fails if they must and cannot.
absl::StatusOr<bool> IsHierarchical(int num_experts,
                                    const PlacementRequest& request) {
  if (request.policy == PlacementPolicy::kGlobal) return false;
  if (request.num_groups < 1) {
    return WrongSize("groups", request.num_groups, "at least 1");
  }
  if (request.num_nodes < 1) {
    return WrongSize("nodes", request.num_nodes, "at least 1");
  }
  const bool divides = request.num_groups % request.num_nodes == 0;
  if (!divides && request.policy == PlacementPolicy::kAuto) return false;
  if (!divides) {
    return WrongSize("groups", request.num_groups,
                     absl::StrCat("a multiple of the ", request.num_nodes,
                                  " nodes, or the global policy"));
  }
  if (num_experts % request.num_groups != 0) {
    return WrongSize("experts", num_experts,
                     absl::StrCat("a multiple of the ", request.num_groups,
                                  " groups, or the global policy"));
  }
  if (request.num_gpus % request.num_nodes != 0) {
    return WrongSize("GPUs", request.num_gpus,
                     absl::StrCat("a multiple of the ", request.num_nodes,
                                  " nodes, or the global policy"));
  }
  return true;
}

}  // namespace

absl::StatusOr<FleetLayout> MakeFleetLayout(int num_experts,
                                            const PlacementRequest& request) {
  RF_RETURN_IF_ERROR(CheckSizes(num_experts, request));
  FleetLayout layout;
  RF_ASSIGN_OR_RETURN(layout.hierarchical,
                      IsHierarchical(num_experts, request));
  const int num_nodes = layout.hierarchical ? request.num_nodes : 1;
  layout.num_groups = layout.hierarchical ? request.num_groups : 1;
  layout.group_size = num_experts / layout.num_groups;
  const int gpus_per_node = request.num_gpus / num_nodes;
  const std::vector<float>& speeds = request.gpu_speeds;
  const float fastest =
      speeds.empty() ? 1 : *std::max_element(speeds.begin(), speeds.end());
  int slot = 0;
  std::vector<double> node_slots;
  std::vector<int> most_groups;
  for (int n = 0; n < num_nodes; ++n) {
    NodeLayout node;
    float speed = 0;
    for (int g = n * gpus_per_node; g < (n + 1) * gpus_per_node; ++g) {
      const int slots = request.gpu_slots.empty()
                            ? request.num_replicas / request.num_gpus
                            : request.gpu_slots[g];
      node.gpus.push_back({slots, speeds.empty() ? 1 : speeds[g] / fastest});
      node.gpu_first_slots.push_back(slot);
      speed += node.gpus.back().speed;
      slot += slots;
      node.num_slots += slots;
    }
    node_slots.push_back(node.num_slots);
    most_groups.push_back(node.num_slots / layout.group_size);
    layout.nodes.push_back(std::move(node));
    layout.node_packs.push_back({.speed = speed});
  }
  const std::vector<int> groups =
      Apportion(layout.num_groups, node_slots, most_groups);
  if (std::accumulate(groups.begin(), groups.end(), 0) != layout.num_groups) {
    return absl::InvalidArgumentError(
        absl::StrCat(layout.num_groups, " groups of ", layout.group_size,
                     " experts do not fit the slots of ", num_nodes,
                     " nodes, want more slots or the global policy"));
  }
  for (int n = 0; n < num_nodes; ++n) {
    if (groups[n] == 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("node ", n, ": none of ", layout.num_groups,
                       " groups for its ", layout.nodes[n].num_slots,
                       " slots, want more slots or the global policy"));
    }
    layout.nodes[n].num_groups = layout.node_packs[n].capacity = groups[n];
  }
  return layout;
}

absl::StatusOr<std::vector<int>> SlotsByMemory(
    int total, absl::Span<const double> memory) {
  const int num_gpus = static_cast<int>(memory.size());
  if (num_gpus < 1 || total < num_gpus || total > kMaxReplicas) {
    return WrongSize(
        "replicas", total,
        absl::StrCat(num_gpus, " (one for each GPU) to ", kMaxReplicas));
  }
  for (int g = 0; g < num_gpus; ++g) {
    if (!(memory[g] > 0) || memory[g] > kMaxMemory) {
      return absl::InvalidArgumentError(
          absl::StrCat("GPU ", g, ": memory ", memory[g],
                       ", want more than 0, at most ", kMaxMemory));
    }
  }
  std::vector<int> slots =
      Apportion(total, memory, std::vector<int>(memory.size(), total));
  for (int& few : slots) {
    if (few > 0) continue;  // Else one of those that whoever has most has.
    --*std::max_element(slots.begin(), slots.end());
    few = 1;
  }
  return slots;
}

}  // namespace ringfleet::cluster
