// SPDX-License-Identifier: Apache-2.0
#include "kernels/sampling.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/check.h"
#include "kernels/logit_scan.h"

namespace ringfleet::kernels {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// The largest noise is -log(-log(1 - 2^-53)) = 36.7368.
constexpr double kMaxGumbelNoise = 36.74;

// The best of the candidates offered so far, by logit / T + noise.
class GumbelMax {
 public:
  GumbelMax(const DrawKey& key, float temperature)
      : key_(key), temperature_(temperature) {}

  void Offer(const Candidate& candidate) {
    const double scaled = static_cast<double>(candidate.logit) / temperature_;
    // Most of a vocabulary can't win whatever its noise is.
    if (!empty_ && !(scaled + kMaxGumbelNoise >= score_)) return;
    const double noisy = scaled + GumbelNoise(key_, candidate.id);
    const double score = std::isnan(noisy) ? -kInfinity : noisy;
    if (empty_ || score > score_ ||
        (score == score_ && Precedes(candidate, best_))) {
      best_ = candidate;
      score_ = score;
      empty_ = false;
    }
  }

  const Candidate& best() const { return best_; }

  // Returns the least (logit - highest) / T + noise with which an id wins, less
  // the largest difference of both sides' roundings.
  double Needed(float highest) const {
    const double scaled = static_cast<double>(highest) / temperature_;
    const double magnitudes = std::abs(score_) + std::abs(scaled) + 64;
    return score_ - scaled - 0x1p-50 * magnitudes;
  }

 private:
  const DrawKey key_;
  const double temperature_;
  bool empty_ = true;
  Candidate best_;
  double score_ = 0;
};

}  // namespace

std::array<uint32_t, 4> Philox4x32(std::array<uint32_t, 4> counter,
                                   std::array<uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = uint64_t{0xD2511F53} * counter[0];
    const uint64_t product1 = uint64_t{0xCD9E8D57} * counter[2];
    counter = {static_cast<uint32_t>(product1 >> 32) ^ counter[1] ^ key[0],
               static_cast<uint32_t>(product1),
               static_cast<uint32_t>(product0 >> 32) ^ counter[3] ^ key[1],
               static_cast<uint32_t>(product0)};
    key[0] += 0x9E3779B9;  // The golden ratio.
    key[1] += 0xBB67AE85;  // sqrt(3) - 1.
  }
  return counter;
}

double GumbelNoise(const DrawKey& key, uint32_t id) {
  const std::array<uint32_t, 4> bits = Philox4x32(
      {id, static_cast<uint32_t>(key.position),
       static_cast<uint32_t>(key.position >> 32), key.sample},
      {static_cast<uint32_t>(key.seed), static_cast<uint32_t>(key.seed >> 32)});
  // 52 bits and a half: both ends of (0, 1) stay out of reach, and every value
  // is a double.
  const uint64_t word = (uint64_t{bits[1]} << 32 | bits[0]) >> 12;
  const double u = (static_cast<double>(word) + 0.5) * 0x1p-52;
  return -std::log(-std::log(u));
}

double LogSumExp::Value() const { return std::log(sum) + max; }

LogSumExp ReduceLogSumExp(absl::Span<const float> logits, float temperature) {
  LogSumExp result;
  const float highest = HighestLogit(logits);
  if (highest == -kInfinity) return result;
  result.sum = SumExponentials(logits, highest, temperature);
  // The sum is relative to the exact highest / T; `max` holds it rounded.
  const double scaled = static_cast<double>(highest) / temperature;
  result.max = static_cast<float>(scaled);
  if (std::isfinite(result.max)) result.sum *= std::exp(scaled - result.max);
  return result;
}

LogSumExp Merge(const LogSumExp& a, const LogSumExp& b) {
  if (a.max < b.max) return Merge(b, a);
  if (b.sum == 0) return a;
  const double difference =
      a.max == b.max ? 0 : static_cast<double>(b.max) - a.max;
  return {.sum = a.sum + b.sum * std::exp(difference), .max = a.max};
}

bool Precedes(const Candidate& a, const Candidate& b) {
  if (a.logit > b.logit) return true;
  if (a.logit < b.logit) return false;
  if (std::isnan(a.logit) != std::isnan(b.logit)) return std::isnan(b.logit);
  return a.id < b.id;
}

