// SPDX-License-Identifier: Apache-2.0
#include "cluster/model/dtype_names.h"

#include "gtest/gtest.h"

namespace ringfleet::cluster {
namespace {

TEST(WeightDtypeTest, NamesAreReadAsTheyAreWritten) {
  for (const v1::Dtype dtype :
       {v1::DTYPE_NATIVE, v1::DTYPE_F32, v1::DTYPE_BF16, v1::DTYPE_INT8,
        v1::DTYPE_INT4_EXPERTS, v1::DTYPE_INT4}) {
    const auto parsed = ParseWeightDtype(WeightDtypeName(dtype));
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    EXPECT_EQ(*parsed, dtype);
  }
  EXPECT_EQ(
      ParseWeightDtype("f16").status(),
      absl::InvalidArgumentError(
          "dtype f16, want native, f32, bf16, int8, int4-experts or int4"));
  EXPECT_FALSE(ParseWeightDtype("").ok());
  EXPECT_FALSE(ParseWeightDtype(WeightDtypeName(v1::DTYPE_UNSPECIFIED)).ok());
}

TEST(CacheDtypeTest, EachHasItsName) {
  EXPECT_EQ(CacheDtypeName(v1::CACHE_DTYPE_F32), "f32");
  EXPECT_EQ(CacheDtypeName(v1::CACHE_DTYPE_BF16), "bf16");
  EXPECT_EQ(CacheDtypeName(v1::CACHE_DTYPE_INT8), "int8");
  EXPECT_EQ(CacheDtypeName(v1::CACHE_DTYPE_UNSPECIFIED), "unspecified");
}

}  // namespace
}  // namespace ringfleet::cluster
