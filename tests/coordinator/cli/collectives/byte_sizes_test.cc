// SPDX-License-Identifier: Apache-2.0
#include "coordinator/cli/collectives/byte_sizes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace ringfleet::coordinator::cli {
namespace {

using ::testing::ElementsAre;

std::string ErrorOf(absl::string_view text) {
  const auto sizes = ParseByteSizes(text);
  if (sizes.ok()) return "accepted";
  EXPECT_EQ(sizes.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(sizes.status().message());
}

TEST(ByteSizesTest, UnitsArePowersOf1024UnlessTheySayB) {
  EXPECT_THAT(ParseByteSizes("0,4,28k,28K,28KiB,28kB").value(),
              ElementsAre(0, 4, 28672, 28672, 28672, 28000));
  EXPECT_THAT(ParseByteSizes("7m, 2MiB,1mb,1g,1GiB,2gb,4g,16B").value(),
              ElementsAre(7 << 20, 2 << 20, 1'000'000, 1u << 30, 1u << 30,
                          2'000'000'000, uint64_t{4} << 30, 16));
}

TEST(ByteSizesTest, AFractionIsRoundedDownToElements) {
  // 1.8 * 2^20 = 1887436.8.
  EXPECT_THAT(ParseByteSizes("1.8m,1.75m,0.5k,1.8mb").value(),
              ElementsAre(1887436, 1835008, 512, 1'800'000));
}

TEST(ByteSizesTest, ErrorsNameTheSize) {
  EXPECT_EQ(ErrorOf("4,6"),
            "usage: --bytes '6', want a multiple of 4, a float32 element, as "
            "4");
  constexpr char kForms[] = ", want sizes as in 4,28k,1.8m,1GiB, at most 4g";
  for (const std::string bad :
       {"", "k", "-4", "4x", "4 k", "1e3", "1.2.3k", "5g", "4kk", ".",
        "99999999999999999999999", "nan", "inf"}) {
    EXPECT_EQ(ErrorOf(bad), "usage: --bytes '" + bad + "'" + kForms);
  }
  EXPECT_EQ(ErrorOf("4,,8"), std::string("usage: --bytes ''") + kForms);
}

}  // namespace
}  // namespace ringfleet::coordinator::cli
