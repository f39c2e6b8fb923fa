// SPDX-License-Identifier: Apache-2.0
#include "worker/execution/expert_statistics.h"

#include <algorithm>
#include <utility>

namespace ringfleet::worker {

void ExpertStatistics::AddStep(std::vector<std::vector<uint64_t>>& counts,
                               std::vector<uint64_t>& dropped) {
  // A step that only freed slots or moved experts does not count.
  const bool empty =
      std::all_of(counts.begin(), counts.end(), [](const auto& layer) {
        return std::all_of(layer.begin(), layer.end(),
                           [](uint64_t count) { return count == 0; });
      });
  if (empty) return;
  MutexLock lock(&mu_);
  totals_.resize(counts.size());
  averages_.resize(counts.size());
  dropped_.resize(counts.size());
  for (size_t layer = 0; layer < counts.size(); ++layer) {
    std::vector<uint64_t>& totals = totals_[layer];
    std::vector<float>& averages = averages_[layer];
    dropped_[layer] += std::exchange(dropped[layer], 0);
    totals.resize(counts[layer].size());
    averages.resize(counts[layer].size());
    for (size_t expert = 0; expert < totals.size(); ++expert) {
      const uint64_t count = counts[layer][expert];
      counts[layer][expert] = 0;
      totals[expert] += count;
      averages[expert] = steps_ == 0
                             ? static_cast<float>(count)
                             : kDecay * averages[expert] +
                                   (1 - kDecay) * static_cast<float>(count);
    }
  }
  ++steps_;
}

void ExpertStatistics::Read(bool reset, v1::StatisticsResponse* response) {
  MutexLock lock(&mu_);
  response->set_steps(steps_);
  for (size_t layer = 0; layer < totals_.size(); ++layer) {
    if (totals_[layer].empty()) continue;
    v1::ExpertCounts* entry = response->add_layers();
    entry->set_layer(static_cast<uint32_t>(layer));
    entry->mutable_tokens()->Add(totals_[layer].begin(), totals_[layer].end());
    entry->mutable_average()->Add(averages_[layer].begin(),
                                  averages_[layer].end());
    entry->set_dropped(dropped_[layer]);
    if (!reset) continue;
    totals_[layer].assign(totals_[layer].size(), 0);
    dropped_[layer] = 0;
  }
}

}  // namespace ringfleet::worker
