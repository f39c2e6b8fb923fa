// SPDX-License-Identifier: Apache-2.0
#include "coordinator/scheduling/block_pool.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace ringfleet::coordinator {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

TEST(BlockPoolTest, BlocksHaveOneOwnerUntilTheyAreReturned) {
  BlockPool pool(3);
  EXPECT_EQ(pool.total(), 3u);
  std::vector<uint32_t> first;
  std::vector<uint32_t> second;
  pool.Take(2, &first);
  pool.Take(1, &second);
  EXPECT_THAT(first, ElementsAre(0, 1));
  EXPECT_THAT(second, ElementsAre(2));
  EXPECT_EQ(pool.free(), 0u);
  pool.Return(first);
  EXPECT_EQ(pool.free(), 2u);
  std::vector<uint32_t> third;
  pool.Take(2, &third);
  EXPECT_THAT(third, UnorderedElementsAre(0, 1));
}

TEST(BlockPoolTest, ASharedBlockIsFreeAfterItsLastOwner) {
  BlockPool pool(2);
  std::vector<uint32_t> blocks;
  pool.Take(2, &blocks);
  pool.Share({0});
  pool.Return(blocks);
  EXPECT_EQ(pool.free(), 1u);
  std::vector<uint32_t> taken;
  pool.Take(1, &taken);
  EXPECT_THAT(taken, ElementsAre(1));
  pool.Return({0});
  EXPECT_EQ(pool.free(), 1u);
}

TEST(BlockPoolTest, NothingTakesNothing) {
  BlockPool pool(0);
  std::vector<uint32_t> blocks;
  pool.Take(0, &blocks);
  EXPECT_THAT(blocks, IsEmpty());
  EXPECT_EQ(pool.free(), 0u);
}

TEST(BlockPoolDeathTest, RefusesMoreThanIsFreeAndFreeBlocks) {
  BlockPool pool(1);
  std::vector<uint32_t> blocks;
  EXPECT_DEATH(pool.Take(2, &blocks), "count <= free");
  EXPECT_DEATH(pool.Return({0}), "owners_");
  EXPECT_DEATH(pool.Share({0}), "owners_");
}

}  // namespace
}  // namespace ringfleet::coordinator
