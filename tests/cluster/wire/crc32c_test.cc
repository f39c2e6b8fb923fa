// SPDX-License-Identifier: Apache-2.0
#include "cluster/wire/crc32c.h"

#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace ringfleet::cluster {
namespace {

std::vector<char> RandomChars(size_t size, uint32_t seed) {
  std::mt19937 generator(seed);
  std::vector<char> bytes(size);
  for (char& byte : bytes) byte = static_cast<char>(generator());
  return bytes;
}

// Bit by bit, from the definition.
uint32_t ReferenceCrc32c(const char* data, size_t size) {
  uint32_t crc = ~0u;
  for (size_t i = 0; i < size; ++i) {
    crc ^= static_cast<unsigned char>(data[i]);
    for (int bit = 0; bit < 8; ++bit) {
      crc = (crc >> 1) ^ ((crc & 1) ? 0x82f63b78u : 0u);
    }
  }
  return ~crc;
}

// RFC 3720, appendix B.4, and the check value of the CRC catalogues.
TEST(Crc32cTest, KnownVectors) {
  EXPECT_EQ(ExtendCrc32c(0, nullptr, 0), 0u);
  EXPECT_EQ(ExtendCrc32c(0, "123456789", 9), 0xe3069283u);
  EXPECT_EQ(ExtendCrc32c(0, std::string(32, '\0').data(), 32), 0x8a9136aau);
  EXPECT_EQ(ExtendCrc32c(0, std::string(32, '\xff').data(), 32), 0x62a8ab43u);
}

TEST(Crc32cTest, EverySizeAndAlignmentMatchesTheDefinition) {
  const std::vector<char> bytes = RandomChars(12000, 1);
  const auto compare = [&](size_t start, size_t size) {
    const char* const data = bytes.data() + start;
    ASSERT_EQ(ExtendCrc32c(0, data, size), ReferenceCrc32c(data, size))
        << size << " bytes at " << start;
    // Behind other data too.
    ASSERT_EQ(ExtendCrc32c(ReferenceCrc32c(bytes.data(), start), data, size),
              ReferenceCrc32c(bytes.data(), start + size))
        << size << " bytes at " << start;
  };
  for (size_t size = 0; size <= 900; ++size) compare(size % 8, size);
  for (size_t size = 3000; size < 3600; size += 7) compare(size % 8, size);
  for (size_t start = 0; start < 64; ++start) compare(start, 7408);
}

TEST(Crc32cTest, CombinesAnySplit) {
  const std::vector<char> bytes = RandomChars(100000, 2);
  std::mt19937 generator(3);
  for (int round = 0; round < 2000; ++round) {
    const size_t end = generator() % (bytes.size() + 1);
    const size_t split = round % 5 == 0 ? end - std::min<size_t>(end, round % 3)
                                        : generator() % (end + 1);
    const uint32_t a = ExtendCrc32c(0, bytes.data(), split);
    const uint32_t b = ExtendCrc32c(0, bytes.data() + split, end - split);
    ASSERT_EQ(CombineCrc32c(a, b, end - split),
              ExtendCrc32c(0, bytes.data(), end))
        << split << " of " << end;
  }
  EXPECT_EQ(CombineCrc32c(0, 0, 0), 0u);
  EXPECT_EQ(CombineCrc32c(0x12345678u, 0, 0), 0x12345678u);
  EXPECT_EQ(CombineCrc32c(0, 0x12345678u, 1), 0x12345678u);
}

TEST(Crc32cTest, CombinesWithFewBytes) {
  const std::vector<char> bytes = RandomChars(400, 6);
  constexpr size_t kSplit = 56;
  const uint32_t a = ExtendCrc32c(0, bytes.data(), kSplit);
  for (size_t end = kSplit; end <= bytes.size(); ++end) {
    const uint32_t b = ExtendCrc32c(0, bytes.data() + kSplit, end - kSplit);
    ASSERT_EQ(CombineCrc32c(a, b, end - kSplit),
              ReferenceCrc32c(bytes.data(), end))
        << end - kSplit << " bytes";
  }
}

// n copies of a block, n * size far beyond 2^32 bytes, put together from runs
// of 2^k copies: the longest run first, or last.
TEST(Crc32cTest, CombinesBeyondFourGiga) {
  const std::vector<char> block = RandomChars(1000003, 4);
  constexpr int kRuns = 20;
  uint32_t run[kRuns] = {ExtendCrc32c(0, block.data(), block.size())};
  const auto size = [&](int k) { return block.size() << k; };
  for (int k = 1; k < kRuns; ++k) {
    run[k] = CombineCrc32c(run[k - 1], run[k - 1], size(k - 1));
  }
  std::mt19937 generator(5);
  for (int round = 0; round < 100; ++round) {
    const uint32_t copies = 1u << (kRuns - 1) | generator() >> (32 - kRuns);
    uint32_t longest_first = 0;
    uint32_t longest_last = 0;
    for (int k = 0; k < kRuns; ++k) {
      const int down = kRuns - 1 - k;
      if (copies >> k & 1) {
        longest_last = CombineCrc32c(longest_last, run[k], size(k));
      }
      if (copies >> down & 1) {
        longest_first = CombineCrc32c(longest_first, run[down], size(down));
      }
    }
    ASSERT_EQ(longest_first, longest_last) << copies;
  }
}

}  // namespace
}  // namespace ringfleet::cluster
