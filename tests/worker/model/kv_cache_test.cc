// SPDX-License-Identifier: Apache-2.0
#include "worker/model/kv_cache.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <set>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/check.h"

namespace ringfleet::worker {
namespace {

using kernels::Dtype;
using kernels::kCacheBlockPositions;

constexpr int kLatent = 5;
constexpr int kRope = 2;
constexpr int kRow = kLatent + kRope;

// A cache with the blocks of every slot's context.
KvCache Make(Dtype dtype, int layers, int kv_lora_rank, int rope_dim, int slots,
             int context) {
  auto cache = KvCache::Create(
      dtype, layers, kv_lora_rank, rope_dim,
      {.slots = slots,
       .context = context,
       .blocks = static_cast<int>(slots * kernels::CacheBlocks(context))});
  RF_CHECK(cache.ok());
  return *std::move(cache);
}

// Grants `slot` the highest free blocks until it has room for `positions`.
void Extend(KvCache& cache, int slot, int positions) {
  for (int block = cache.blocks(); block-- > 0;) {
    if (cache.positions(slot) >= positions) return;
    if (!cache.taken(block)) cache.Grant(slot, block);
  }
}

// Distinct for every slot, layer, position and element; not exact in bf16.
float ValueAt(int slot, int layer, int position, int element) {
  return 1000.0f * static_cast<float>(slot) + 100.0f * layer +
         static_cast<float>(position) + 0.0625f * element;
}

void WriteRows(KvCache& cache, int slot, int layers, int begin, int end) {
  for (int layer = 0; layer < layers; ++layer) {
    for (int position = begin; position < end; ++position) {
      float row[kRow];
      for (int i = 0; i < kRow; ++i) {
        row[i] = ValueAt(slot, layer, position, i);
      }
      cache.Write(slot, layer, position, row);
    }
  }
}

std::vector<float> RowAt(KvCache& cache, int slot, int layer, int position) {
  const kernels::LatentRowFormat& format = cache.format();
  const char* block =
      cache.Blocks(slot, layer)[position / kCacheBlockPositions];
  std::vector<float> row(kRow);
  kernels::LoadLatentRows(
      format, block + position % kCacheBlockPositions * format.bytes(), 1,
      row.data(), kRow);
  return row;
}

// What the cache makes of the row at a position.
std::vector<float> StoredRow(const kernels::LatentRowFormat& format, int slot,
                             int layer, int position) {
  std::vector<float> row(kRow);
  for (int i = 0; i < kRow; ++i) row[i] = ValueAt(slot, layer, position, i);
  std::vector<char> stored(format.bytes());
  kernels::StoreLatentRow(format, row.data(), stored.data());
  kernels::LoadLatentRows(format, stored.data(), 1, row.data(), kRow);
  return row;
}

class KvCacheTest : public ::testing::TestWithParam<Dtype> {
 protected:
  void ExpectRows(KvCache& cache, int slot, int layers, int end) {
    EXPECT_EQ(cache.format().dtype, GetParam());
    EXPECT_EQ(cache.format().kv_lora_rank, static_cast<size_t>(kLatent));
    EXPECT_EQ(cache.format().rope_dim, static_cast<size_t>(kRope));
    for (int layer = 0; layer < layers; ++layer) {
      for (int position = 0; position < end; ++position) {
        ASSERT_EQ(RowAt(cache, slot, layer, position),
                  StoredRow(cache.format(), slot, layer, position))
            << "slot " << slot << " layer " << layer << " position "
            << position;
      }
    }
  }
};

TEST_P(KvCacheTest, SlotsLayersAndPositionsDoNotOverlap) {
  KvCache cache =
      Make(GetParam(), /*layers=*/3, kLatent, kRope, /*slots=*/3, 300);
  for (int slot : {0, 1, 2}) Extend(cache, slot, 300);
  for (int slot : {0, 1, 2}) WriteRows(cache, slot, 3, 0, 300);
  for (int slot : {0, 1, 2}) ExpectRows(cache, slot, 3, 300);
}

TEST_P(KvCacheTest, RowsStayWhenASlotGrows) {
  KvCache cache = Make(GetParam(), 2, kLatent, kRope, 2, 400);
  int written = 0;
  for (int positions : {1, 127, 128, 129, 256, 257, 400}) {
    Extend(cache, 0, positions);
    Extend(cache, 1, positions);
    EXPECT_EQ(cache.Blocks(0, 1).size(),
              (positions + kCacheBlockPositions - 1) / kCacheBlockPositions);
    WriteRows(cache, 0, 2, written, positions);
    WriteRows(cache, 1, 2, written, positions);
    written = positions;
    ExpectRows(cache, 0, 2, positions);
    ExpectRows(cache, 1, 2, positions);
  }
}

TEST_P(KvCacheTest, WritingAPositionAgainReplacesIt) {
  KvCache cache = Make(GetParam(), 1, kLatent, kRope, 1, 128);
  Extend(cache, 0, 4);
  const float other[kRow] = {9, 9, 9, 9, 9, 9, 9};
  cache.Write(0, 0, 2, other);
  WriteRows(cache, 0, 1, 0, 4);
  ExpectRows(cache, 0, 1, 4);
}

TEST_P(KvCacheTest, ReleasedBlocksServeOtherSlots) {
  KvCache cache = Make(GetParam(), 2, kLatent, kRope, 3, 256);
  for (int round = 0; round < 4; ++round) {
    std::set<const char*> blocks;
    for (int slot : {0, 1, 2}) {
      Extend(cache, slot, 256);
      WriteRows(cache, slot, 2, 0, 256);
      for (const char* block : cache.Blocks(slot, 0)) {
        EXPECT_TRUE(blocks.insert(block).second) << "two slots share a block";
      }
    }
    for (int slot : {0, 1, 2}) ExpectRows(cache, slot, 2, 256);
    cache.Release(round % 3);
    EXPECT_TRUE(cache.Blocks(round % 3, 0).empty());
  }
}

TEST_P(KvCacheTest, SynthesizedRowsAreEqualInEveryCache) {
  KvCache cache = Make(GetParam(), 2, kLatent, kRope, 2, 300);
  KvCache other = Make(GetParam(), 2, kLatent, kRope, 2, 300);
  std::set<std::vector<float>> rows;
  for (KvCache* each : {&cache, &other}) {
    Extend(*each, 1, 300);
    each->Synthesize(1, 200);
  }
  double sum = 0;
  double squares = 0;
  for (int layer : {0, 1}) {
    for (int position = 0; position < 200; ++position) {
      const std::vector<float> row = RowAt(cache, 1, layer, position);
      EXPECT_EQ(row, RowAt(other, 1, layer, position));
      rows.insert(row);
      for (const float value : row) {
        sum += value;
        squares += value * value;
      }
    }
    EXPECT_EQ(RowAt(cache, 1, layer, 200), std::vector<float>(kRow, 0.0f));
  }
  EXPECT_EQ(rows.size(), 400u);
  constexpr double kValues = 400.0 * kRow;
  EXPECT_NEAR(sum / kValues, 0, 0.1);
  EXPECT_NEAR(squares / kValues, 1, 0.1);
}

TEST_P(KvCacheTest, ABlockIsZeroForItsNextOwner) {
  KvCache cache = Make(GetParam(), 2, kLatent, kRope, 2, 128);
  cache.Grant(0, 1);
  float row[kRow];
  std::fill(row, row + kRow, std::numeric_limits<float>::quiet_NaN());
  for (int layer : {0, 1}) cache.Write(0, layer, 5, row);
  cache.Release(0);
  EXPECT_FALSE(cache.taken(1));
  cache.Grant(1, 1);
  EXPECT_TRUE(cache.taken(1));
  for (int layer : {0, 1}) {
    EXPECT_EQ(RowAt(cache, 1, layer, 5), std::vector<float>(kRow, 0.0f));
  }
}

TEST_P(KvCacheTest, SharedAndCopiedBlocksHaveTheRowsOfTheFirst) {
  KvCache cache = Make(GetParam(), 2, kLatent, kRope, 2, 300);
  cache.Grant(0, 3);
  cache.Grant(0, 5);
  float row[kRow];
  for (int layer : {0, 1}) {
    for (int position = 0; position < 256; ++position) {
      std::fill(row, row + kRow, static_cast<float>(position + layer));
      cache.Write(0, layer, position, row);
    }
  }
  cache.Release(0);
  EXPECT_TRUE(cache.written(3));
  EXPECT_FALSE(cache.written(4));
  cache.Share(1, 3);
  EXPECT_TRUE(cache.taken(3));
  cache.Share(0, 3);
  cache.Release(0);
  EXPECT_TRUE(cache.taken(3));
  cache.Grant(1, 2);
  cache.Copy(5, 20, 1);
  EXPECT_EQ(cache.positions(1), 256);
  for (int layer : {0, 1}) {
    for (const int position : {0, 127, 128, 147}) {
      EXPECT_NEAR(RowAt(cache, 1, layer, position)[0], position + layer, 1);
    }
    EXPECT_EQ(RowAt(cache, 1, layer, 148), std::vector<float>(kRow, 0.0f));
  }
}

TEST_P(KvCacheTest, ReservesWholeBlocks) {
  const uint64_t bytes = KvCache::Bytes(GetParam(), 3, kLatent, kRope, 4);
  const kernels::LatentRowFormat format = {GetParam(), kLatent, kRope};
  EXPECT_EQ(bytes, uint64_t{2} * 2 * 128 * 3 * format.bytes());
  const KvCache cache = Make(GetParam(), 3, kLatent, kRope, 2, 129);
  EXPECT_EQ(cache.bytes(), bytes);
  EXPECT_EQ(cache.context(), 129);
}

TEST(KvCacheMemoryTest, ACacheThatDoesNotFitIsAnErrorWithItsSize) {
  const auto cache =
      KvCache::Create(Dtype::kF32, /*layers=*/61, 512, 64,
                      {.slots = 1, .context = 100, .blocks = 1 << 30});
  EXPECT_EQ(cache.status(),
            absl::ResourceExhaustedError(
                "cache of 1073741824 blocks of 128 positions: memory: the "
                "system refuses 19316220276768768 bytes"));
}

TEST(KvCacheDeathTest, RefusesBlocksThatAreTakenOrDoNotExist) {
  KvCache cache = Make(Dtype::kF32, 1, kLatent, kRope, 2, 100);
  cache.Grant(0, 1);
  EXPECT_DEATH(cache.Grant(1, 1), "taken");
  EXPECT_DEATH(cache.Grant(1, 2), "blocks");
  EXPECT_DEATH(cache.Grant(1, -1), "block >= 0");
}

INSTANTIATE_TEST_SUITE_P(Dtypes, KvCacheTest,
                         ::testing::Values(Dtype::kF32, Dtype::kBf16,
                                           Dtype::kInt8),
                         [](const auto& info) {
                           return std::string(kernels::DtypeName(info.param));
                         });

}  // namespace
}  // namespace ringfleet::worker
