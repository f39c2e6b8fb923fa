// SPDX-License-Identifier: Apache-2.0
#include "worker/model/expert_dispatch.h"

#include <algorithm>
#include <cmath>

#include "cluster/model/expert_cost.h"

namespace ringfleet::worker {

using cluster::ExpertCost;
using cluster::kExpertReadTokens;

void ExpertDispatch::Assign(const cluster::ExpertLayout& layout, int layer,
                            absl::Span<const int32_t> route_ids,
                            absl::Span<const size_t> group_ends) {
  const int experts = layout.num_experts();
  rows_.assign(experts, 0);
  for (const int32_t expert : route_ids) ++rows_[expert];
  loads_.assign(layout.num_coordinates(), 0.0);
  const absl::Span<const double> slowness = layout.slowness();
  choices_.clear();
  for (int expert = 0; expert < experts; ++expert) {
    if (rows_[expert] == 0) continue;
    const absl::Span<const int32_t> coordinates =
        layout.Coordinates(layer, expert);
    if (coordinates.size() > 1) {
      choices_.push_back(expert);
      continue;
    }
    loads_[coordinates[0]] += static_cast<double>(ExpertCost(rows_[expert])) *
                              slowness[coordinates[0]];
  }
  std::sort(choices_.begin(), choices_.end(), [this](int32_t a, int32_t b) {
    return rows_[a] != rows_[b] ? rows_[a] > rows_[b] : a < b;
  });
  DealChoices(layout, layer);
  dropped_ = 0;
  coordinates_.resize(route_ids.size());
  const auto group_coordinates =
      static_cast<int32_t>(layout.num_coordinates() / group_ends.size());
  size_t route = 0;
  for (size_t group = 0; group < group_ends.size(); ++group) {
    const auto first = static_cast<int32_t>(group) * group_coordinates;
    for (; route < group_ends[group]; ++route) {
      const absl::Span<const int32_t> coordinates =
          layout.Coordinates(layer, route_ids[route]);
      coordinates_[route] = coordinates.size() == 1
                                ? coordinates[0]
                                : Take(coordinates, route_ids[route], first,
                                       first + group_coordinates);
    }
  }
  for (size_t i = 0; i < route_ids.size(); ++i) {
    if (coordinates_[i] >= 0) continue;
    coordinates_[i] = Take(layout.Coordinates(layer, route_ids[i]),
                           route_ids[i], 0, layout.num_coordinates());
  }
}

void ExpertDispatch::AssignByToken(const cluster::ExpertLayout& layout,
                                   int layer,
                                   absl::Span<const int32_t> route_ids,
                                   size_t each) {
  // Multiplier of Fibonacci hashing: spreads neighbouring sums.
  constexpr uint32_t kMultiplier = 0x9e3779b1;
  const size_t experts = layout.num_experts();
  std::vector<int64_t>& rows = parts_;  // By coordinate, then by expert.
  rows.assign(layout.num_coordinates() * experts, 0);
  coordinates_.resize(route_ids.size());
  for (size_t begin = 0; begin < route_ids.size(); begin += each) {
    uint32_t sum = 0;
    for (size_t i = begin; i < begin + each; ++i) {
      sum += static_cast<uint32_t>(route_ids[i]);
    }
    const uint32_t spread = (sum * kMultiplier) >> 16;
    for (size_t i = begin; i < begin + each; ++i) {
      const absl::Span<const int32_t> coordinates =
          layout.Coordinates(layer, route_ids[i]);
      coordinates_[i] = coordinates[spread % coordinates.size()];
      ++rows[coordinates_[i] * experts + route_ids[i]];
    }
  }
  loads_.assign(layout.num_coordinates(), 0.0);
  for (size_t i = 0; i < rows.size(); ++i) {
    if (rows[i] == 0) continue;
    loads_[i / experts] += static_cast<double>(ExpertCost(rows[i])) *
                           layout.slowness()[i / experts];
  }
  dropped_ = 0;
}

void ExpertDispatch::LimitRoutes(double capacity,
                                 absl::Span<const float> weights) {
  const size_t limit = static_cast<size_t>(
      std::ceil(capacity * static_cast<double>(coordinates_.size()) /
                static_cast<double>(loads_.size())));
  taken_.resize(loads_.size());
  for (std::vector<size_t>& routes : taken_) routes.clear();
  for (size_t i = 0; i < coordinates_.size(); ++i) {
    taken_[coordinates_[i]].push_back(i);
  }
  for (std::vector<size_t>& routes : taken_) {
    if (routes.size() <= limit) continue;
    const auto kept_end = routes.begin() + static_cast<ptrdiff_t>(limit);
    std::nth_element(
        routes.begin(), kept_end, routes.end(), [&](size_t a, size_t b) {
          return weights[a] != weights[b] ? weights[a] > weights[b] : a < b;
        });
    for (auto route = kept_end; route != routes.end(); ++route) {
      coordinates_[*route] = -1;
    }
    dropped_ += routes.size() - limit;
  }
}

int32_t ExpertDispatch::Take(absl::Span<const int32_t> coordinates, int expert,
                             int32_t begin, int32_t end) {
  int64_t* const parts = parts_.data() + first_part_[expert];
  for (size_t i = 0; i < coordinates.size(); ++i) {
    if (coordinates[i] < begin || coordinates[i] >= end || parts[i] == 0) {
      continue;
    }
    --parts[i];
    return coordinates[i];
  }
  return -1;
}

void ExpertDispatch::FindReplicas(const cluster::ExpertLayout& layout,
                                  int layer, int coordinate,
                                  absl::Span<const int32_t> route_ids,
                                  int32_t* replicas) {
  held_.assign(layout.num_experts(), -1);
  const absl::Span<const int32_t> held = layout.Held(layer, coordinate);
  for (size_t i = 0; i < held.size(); ++i) {
    held_[held[i]] = static_cast<int32_t>(i);
  }
  for (size_t i = 0; i < route_ids.size(); ++i) {
    replicas[i] = coordinates_[i] == coordinate ? held_[route_ids[i]] : -1;
  }
}

void ExpertDispatch::DealChoices(const cluster::ExpertLayout& layout,
                                 int layer) {
  parts_.clear();
  first_part_.resize(layout.num_experts());
  for (int round = 0; round < cluster::kDealRounds; ++round) {
    size_t first = 0;
    for (const int32_t expert : choices_) {
      const absl::Span<const int32_t> coordinates =
          layout.Coordinates(layer, expert);
      if (round == 0) parts_.resize(first + coordinates.size(), 0);
      first_part_[expert] = first;
      Deal(coordinates, layout.slowness(), rows_[expert],
           absl::MakeSpan(parts_).subspan(first, coordinates.size()));
      first += coordinates.size();
    }
  }
}

void ExpertDispatch::Deal(absl::Span<const int32_t> coordinates,
                          absl::Span<const double> slowness, int64_t rows,
                          absl::Span<int64_t> parts) {
  const auto cost = [&](int64_t part, int32_t coordinate) {
    return static_cast<double>(ExpertCost(part)) * slowness[coordinate];
  };
  lightest_.clear();
  for (size_t i = 0; i < coordinates.size(); ++i) {
    loads_[coordinates[i]] -= cost(parts[i], coordinates[i]);
    parts[i] = 0;
    lightest_.push_back(static_cast<int32_t>(i));
  }
  // Where reading it would end first.
  const auto with_it = [&](int32_t i) {
    return loads_[coordinates[i]] + cost(1, coordinates[i]);
  };
  std::sort(lightest_.begin(), lightest_.end(), [&](int32_t a, int32_t b) {
    const double end_a = with_it(a);
    const double end_b = with_it(b);
    return end_a != end_b ? end_a < end_b : a < b;
  });
  // So many parts that each is worth reading the expert, and up to which level
  // they fill their coordinates.
  int64_t count = std::clamp<int64_t>(rows / kExpertReadTokens, 1,
                                      static_cast<int64_t>(coordinates.size()));
  double level = 0;
  for (;; --count) {
    double tokens = static_cast<double>(rows);
    double rate = 0;
    for (int64_t i = 0; i < count; ++i) {
      const int32_t coordinate = coordinates[lightest_[i]];
      tokens += loads_[coordinate] / slowness[coordinate];
      rate += 1 / slowness[coordinate];
    }
    level = tokens / rate;
    if (count == 1 || loads_[coordinates[lightest_[count - 1]]] < level) break;
  }
  for (int64_t i = 0; i < count; ++i) {
    const int32_t coordinate = coordinates[lightest_[i]];
    const double room =
        std::ceil((level - loads_[coordinate]) / slowness[coordinate]);
    const int64_t part =
        i + 1 == count
            ? rows
            : std::clamp<int64_t>(static_cast<int64_t>(room), 0, rows);
    parts[lightest_[i]] = part;
    loads_[coordinate] += cost(part, coordinate);
    rows -= part;
  }
}

}  // namespace ringfleet::worker
