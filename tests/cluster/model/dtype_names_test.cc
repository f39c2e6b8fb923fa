// SPDX-License-Identifier: Apache-2.0
#include "cluster/model/dtype_names.h"

#include "gtest/gtest.h"

namespace ringfleet::cluster {
namespace {

TEST(WeightDtypeTest, NamesAreReadAsTheyAreWritten) {
  for (const std::string& name : WeightDtypeNames()) {
    const auto parsed = ParseWeightDtype(name);
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    EXPECT_EQ(WeightDtypeName(*parsed), name);
  }
  EXPECT_EQ(WeightDtypeNames().size(), 5u);
  EXPECT_EQ(ParseWeightDtype("f16").status(),
            absl::InvalidArgumentError(
                "dtype f16, want f32, bf16, int8, int4-experts or int4"));
}

TEST(CacheDtypeTest, NamesAreReadAsTheyAreWritten) {
  for (const v1::CacheDtype dtype :
       {v1::CACHE_DTYPE_F32, v1::CACHE_DTYPE_BF16, v1::CACHE_DTYPE_INT8}) {
    const auto parsed = ParseCacheDtype(CacheDtypeName(dtype));
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    EXPECT_EQ(*parsed, dtype);
  }
  EXPECT_EQ(CacheDtypeName(v1::CACHE_DTYPE_INT8), "int8");
}

TEST(CacheDtypeTest, OtherNamesAreErrorsWithTheChoices) {
  EXPECT_EQ(
      ParseCacheDtype("f16").status(),
      absl::InvalidArgumentError("cache type f16, want f32, bf16 or int8"));
  EXPECT_FALSE(ParseCacheDtype("").ok());
  EXPECT_FALSE(
      ParseCacheDtype(CacheDtypeName(v1::CACHE_DTYPE_UNSPECIFIED)).ok());
}

}  // namespace
}  // namespace ringfleet::cluster
