// SPDX-License-Identifier: Apache-2.0
#include "kernels/aligned_buffer.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>

#include "gtest/gtest.h"

namespace ringfleet::kernels {
namespace {

TEST(AlignedBufferTest, IsAlignedAndZeroForEverySize) {
  for (const size_t size : {1, 63, 64, 65, 4096, 3 << 20}) {
    const AlignedBuffer buffer(size);
    EXPECT_EQ(buffer.size(), size);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.data()) % 64, 0u);
    EXPECT_TRUE(std::all_of(buffer.data(), buffer.data() + size,
                            [](char c) { return c == 0; }));
  }
}

TEST(AlignedBufferTest, EmptyHoldsNothing) {
  EXPECT_EQ(AlignedBuffer().data(), nullptr);
  EXPECT_EQ(AlignedBuffer(0).size(), 0u);
}

TEST(AlignedBufferTest, MovingTakesTheMemory) {
  AlignedBuffer first(100);
  first.data()[99] = 7;
  const char* memory = first.data();
  AlignedBuffer second(std::move(first));
  EXPECT_EQ(second.data(), memory);
  AlignedBuffer third(5);
  third = std::move(second);
  EXPECT_EQ(third.size(), 100u);
  EXPECT_EQ(third.data()[99], 7);
}

// More than the address space of a process, and more than a size can count.
TEST(AlignedBufferTest, MemoryThatCannotBeHadIsAnError) {
  for (const size_t size : {size_t{1} << 60, ~size_t{0}}) {
    const auto buffer = AlignedBuffer::Allocate(size);
    EXPECT_EQ(buffer.status(),
              absl::ResourceExhaustedError("memory: the system refuses " +
                                           std::to_string(size) + " bytes"));
  }
}

TEST(AlignedBufferTest, AllocateGivesWhatTheConstructorGives) {
  EXPECT_EQ(AlignedBuffer::Allocate(0)->data(), nullptr);
  const auto buffer = AlignedBuffer::Allocate(4097);
  ASSERT_TRUE(buffer.ok()) << buffer.status();
  EXPECT_EQ(buffer->size(), 4097u);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer->data()) % 64, 0u);
  EXPECT_EQ(buffer->data()[4096], 0);
}

}  // namespace
}  // namespace ringfleet::kernels
