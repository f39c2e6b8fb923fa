// SPDX-License-Identifier: Apache-2.0
#include "worker/expert_dispatch.h"

#include <algorithm>
#include <cmath>

#include "cluster/expert_cost.h"

namespace ringfleet::worker {

using cluster::ExpertCost;
using cluster::kExpertReadTokens;

void ExpertDispatch::Assign(const cluster::ExpertLayout& layout, int layer,
                            int place, absl::Span<const int32_t> route_ids,
                            int32_t* slots) {
  const int experts = layout.num_experts();
  rows_.assign(experts, 0);
  for (const int32_t expert : route_ids) ++rows_[expert];
  loads_.assign(layout.num_places(), 0.0);
  const absl::Span<const double> slowness = layout.slowness();
  shares_.assign(experts, Share());
  const absl::Span<const int32_t> held = layout.Held(layer, place);
  for (size_t i = 0; i < held.size(); ++i) {
    shares_[held[i]].slot = static_cast<int32_t>(i);
  }
  choices_.clear();
  for (int expert = 0; expert < experts; ++expert) {
    if (rows_[expert] == 0) continue;
    const absl::Span<const int32_t> places = layout.Places(layer, expert);
    if (places.size() > 1) {
      choices_.push_back(expert);
      continue;
    }
    loads_[places[0]] +=
        static_cast<double>(ExpertCost(rows_[expert])) * slowness[places[0]];
    if (places[0] == place) shares_[expert].end = rows_[expert];
  }
  std::sort(choices_.begin(), choices_.end(), [this](int32_t a, int32_t b) {
    return rows_[a] != rows_[b] ? rows_[a] > rows_[b] : a < b;
  });
  DealChoices(layout, layer, place);
  for (size_t i = 0; i < route_ids.size(); ++i) {
    Share& share = shares_[route_ids[i]];
    const int64_t at = share.seen++;
    slots[i] = at >= share.begin && at < share.end ? share.slot : -1;
  }
}

void ExpertDispatch::DealChoices(const cluster::ExpertLayout& layout, int layer,
                                 int place) {
  parts_.clear();
  for (int round = 0; round < cluster::kDealRounds; ++round) {
    size_t first = 0;
    for (const int32_t expert : choices_) {
      const absl::Span<const int32_t> places = layout.Places(layer, expert);
      if (round == 0) parts_.resize(first + places.size(), 0);
      Deal(places, layout.slowness(), rows_[expert],
           absl::MakeSpan(parts_).subspan(first, places.size()));
      first += places.size();
    }
  }
  size_t part = 0;
  for (const int32_t expert : choices_) {
    int64_t begin = 0;
    for (const int32_t at : layout.Places(layer, expert)) {
      const int64_t rows = parts_[part++];
      if (at == place) {
        shares_[expert].begin = begin;
        shares_[expert].end = begin + rows;
      }
      begin += rows;
    }
  }
}

void ExpertDispatch::Deal(absl::Span<const int32_t> places,
                          absl::Span<const double> slowness, int64_t rows,
                          absl::Span<int64_t> parts) {
  const auto cost = [&](int64_t part, int32_t place) {
    return static_cast<double>(ExpertCost(part)) * slowness[place];
  };
  lightest_.clear();
  for (size_t i = 0; i < places.size(); ++i) {
    loads_[places[i]] -= cost(parts[i], places[i]);
    parts[i] = 0;
    lightest_.push_back(static_cast<int32_t>(i));
  }
  // Where reading it would end first.
  const auto with_it = [&](int32_t i) {
    return loads_[places[i]] + cost(1, places[i]);
  };
  std::sort(lightest_.begin(), lightest_.end(), [&](int32_t a, int32_t b) {
    const double end_a = with_it(a);
    const double end_b = with_it(b);
    return end_a != end_b ? end_a < end_b : a < b;
  });
  // So many parts that each is worth reading the expert, and up to which level
  // they fill their places.
  int64_t count = std::clamp<int64_t>(rows / kExpertReadTokens, 1,
                                      static_cast<int64_t>(places.size()));
  double level = 0;
  for (;; --count) {
    double tokens = static_cast<double>(rows);
    double rate = 0;
    for (int64_t i = 0; i < count; ++i) {
      const int32_t place = places[lightest_[i]];
      tokens += loads_[place] / slowness[place];
      rate += 1 / slowness[place];
    }
    level = tokens / rate;
    if (count == 1 || loads_[places[lightest_[count - 1]]] < level) break;
  }
  for (int64_t i = 0; i < count; ++i) {
    const int32_t place = places[lightest_[i]];
    const double room = std::ceil((level - loads_[place]) / slowness[place]);
    const int64_t part =
        i + 1 == count
            ? rows
            : std::clamp<int64_t>(static_cast<int64_t>(room), 0, rows);
    parts[lightest_[i]] = part;
    loads_[place] += cost(part, place);
    rows -= part;
  }
}

}  // namespace ringfleet::worker
