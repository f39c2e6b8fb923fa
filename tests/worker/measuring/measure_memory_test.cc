// SPDX-License-Identifier: Apache-2.0
#include "worker/measuring/measure_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "worker/loading/host.h"

namespace ringfleet::worker {
namespace {

using ::testing::DoubleEq;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::Gt;
using ::testing::SizeIs;

TEST(TimeSlicesTest, BytesCountWhereTheirTimeIs) {
  TimeSlices slices(0.5, 3);
  slices.Add(-1.0, -0.5, 7);    // Before the first.
  slices.Add(-0.25, 0.25, 8);   // Half of it.
  slices.Add(0.25, 1.25, 100);  // A quarter, a half, a quarter.
  slices.Add(1.25, 1.75, 10);   // Half of it is behind the last.
  slices.Add(1.5, 9.0, 1000);
  EXPECT_THAT(slices.bytes(),
              ElementsAre(DoubleEq(29), DoubleEq(50), DoubleEq(30)));
  EXPECT_DOUBLE_EQ(slices.end(), 1.5);
}

TEST(MemoryTestBytesTest, NoCacheHoldsIt) {
  EXPECT_EQ(MemoryTestBytes(0), uint64_t{512} << 20);
  EXPECT_EQ(MemoryTestBytes(uint64_t{32} << 20), uint64_t{512} << 20);
  EXPECT_EQ(MemoryTestBytes(uint64_t{1} << 30), uint64_t{4} << 30);
  EXPECT_LT(LastLevelCacheBytes(), uint64_t{1} << 40);
}

v1::MeasureMemoryRequest Request() {
  v1::MeasureMemoryRequest request;
  request.set_bytes(8 << 20);
  request.set_slice_ms(5);
  request.set_slices(4);
  return request;
}

TEST(MeasureMemoryTest, ReadsInEverySliceOnceItIsToldToStart) {
  int asked = 0;
  const auto measured = MeasureMemory(
      Request(), 2, [&asked] { return ++asked == 1; }, [] { return false; });
  ASSERT_TRUE(measured.ok()) << measured.status();
  EXPECT_EQ(asked, 1);
  EXPECT_EQ(measured->threads(), 2u);
  EXPECT_THAT(measured->slice_bytes(), SizeIs(4));
  EXPECT_THAT(measured->slice_bytes(), Each(Gt(0u)));
}

TEST(MeasureMemoryTest, EndsWithItsCaller) {
  const auto never = [] { return false; };
  const auto always = [] { return true; };
  v1::MeasureMemoryRequest request = Request();
  request.set_slices(10'000);
  EXPECT_TRUE(
      absl::IsCancelled(MeasureMemory(request, 1, never, never).status()));
  EXPECT_TRUE(
      absl::IsCancelled(MeasureMemory(request, 1, always, always).status()));
}

TEST(MeasureMemoryTest, RefusesWhatItCannotDo) {
  const auto run = [](const v1::MeasureMemoryRequest& request) {
    return MeasureMemory(
               request, 1, [] { return true; }, [] { return false; })
        .status()
        .code();
  };
  v1::MeasureMemoryRequest request = Request();
  request.set_slices(0);
  EXPECT_EQ(run(request), absl::StatusCode::kInvalidArgument);
  request.set_slices(60'001);
  EXPECT_EQ(run(request), absl::StatusCode::kInvalidArgument);
  request.set_slices(0xffffffff);
  request.set_slice_ms(0xffffffff);
  EXPECT_EQ(run(request), absl::StatusCode::kInvalidArgument);
  request = Request();
  request.set_bytes(uint64_t{1} << 60);
  EXPECT_EQ(run(request), absl::StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace ringfleet::worker
