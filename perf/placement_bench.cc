// SPDX-License-Identifier: Apache-2.0
// Time to place the experts of a whole model (EPLB), one thread: 61 layers of
// 256 experts with loads after Zipf's law, shuffled. Arguments: slots, GPUs,
// nodes; one node places globally.
#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "benchmark/benchmark.h"
#include "cluster/placement/placement.h"

namespace ringfleet::cluster {
namespace {

constexpr int kLayers = 61;
constexpr int kExperts = 256;

void PlaceModel(benchmark::State& state) {
  std::mt19937 random(1);
  std::vector<float> loads;
  for (int layer = 0; layer < kLayers; ++layer) {
    for (int e = 0; e < kExperts; ++e) {
      loads.push_back(1e6f / static_cast<float>(1 + e));
    }
    std::shuffle(loads.end() - kExperts, loads.end(), random);
  }
  const PlacementRequest request = {
      .num_replicas = static_cast<int>(state.range(0)),
      .num_groups = 8,
      .num_nodes = static_cast<int>(state.range(2)),
      .num_gpus = static_cast<int>(state.range(1)),
      .policy = state.range(2) == 1 ? PlacementPolicy::kGlobal
                                    : PlacementPolicy::kHierarchical};
  for (auto _ : state) {
    const auto placement = PlaceExperts(loads, kExperts, request);
    if (!placement.ok()) {
      state.SkipWithError(std::string(placement.status().message()).c_str());
      return;
    }
    benchmark::DoNotOptimize(placement->log2phy.data());
  }
}

BENCHMARK(PlaceModel)
    ->Unit(benchmark::kMillisecond)
    ->Args({288, 32, 4})
    ->Args({288, 16, 2})
    ->Args({288, 32, 1})
    ->Args({288, 144, 1})
    ->Args({288, 288, 1});

}  // namespace
}  // namespace ringfleet::cluster
