// SPDX-License-Identifier: Apache-2.0
#include "worker/execution/expert_migration.h"

#include <utility>

#include "kernels/check.h"

namespace ringfleet::worker {
namespace {

uint64_t BytesOf(const MlpWeights& weights) {
  return weights.gate.bytes() + weights.up.bytes() + weights.down.bytes();
}

MoeWeights& MoeOf(Weights& weights, int layer) {
  const size_t index = layer;
  return index < weights.layers.size() ? weights.layers[index].moe
                                       : weights.mtp.at(0).layer.moe;
}

}  // namespace

std::vector<MissingExpert> MissingExperts(const cluster::ExpertLayout& now,
                                          const cluster::ExpertLayout& next,
                                          int coordinate) {
  std::vector<MissingExpert> missing;
  for (int layer = 0; layer < now.num_layers(); ++layer) {
    for (const int32_t expert : next.Held(layer, coordinate)) {
      if (now.IndexOf(layer, coordinate, expert) < 0) {
        missing.push_back({.layer = layer, .expert = expert});
      }
    }
  }
  return missing;
}

uint64_t StagedExperts::bytes() const {
  uint64_t sum = 0;
  for (const MlpWeights& weights : loaded) sum += BytesOf(weights);
  return sum;
}

void SwitchExperts(const cluster::ExpertLayout& now, int coordinate,
                   StagedExperts staged, Weights* weights) {
  RF_CHECK(staged.loaded.size() == staged.missing.size());
  size_t next = 0;  // In staged.loaded.
  for (int layer = 0; layer < now.num_layers(); ++layer) {
    const absl::Span<const int32_t> before = now.Held(layer, coordinate);
    const absl::Span<const int32_t> after =
        staged.layout.Held(layer, coordinate);
    if (before == after) continue;
    MoeWeights& moe = MoeOf(*weights, layer);
    RF_CHECK(moe.experts.size() == before.size());
    for (const MlpWeights& expert : moe.experts) {
      weights->bytes -= BytesOf(expert);
    }
    std::vector<MlpWeights> experts;
    experts.reserve(after.size());
    for (const int32_t expert : after) {
      const int index = now.IndexOf(layer, coordinate, expert);
      experts.push_back(
          std::move(index >= 0 ? moe.experts[index] : staged.loaded[next++]));
      weights->bytes += BytesOf(experts.back());
    }
    moe.experts = std::move(experts);
  }
  RF_CHECK(next == staged.loaded.size());
}

}  // namespace ringfleet::worker