std::vector<Candidate> TopCandidates(absl::Span<const float> logits,
                                     uint32_t first_id, size_t count) {
  // A heap whose top is the last of the candidates kept so far.
  std::vector<Candidate> heap;
  count = std::min(count, logits.size());
  if (count == 0) return heap;
  heap.reserve(count);
  const auto candidate = [&](size_t i) {
    return Candidate{.id = first_id + static_cast<uint32_t>(i),
                     .logit = logits[i]};
  };
  size_t i = 0;
  for (; i < count; ++i) {
    heap.push_back(candidate(i));
    std::push_heap(heap.begin(), heap.end(), Precedes);
  }
  const auto offer = [&](const Candidate& next) {
    if (!Precedes(next, heap.front())) return;
    std::pop_heap(heap.begin(), heap.end(), Precedes);
    heap.back() = next;
    std::push_heap(heap.begin(), heap.end(), Precedes);
  };
  ScanHits above;
  for (; i < logits.size(); i += kScanBlock) {
    const absl::Span<const float> block = logits.subspan(i, kScanBlock);
    if (std::isnan(heap.front().logit)) {  // Anything precedes it.
      for (size_t k = 0; k < block.size(); ++k) offer(candidate(i + k));
      continue;
    }
    FindAbove(block, heap.front().logit, &above);
    for (size_t k = 0; k < above.count; ++k) {
      offer(candidate(i + above.index[k]));
    }
  }
  std::sort_heap(heap.begin(), heap.end(), Precedes);
  return heap;
}

size_t CountSurvivors(absl::Span<const Candidate> sorted,
                      const SamplingFilter& filter, double log_z,
                      bool complete) {
  if (sorted.empty()) return 0;
  if (filter.greedy()) return 1;
  const bool top_k = filter.top_k > 0;
  const size_t size =
      top_k ? std::min<size_t>(filter.top_k, sorted.size()) : sorted.size();
  // True: the filters cut off everything behind `size` candidates.
  const bool ends_here = complete || (top_k && filter.top_k <= sorted.size());
  const double temperature = filter.temperature;
  const double highest = sorted[0].logit;
  // Probability of a candidate over that of the first.
  const auto ratio = [&](size_t i) {
    if (sorted[i].logit == sorted[0].logit) return 1.0;
    const double value = std::exp((sorted[i].logit - highest) / temperature);
    return std::isnan(value) ? 0.0 : value;
  };

  size_t survivors = ends_here ? size : 0;  // 0: not known yet.
  size_t before_min_p = size;
  if (filter.top_p > 0 && filter.top_p < 1) {
    double total = 0;
    if (!top_k) {
      total = std::exp(log_z - highest / temperature);
    } else if (ends_here) {
      for (size_t i = 0; i < size; ++i) total += ratio(i);
    } else {
      return 0;  // The mass of the top_k candidates is not known.
    }
    const double wanted = filter.top_p * total;
    double mass = 0;
    for (size_t i = 0; i < size; ++i) {
      mass += ratio(i);
      if (mass >= wanted) {
        survivors = before_min_p = i + 1;
        break;
      }
    }
  }
  if (filter.min_p > 0) {
    for (size_t i = 0; i < before_min_p; ++i) {
      if (ratio(i) < filter.min_p) return std::max<size_t>(i, 1);
    }
  }
  return survivors;
}

Candidate Draw(absl::Span<const Candidate> survivors,
               const SamplingFilter& filter, const DrawKey& key) {
  RF_CHECK(!survivors.empty());
  if (filter.greedy()) return survivors[0];
  GumbelMax winner(key, filter.temperature);
  for (const Candidate& candidate : survivors) winner.Offer(candidate);
  return winner.best();
}

Candidate DrawFromShard(absl::Span<const float> logits, uint32_t first_id,
                        const SamplingFilter& filter, const DrawKey& key) {
  RF_CHECK(!logits.empty());
  const auto candidate = [&](size_t i) {
    return Candidate{.id = first_id + static_cast<uint32_t>(i),
                     .logit = logits[i]};
  };
  size_t first = FindLogit(logits, HighestLogit(logits));
  if (first == logits.size()) first = 0;  // All are NaN.
  const Candidate highest = candidate(first);
  if (filter.greedy()) return highest;
  // The highest goes first: with it as the bound most others need no noise.
  GumbelMax winner(key, filter.temperature);
  winner.Offer(highest);
  ScanHits contenders;
  for (size_t i = 0; i < logits.size(); i += kScanBlock) {
    FindContenders(logits.subspan(i, kScanBlock), candidate(i).id,
                   {.key = key,
                    .highest = highest.logit,
                    .temperature = filter.temperature,
                    .needed = winner.Needed(highest.logit)},
                   &contenders);
    for (size_t k = 0; k < contenders.count; ++k) {
      const Candidate contender = candidate(i + contenders.index[k]);
      if (contender.id != highest.id) winner.Offer(contender);
    }
  }
  return winner.best();
}

}  // namespace ringfleet::kernels
