// SPDX-License-Identifier: Apache-2.0
#include "cluster/placement/placement_balance.h"

#include <algorithm>

#include "cluster/model/shard_plan.h"

namespace ringfleet::cluster {

ExpertPlacement ContiguousPlacement(int num_layers, int num_experts,
                                    int num_gpus) {
  ExpertPlacement placement = {.num_layers = num_layers,
                               .num_experts = num_experts,
                               .num_replicas = num_experts,
                               .max_copies = 1};
  for (int g = 0; g < num_gpus; ++g) {
    placement.first_slots.push_back(SplitRange(num_experts, num_gpus, g).begin);
  }
  placement.first_slots.push_back(num_experts);
  for (int layer = 0; layer < num_layers; ++layer) {
    for (int e = 0; e < num_experts; ++e) placement.phy2log.push_back(e);
  }
  placement.log2phy = placement.phy2log;
  placement.logcnt.assign(placement.phy2log.size(), 1);
  return placement;
}

std::vector<double> GpuLoads(const ExpertPlacement& placement, int layer,
                             absl::Span<const float> loads) {
  const int32_t* phy2log = placement.phy2log.data() +
                           static_cast<size_t>(layer) * placement.num_replicas;
  const int32_t* logcnt = placement.logcnt.data() +
                          static_cast<size_t>(layer) * placement.num_experts;
  std::vector<double> sums;
  for (size_t g = 0; g + 1 < placement.first_slots.size(); ++g) {
    double sum = 0;
    for (int slot = placement.first_slots[g];
         slot < placement.first_slots[g + 1]; ++slot) {
      const int32_t expert = phy2log[slot];
      sum += static_cast<double>(loads[expert]) / logcnt[expert];
    }
    sums.push_back(sum);
  }
  return sums;
}

double Imbalance(absl::Span<const double> gpu_loads,
                 absl::Span<const float> speeds) {
  double load = 0;
  double speed = 0;
  double longest = 0;
  for (size_t g = 0; g < gpu_loads.size(); ++g) {
    const double gpu_speed = speeds.empty() ? 1 : speeds[g];
    load += gpu_loads[g];
    speed += gpu_speed;
    longest = std::max(longest, gpu_loads[g] / gpu_speed);
  }
  return load > 0 ? longest * speed / load : 1;
}

}  // namespace ringfleet::cluster
