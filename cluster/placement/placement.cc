// SPDX-License-Identifier: Apache-2.0
#include "cluster/placement/placement.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <numeric>
#include <queue>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cluster/placement/placement_layout.h"
#include "cluster/process/status_macros.h"

namespace ringfleet::cluster {
namespace {

// An item of PackBalanced.
struct PackedItem {
  int pack = 0;
  int rank = 0;  // Among the pack's items, in the order they came.
};

// Copies of one node's experts, in the order in which they were made.
struct Copies {
  std::vector<int> experts;  // [slots] index among the node's experts
  std::vector<int> ranks;    // [slots] how many copies were there before
  std::vector<int> counts;   // [experts]
  std::vector<float> loads;  // [experts] of a copy
};

std::vector<int> DescendingOrder(absl::Span<const float> loads) {
  std::vector<int> order(loads.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int a, int b) { return loads[a] > loads[b]; });
  return order;
}

// Puts every item into a pack. The packs' capacities add up to the items.
std::vector<PackedItem> PackBalanced(absl::Span<const float> loads,
                                     absl::Span<const Pack> packs) {
  std::vector<PackedItem> packed(loads.size());
  float fastest = 0;
  for (const Pack& pack : packs) fastest = std::max(fastest, pack.speed);
  const bool one_each =
      std::all_of(packs.begin(), packs.end(), [&](const Pack& pack) {
        return pack.capacity == 1 && pack.speed == fastest;
      });
  if (one_each) {
    for (size_t i = 0; i < packed.size(); ++i) {
      packed[i].pack = static_cast<int>(i);
    }
    return packed;
  }

  // The lightest pack of a speed is always the best of this speed, so only the
  // tops of the queues are compared.
  using LoadOfPack = std::pair<float, int>;
  std::map<float, std::priority_queue<LoadOfPack, std::vector<LoadOfPack>,
                                      std::greater<LoadOfPack>>>
      open_by_slowness;  // Packs with room.
  for (size_t p = 0; p < packs.size(); ++p) {
    open_by_slowness[fastest / packs[p].speed].push({0, static_cast<int>(p)});
  }
  std::vector<int> items(packs.size());
  for (const int item : DescendingOrder(loads)) {
    auto best = open_by_slowness.end();
    std::tuple<float, float, int> best_key;  // Time, load, pack.
    for (auto it = open_by_slowness.begin(); it != open_by_slowness.end();
         ++it) {
      const auto [load, pack] = it->second.top();
      const std::tuple key((load + loads[item]) * it->first, load, pack);
      if (best == open_by_slowness.end() || key < best_key) {
        best = it;
        best_key = key;
      }
    }
    const auto [load, pack] = best->second.top();
    best->second.pop();
    packed[item] = {pack, items[pack]++};
    if (items[pack] < packs[pack].capacity) {
      best->second.push({load + loads[item], pack});
    } else if (best->second.empty()) {
      open_by_slowness.erase(best);
    }
  }
  return packed;
}

// `loads` [experts] into at least as many slots.
Copies Replicate(absl::Span<const float> loads, int slots) {
  const int num_experts = static_cast<int>(loads.size());
  Copies copies;
  copies.experts.resize(slots);
  copies.ranks.resize(slots);
  copies.counts.assign(num_experts, 1);
  copies.loads.assign(loads.begin(), loads.end());
  std::iota(copies.experts.begin(), copies.experts.begin() + num_experts, 0);
  // Load of a copy and the expert, negative so that the first of equals leads.
  std::vector<std::pair<float, int>> single;
  for (int e = 0; e < num_experts; ++e) single.push_back({loads[e], -e});
  std::priority_queue heaviest(std::less<std::pair<float, int>>(),
                               std::move(single));
  for (int slot = num_experts; slot < slots; ++slot) {
    const int expert = -heaviest.top().second;
    heaviest.pop();
    copies.experts[slot] = expert;
    copies.ranks[slot] = copies.counts[expert]++;
    copies.loads[expert] =
        loads[expert] / static_cast<float>(copies.counts[expert]);
    heaviest.push({copies.loads[expert], -expert});
  }
  return copies;
}

// One layer: `loads` [experts] to `phy2log` [replicas], the number of each
// slot's copy among its expert's in `copy_ranks` [replicas], `logcnt`
// [experts].
void PlaceLayer(const FleetLayout& layout, absl::Span<const float> loads,
                int32_t* phy2log, int* copy_ranks, int32_t* logcnt) {
  std::vector<float> group_loads(layout.num_groups);
  for (size_t e = 0; e < loads.size(); ++e) {
    group_loads[e / layout.group_size] += loads[e];
  }
  std::vector<std::vector<int>> node_groups;
  for (const NodeLayout& node : layout.nodes) {
    node_groups.emplace_back(node.num_groups);
  }
  const std::vector<PackedItem> packed_groups =
      PackBalanced(group_loads, layout.node_packs);
  for (int group = 0; group < layout.num_groups; ++group) {
    const PackedItem& packed = packed_groups[group];
    node_groups[packed.pack][packed.rank] = group;
  }

  std::vector<int> experts;  // One node's.
  std::vector<float> expert_loads;
  std::vector<float> slot_loads;
  for (size_t n = 0; n < layout.nodes.size(); ++n) {
    const NodeLayout& node = layout.nodes[n];
    experts.clear();
    expert_loads.clear();
    for (const int group : node_groups[n]) {
      for (int i = 0; i < layout.group_size; ++i) {
        experts.push_back(group * layout.group_size + i);
        expert_loads.push_back(loads[experts.back()]);
      }
    }
    const Copies copies = Replicate(expert_loads, node.num_slots);
    slot_loads.clear();
    for (const int expert : copies.experts) {
      slot_loads.push_back(copies.loads[expert]);
    }
    const std::vector<PackedItem> packed = PackBalanced(slot_loads, node.gpus);
    for (int i = 0; i < node.num_slots; ++i) {
      const int slot = node.gpu_first_slots[packed[i].pack] + packed[i].rank;
      phy2log[slot] = experts[copies.experts[i]];
      copy_ranks[slot] = copies.ranks[i];
    }
    for (size_t e = 0; e < experts.size(); ++e) {
      logcnt[experts[e]] = copies.counts[e];
    }
  }
}

absl::Status TooMany(absl::string_view what, int64_t entries) {
  return absl::InvalidArgumentError(absl::StrCat(
      what, ": ", entries, ", want at most ", kMaxPlacementEntries));
}

absl::Status CheckLoads(absl::Span<const float> loads, int num_experts) {
  if (num_experts < 1 || loads.empty() || loads.size() % num_experts != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(loads.size(), " loads of ", num_experts,
                     " experts, want at least one layer of them"));
  }
  float sum = 0;
  for (size_t i = 0; i < loads.size(); ++i) {
    const size_t layer = i / num_experts;
    if (!(loads[i] >= 0) || std::isinf(loads[i])) {
      return absl::InvalidArgumentError(absl::StrCat(
          "layer ", layer, ", expert ", i % num_experts, ": load ", loads[i],
          ", want a finite number that is not negative"));
    }
    sum = i % num_experts == 0 ? loads[i] : sum + loads[i];
    if (std::isinf(sum)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "layer ", layer, ": the sum of its loads is more than ",
          std::numeric_limits<float>::max(), ", want less: float32 adds them"));
    }
  }
  return absl::OkStatus();
}

