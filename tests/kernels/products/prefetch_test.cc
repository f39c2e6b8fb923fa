// SPDX-License-Identifier: Apache-2.0
#include "kernels/products/prefetch.h"

#include <gtest/gtest.h>

namespace ringfleet::kernels {
namespace {

TEST(GroupAheadTest, GoesOnWhereTheThreadDoes) {
  uint8_t panels[100] = {};
  uint8_t next[100] = {};
  const uint8_t* const end = panels + 40;
  EXPECT_EQ(GroupAhead(panels, 39, end, next), panels + 39);
  EXPECT_EQ(GroupAhead(panels, 40, end, next), next);
  EXPECT_EQ(GroupAhead(panels + 30, 25, end, next), next + 15);
  EXPECT_EQ(GroupAhead(panels + 30, 25, end, nullptr), panels + 55);
}

}  // namespace
}  // namespace ringfleet::kernels
