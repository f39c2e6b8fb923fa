// SPDX-License-Identifier: Apache-2.0
// What drawing one token costs one thread: passes over the 129280 logits of
// DeepSeek-V3's vocabulary, normal with a deviation of 3 as those of a model
// that knows what comes next roughly are. Argument: 100 times the temperature.
#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include "benchmark/benchmark.h"
#include "kernels/sampling.h"

namespace ringfleet::kernels {
namespace {

std::vector<float> Logits() {
  std::mt19937_64 random(1);
  std::normal_distribution<float> normal(0, 3);
  std::vector<float> logits(129280);
  for (float& logit : logits) logit = normal(random);
  return logits;
}

float Temperature(const benchmark::State& state) {
  return static_cast<float>(state.range(0)) / 100;
}

// The logarithm that every token's logprob needs.
void NormalizeLogits(benchmark::State& state) {
  const std::vector<float> logits = Logits();
  for (auto _ : state) {
    benchmark::DoNotOptimize(ReduceLogSumExp(logits, Temperature(state)));
  }
}

// Without filters; temperature 0 is greedy.
void DrawToken(benchmark::State& state) {
  const std::vector<float> logits = Logits();
  DrawKey key = {.seed = 7};
  for (auto _ : state) {
    ++key.position;
    benchmark::DoNotOptimize(
        DrawFromShard(logits, 0, {.temperature = Temperature(state)}, key));
  }
}

// What top-k, top-p and min-p choose from.
void FindCandidates(benchmark::State& state) {
  const std::vector<float> logits = Logits();
  for (auto _ : state) {
    benchmark::DoNotOptimize(TopCandidates(logits, 0, 256));
  }
}

BENCHMARK(NormalizeLogits)->Arg(60)->Arg(100)->Unit(benchmark::kMicrosecond);
BENCHMARK(DrawToken)->Arg(0)->Arg(60)->Arg(100)->Unit(benchmark::kMicrosecond);
BENCHMARK(FindCandidates)->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace ringfleet::kernels
