// SPDX-License-Identifier: Apache-2.0
#include "kernels/logit_scan.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numbers>
#include <vector>

#include "gtest/gtest.h"
#include "tests/kernels/each_isa.h"
#include "tests/kernels/random_floats.h"

namespace ringfleet::kernels {
namespace {

constexpr float kInfinite = std::numeric_limits<float>::infinity();
constexpr float kNoNumber = std::numeric_limits<float>::quiet_NaN();

// Logits of every kind, many of them equal.
std::vector<float> MixedLogits(size_t size, uint32_t seed) {
  std::vector<float> logits = RandomFloats(size, seed, -9, 9);
  for (size_t i = 0; i < size; ++i) {
    logits[i] = std::round(logits[i] * 8) / 8;
    if ((i + seed) % 7 == 0) logits[i] = kNoNumber;
    if ((i + seed) % 11 == 0) logits[i] = -kInfinite;
    if (seed % 5 == 0 && i % 13 == 4) logits[i] = kInfinite;
  }
  return logits;
}

std::vector<uint32_t> Indices(const ScanHits& hits) {
  return {hits.index, hits.index + hits.count};
}

TEST(LogitScanTest, FindsWhatPlainLoopsFind) {
  ForEachIsa([] {
    ScanHits hits;
    for (size_t size = 0; size <= 150; ++size) {
      const std::vector<float> logits = MixedLogits(size, size);
      float highest = -kInfinite;
      for (const float logit : logits) {
        if (logit > highest) highest = logit;
      }
      EXPECT_EQ(HighestLogit(logits), highest) << size;
      for (const float value : {highest, -kInfinite, 0.125f, -3.0f, 99.0f}) {
        EXPECT_EQ(
            FindLogit(logits, value),
            std::find(logits.begin(), logits.end(), value) - logits.begin())
            << size << ' ' << value;
        std::vector<uint32_t> above;
        for (size_t i = 0; i < size; ++i) {
          if (logits[i] > value) above.push_back(static_cast<uint32_t>(i));
        }
        FindAbove(logits, value, &hits);
        EXPECT_EQ(Indices(hits), above) << size << ' ' << value;
      }
    }
    const std::vector<float> block(kScanBlock, 1.0f);
    FindAbove(block, 0, &hits);
    EXPECT_EQ(hits.count, kScanBlock);
  });
}

// Each power is off by a unit in the last place (2^-52) at most, each of the n
// additions by half of one.
TEST(LogitScanTest, SumsExponentialsInDouble) {
  ForEachIsa([] {
    for (const size_t size : {0, 1, 2, 3, 7, 8, 9, 64, 150, 5000}) {
      for (const float temperature : {0.01f, 0.6f, 1.0f, 40.0f}) {
        std::vector<float> logits = RandomFloats(size, 3, -30, 30);
        for (size_t i = 5; i < size; i += 9) logits[i] = kNoNumber;
        for (size_t i = 6; i < size; i += 9) logits[i] = -kInfinite;
        const float highest = HighestLogit(logits);
        double expected = 0;
        for (const float logit : logits) {
          if (std::isnan(logit)) continue;
          expected += std::exp((static_cast<double>(logit) - highest) /
                               static_cast<double>(temperature));
        }
        EXPECT_NEAR(SumExponentials(logits, highest, temperature), expected,
                    expected * (static_cast<double>(size) + 4) * 0x1p-52)
            << size << ' ' << temperature;
      }
    }
    EXPECT_EQ(SumExponentials({kInfinite, 1.0f, kInfinite, kNoNumber},
                              kInfinite, 0.5f),
              2);
    EXPECT_EQ(SumExponentials({-kInfinite, -kInfinite}, -kInfinite, 1), 2);
  });
}

// All that reach what is needed are found, and no other whose bound, twice the
// chance, does not.
TEST(LogitScanTest, FindsEveryContenderAndFewOthers) {
  ForEachIsa([] {
    ScanHits hits;
    size_t found = 0;
    size_t reaching = 0;
    for (uint32_t seed = 1; seed <= 60; ++seed) {
      const size_t size = 1 + seed * 17 % kScanBlock;
      const uint32_t first_id = seed % 3 == 0 ? 0xfffff000u : 129280 * seed;
      std::vector<float> logits = RandomFloats(size, seed, -8, 8);
      for (size_t i = 3; i < size; i += 10) logits[i] = kNoNumber;
      ContenderArgs args = {.key = {.seed = seed * 0x123456789abcdefu,
                                    .sample = seed,
                                    .position = seed | uint64_t{seed} << 33},
                            .highest = 8,
                            .temperature = seed % 2 == 0 ? 0.6f : 3.0f};
      for (const double needed : {-3.0, 0.0, 2.5, 9.0}) {
        args.needed = needed;
        FindContenders(logits, first_id, args, &hits);
        size_t next = 0;
        for (size_t i = 0; i < size; ++i) {
          const uint32_t id = first_id + static_cast<uint32_t>(i);
          const double below =
              (static_cast<double>(logits[i]) - 8) / args.temperature;
          const uint32_t word =
              Philox4x32({id, static_cast<uint32_t>(args.key.position),
                          static_cast<uint32_t>(args.key.position >> 32), seed},
                         {static_cast<uint32_t>(args.key.seed),
                          static_cast<uint32_t>(args.key.seed >> 32)})[1];
          const double bound =
              (32 - static_cast<double>(std::bit_width(~word)) + 1) *
              std::numbers::ln2;
          const bool reaches = below + GumbelNoise(args.key, id) >= needed;
          if (next < hits.count && hits.index[next] == i) {
            EXPECT_GE(below + bound, needed - 1e-9) << id;
            ++next;
          } else {
            EXPECT_FALSE(reaches) << id;
          }
          reaching += reaches;
        }
        EXPECT_EQ(next, hits.count);
        found += hits.count;
      }
    }
    EXPECT_GT(reaching, 1000u);
    EXPECT_LT(found, 2 * reaching);
  });
}

}  // namespace
}  // namespace ringfleet::kernels