// From phy2log and each slot's copy, over all layers.
void InvertPlacement(absl::Span<const int> copy_ranks,
                     ExpertPlacement* placement) {
  const size_t copies = placement->max_copies;
  placement->log2phy.assign(placement->logcnt.size() * copies, -1);
  for (size_t i = 0; i < placement->phy2log.size(); ++i) {
    const size_t layer = i / placement->num_replicas;
    const size_t expert =
        layer * placement->num_experts + placement->phy2log[i];
    placement->log2phy[expert * copies + copy_ranks[i]] =
        static_cast<int32_t>(i % placement->num_replicas);
  }
}

}  // namespace

absl::StatusOr<ExpertPlacement> PlaceExperts(absl::Span<const float> loads,
                                             int num_experts,
                                             const PlacementRequest& request) {
  RF_RETURN_IF_ERROR(CheckLoads(loads, num_experts));
  RF_ASSIGN_OR_RETURN(const FleetLayout layout,
                      MakeFleetLayout(num_experts, request));
  const size_t num_layers = loads.size() / num_experts;
  const size_t num_replicas = request.num_replicas;
  // Before anything of that size is allocated.
  const int64_t slots = static_cast<int64_t>(num_layers * num_replicas);
  if (slots > kMaxPlacementEntries) {
    return TooMany("slots of all layers together", slots);
  }

  ExpertPlacement placement = {.num_layers = static_cast<int>(num_layers),
                               .num_experts = num_experts,
                               .num_replicas = request.num_replicas,
                               .hierarchical = layout.hierarchical};
  for (const NodeLayout& node : layout.nodes) {
    placement.first_slots.insert(placement.first_slots.end(),
                                 node.gpu_first_slots.begin(),
                                 node.gpu_first_slots.end());
  }
  placement.first_slots.push_back(request.num_replicas);
  placement.phy2log.resize(num_layers * num_replicas);
  placement.logcnt.resize(loads.size());
  std::vector<int> copy_ranks(num_layers * num_replicas);
  for (size_t layer = 0; layer < num_layers; ++layer) {
    PlaceLayer(layout, loads.subspan(layer * num_experts, num_experts),
               placement.phy2log.data() + layer * num_replicas,
               copy_ranks.data() + layer * num_replicas,
               placement.logcnt.data() + layer * num_experts);
  }
  placement.max_copies =
      *std::max_element(placement.logcnt.begin(), placement.logcnt.end());
  const int64_t entries =
      static_cast<int64_t>(loads.size()) * placement.max_copies;
  if (entries > kMaxPlacementEntries) {
    return TooMany("layers x experts x most copies", entries);
  }
  InvertPlacement(copy_ranks, &placement);
  return placement;
}

}  // namespace ringfleet::cluster
