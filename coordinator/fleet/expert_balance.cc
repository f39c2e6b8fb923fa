// SPDX-License-Identifier: Apache-2.0
#include "coordinator/fleet/expert_balance.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cluster/model/expert_cost.h"
#include "cluster/model/shard_plan.h"
#include "cluster/placement/placement_layout.h"
#include "cluster/process/status_macros.h"

namespace ringfleet::coordinator {
namespace {

using cluster::ExpertLayout;
using cluster::ExpertPlacement;

// A layer that gains less than this part of its time is left alone.
constexpr double kLeastGain = 0.02;

using ExpertLists = std::vector<std::vector<int32_t>>;

// Each coordinate's experts of a layer of a placement; copies that share a
// coordinate are one.
ExpertLists ListsOf(const ExpertPlacement& placement, int row) {
  ExpertLists lists(placement.first_slots.size() - 1);
  for (size_t coordinate = 0; coordinate < lists.size(); ++coordinate) {
    const int32_t* slots = placement.phy2log.data() +
                           static_cast<size_t>(row) * placement.num_replicas;
    std::vector<int32_t>& experts = lists[coordinate];
    experts.assign(slots + placement.first_slots[coordinate],
                   slots + placement.first_slots[coordinate + 1]);
    std::sort(experts.begin(), experts.end());
    experts.erase(std::unique(experts.begin(), experts.end()), experts.end());
  }
  return lists;
}

int CountShared(absl::Span<const int32_t> held,
                const std::vector<int32_t>& experts) {
  std::vector<int32_t> both;
  std::set_intersection(held.begin(), held.end(), experts.begin(),
                        experts.end(), std::back_inserter(both));
  return static_cast<int>(both.size());
}

// Gives each list to the coordinate that holds most of it: the largest overlap
// of all first, of equals the first coordinate and the first list.
void KeepWhatIsThere(const ExpertLayout& now, int layer, ExpertLists* lists) {
  const int num_coordinates = now.num_coordinates();
  std::vector<int> list_of(num_coordinates, -1);
  std::vector<char> taken(num_coordinates, 0);
  for (int round = 0; round < num_coordinates; ++round) {
    int most = -1;
    int best_coordinate = 0;
    int best_list = 0;
    for (int coordinate = 0; coordinate < num_coordinates; ++coordinate) {
      if (list_of[coordinate] >= 0) continue;
      for (int list = 0; list < num_coordinates; ++list) {
        if (taken[list] != 0) continue;
        const int shared =
            CountShared(now.Held(layer, coordinate), (*lists)[list]);
        if (shared <= most) continue;
        most = shared;
        best_coordinate = coordinate;
        best_list = list;
      }
    }
    list_of[best_coordinate] = best_list;
    taken[best_list] = 1;
  }
  ExpertLists sorted;
  for (const int list : list_of) sorted.push_back(std::move((*lists)[list]));
  *lists = std::move(sorted);
}

// Each coordinate's time when tokens are dealt out as workers do it: experts
// without copies first, then the others, those that cost most first, to fill
// their coordinates up to one level, three times.
//   slowness        of each coordinate, as ExpertLayout has it
//   coordinates(e)  where expert e is
template <typename Coordinates>
std::vector<double> CoordinateTimes(absl::Span<const double> costs,
                                    absl::Span<const double> slowness,
                                    Coordinates coordinates) {
  std::vector<double> times(slowness.size(), 0.0);
  std::vector<int> choices;
  for (size_t e = 0; e < costs.size(); ++e) {
    const auto of_expert = coordinates(static_cast<int>(e));
    if (of_expert.size() == 1) {
      times[of_expert[0]] += costs[e] * slowness[of_expert[0]];
    } else {
      choices.push_back(static_cast<int>(e));
    }
  }
  std::stable_sort(choices.begin(), choices.end(),
                   [&](int a, int b) { return costs[a] > costs[b]; });
  // Work that each choice has added to its coordinates. A few rounds even it
  // out.
  std::vector<std::vector<double>> parts(choices.size());
  for (int round = 0; round < cluster::kDealRounds; ++round) {
    for (size_t c = 0; c < choices.size(); ++c) {
      const auto of_expert = coordinates(choices[c]);
      parts[c].resize(of_expert.size(), 0.0);
      std::vector<int> lightest(of_expert.size());
      std::iota(lightest.begin(), lightest.end(), 0);
      for (const int i : lightest) times[of_expert[i]] -= parts[c][i];
      std::sort(lightest.begin(), lightest.end(), [&](int a, int b) {
        return std::make_pair(times[of_expert[a]], a) <
               std::make_pair(times[of_expert[b]], b);
      });
      // The level of as many coordinates as it reaches.
      double level = 0;
      size_t count = 0;
      double sum = costs[choices[c]];
      double rate = 0;
      do {
        const int at = of_expert[lightest[count++]];
        sum += times[at] / slowness[at];
        rate += 1 / slowness[at];
        level = sum / rate;
      } while (count < lightest.size() &&
               times[of_expert[lightest[count]]] < level);
      for (size_t i = 0; i < lightest.size(); ++i) {
        double& time = times[of_expert[lightest[i]]];
        parts[c][lightest[i]] = i < count ? level - time : 0;
        if (i < count) time = level;
      }
    }
  }
  return times;
}

// The time of the slowest coordinate, and of all if they ended together.
struct LayerTime {
  double slowest = 0;
  double mean = 0;
};

LayerTime TimeOf(const ExpertLayout& layout, int layer,
                 absl::Span<const double> costs) {
  const absl::Span<const double> slowness = layout.slowness();
  const std::vector<double> times = CoordinateTimes(
      costs, slowness,
      [&](int expert) { return layout.Coordinates(layer, expert); });
  double work = 0;
  double rate = 0;
  for (size_t coordinate = 0; coordinate < times.size(); ++coordinate) {
    work += times[coordinate] / slowness[coordinate];
    rate += 1 / slowness[coordinate];
  }
  return {.slowest = *std::max_element(times.begin(), times.end()),
          .mean = work / rate};
}

double Ratio(const LayerTime& time) {
  return time.mean > 0 ? time.slowest / time.mean : 1;
}

// The placement may put two replicas of an expert at one coordinate, where one
// is of no use. Its room goes to another expert. Coordinates are filled one
// replica at a time, the one with the least work first. It gets the expert
// whose work divided by its replicas is largest, from the busiest coordinate
// first.
void FillFreeReplicas(const std::vector<int>& slots,
                      absl::Span<const double> slowness,
                      absl::Span<const double> costs, ExpertLists* lists) {
  const int num_coordinates = static_cast<int>(slots.size());
  std::vector<std::vector<int>> coordinates(costs.size());
  for (int coordinate = 0; coordinate < num_coordinates; ++coordinate) {
    for (const int32_t expert : (*lists)[coordinate]) {
      coordinates[expert].push_back(coordinate);
    }
  }
  while (true) {
    const std::vector<double> times = CoordinateTimes(
        costs, slowness, [&](int expert) -> const std::vector<int>& {
          return coordinates[expert];
        });
    int lightest = -1;
    for (int coordinate = 0; coordinate < num_coordinates; ++coordinate) {
      const size_t most = std::min<size_t>(slots[coordinate], costs.size());
      if ((*lists)[coordinate].size() >= most) continue;
      if (lightest < 0 || times[coordinate] < times[lightest]) {
        lightest = coordinate;
      }
    }
    if (lightest < 0) return;
    const auto busiest = static_cast<int>(
        std::max_element(times.begin(), times.end()) - times.begin());
    int best = -1;
    std::pair<bool, double> most;  // Relieves the busiest; cost.
    for (size_t e = 0; e < costs.size(); ++e) {
      const std::vector<int>& copies = coordinates[e];
      if (std::count(copies.begin(), copies.end(), lightest) > 0) continue;
      const std::pair<bool, double> gain = {
          std::count(copies.begin(), copies.end(), busiest) > 0,
          costs[e] / static_cast<double>(copies.size())};
      if (best >= 0 && gain <= most) continue;
      best = static_cast<int>(e);
      most = gain;
    }
    coordinates[best].push_back(lightest);
    (*lists)[lightest].push_back(best);
    std::sort((*lists)[lightest].begin(), (*lists)[lightest].end());
  }
}

template <typename T>
bool AllAlike(const std::vector<T>& values) {
  return std::adjacent_find(values.begin(), values.end(),
                            std::not_equal_to<>()) == values.end();
}

bool CoordinatesAreAlike(const ExpertFacts& facts) {
  return AllAlike(facts.coordinate_replicas) &&
         AllAlike(facts.coordinate_speeds);
}

cluster::PlacementRequest RequestFor(const ExpertFacts& facts) {
  cluster::PlacementRequest request;
  request.num_replicas = std::accumulate(facts.coordinate_replicas.begin(),
                                         facts.coordinate_replicas.end(), 0);
  request.num_gpus = facts.num_coordinates;
  request.policy = cluster::PlacementPolicy::kGlobal;
  if (!CoordinatesAreAlike(facts)) {
    request.gpu_slots = facts.coordinate_replicas;
    request.gpu_speeds = facts.coordinate_speeds;
  }
  return request;
}

}  // namespace

absl::StatusOr<std::vector<int>> DealReplicas(int slots, int num_experts,
                                              int num_coordinates,
                                              absl::Span<const double> memory) {
  if (slots < num_experts || slots > int64_t{num_experts} * num_coordinates) {
    return absl::InvalidArgumentError(absl::StrCat(
        "expert slots ", slots, ", want ", num_experts, " (one for each) to ",
        int64_t{num_experts} * num_coordinates, " (all of them at each of ",
        num_coordinates, " coordinates)"));
  }
  if (!memory.empty()) return cluster::SlotsByMemory(slots, memory);
  std::vector<int> dealt(num_coordinates);
  for (int coordinate = 0; coordinate < num_coordinates; ++coordinate) {
    dealt[coordinate] =
        cluster::SplitRange(slots, num_coordinates, coordinate).size();
  }
  return dealt;
}

double ExpectedCost(double tokens) {
  // Tokens are Poisson-distributed: 1 - exp(-tokens) of the steps have any.
  return std::max(tokens, static_cast<double>(cluster::kExpertReadTokens) *
                              -std::expm1(-tokens));
}

double Imbalance(const ExpertLayout& layout, int layer,
                 absl::Span<const double> costs) {
  return Ratio(TimeOf(layout, layer, costs));
}

absl::StatusOr<BalanceProposal> ProposeLayout(
    const ExpertFacts& facts, const ExpertLayout& now,
    const std::vector<std::vector<double>>& tokens,
    cluster::PlacementPolicy policy, int nodes) {
  const size_t experts = facts.num_experts;
  cluster::PlacementRequest request = RequestFor(facts);
  if (policy == cluster::PlacementPolicy::kHierarchical) {
    request.policy = policy;
    request.num_groups = facts.num_groups;
    request.num_nodes = nodes;
  }
  std::vector<double> costs;
  std::vector<float> loads;
  for (const std::vector<double>& layer : tokens) {
    for (const double count : layer) {
      costs.push_back(ExpectedCost(count));
      loads.push_back(static_cast<float>(costs.back()));
    }
  }
  RF_ASSIGN_OR_RETURN(const ExpertPlacement placement,
                      cluster::PlaceExperts(loads, facts.num_experts, request));
  BalanceProposal proposal = {.layout = now};
  LayerTime before;
  LayerTime after;
  for (size_t row = 0; row < facts.layers.size(); ++row) {
    const int layer = facts.layers[row];
    const auto of_layer =
        absl::MakeConstSpan(costs).subspan(row * experts, experts);
    ExpertLists lists = ListsOf(placement, static_cast<int>(row));
    if (!placement.hierarchical) {
      FillFreeReplicas(facts.coordinate_replicas, now.slowness(), of_layer,
                       &lists);
    }
    if (CoordinatesAreAlike(facts) && !placement.hierarchical) {
      KeepWhatIsThere(now, layer, &lists);
    }
    ExpertLayout changed = now;
    RF_RETURN_IF_ERROR(changed.SetLayer(layer, lists));
    const LayerTime old_time = TimeOf(now, layer, of_layer);
    LayerTime new_time = TimeOf(changed, layer, of_layer);
    BalancedLayer result = {.layer = layer, .before = Ratio(old_time)};
    if (old_time.slowest - new_time.slowest > kLeastGain * old_time.slowest) {
      for (int coordinate = 0; coordinate < facts.num_coordinates;
           ++coordinate) {
        result.loaded +=
            static_cast<int>(lists[coordinate].size()) -
            CountShared(now.Held(layer, coordinate), lists[coordinate]);
      }
      RF_RETURN_IF_ERROR(proposal.layout.SetLayer(layer, std::move(lists)));
    } else {
      new_time = old_time;
    }
    result.after = Ratio(new_time);
    before.slowest += old_time.slowest;
    before.mean += old_time.mean;
    after.slowest += new_time.slowest;
    after.mean += new_time.mean;
    proposal.bytes_to_load += result.loaded * facts.expert_bytes;
    proposal.layers.push_back(result);
  }
  proposal.before = Ratio(before);
  proposal.after = Ratio(after);
  return proposal;
}

absl::StatusOr<ExpertLayout> InitialLayout(const ExpertFacts& facts) {
  ExpertLayout layout(facts.num_layers, facts.num_experts,
                      facts.num_coordinates);
  const int slots = std::accumulate(facts.coordinate_replicas.begin(),
                                    facts.coordinate_replicas.end(), 0);
  if (!facts.coordinate_speeds.empty()) {
    RF_RETURN_IF_ERROR(layout.SetSpeeds(facts.coordinate_speeds));
  }
  if (slots == facts.num_experts && CoordinatesAreAlike(facts)) return layout;
  const std::vector<float> equal(facts.num_experts, 1.0f);
  RF_ASSIGN_OR_RETURN(
      const ExpertPlacement placement,
      cluster::PlaceExperts(equal, facts.num_experts, RequestFor(facts)));
  ExpertLists lists = ListsOf(placement, 0);
  FillFreeReplicas(facts.coordinate_replicas, layout.slowness(),
                   std::vector<double>(facts.num_experts, 1.0), &lists);
  for (const int layer : facts.layers) {
    RF_RETURN_IF_ERROR(layout.SetLayer(layer, lists));
  }
  if (facts.mtp) {
    RF_RETURN_IF_ERROR(layout.SetLayer(facts.num_layers - 1, std::move(lists)));
  }
  return layout;
}

}  // namespace ringfleet::coordinator
