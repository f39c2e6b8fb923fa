// SPDX-License-Identifier: Apache-2.0
#include "kernels/buffer_arena.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace ringfleet::kernels {
namespace {

constexpr size_t kPage = PageRegion::kPageBytes;

// Whether the page of `address` is in memory.
bool IsResident(const void* address) {
  unsigned char state = 0;
  const auto page = reinterpret_cast<uintptr_t>(address) / kPage * kPage;
  EXPECT_EQ(mincore(reinterpret_cast<void*>(page), kPage, &state), 0);
  return state & 1;
}

TEST(BufferArenaTest, BuffersAreZeroAlignedAndApart) {
  BufferArena arena(3 * kPage);  // Too little: more regions follow.
  std::vector<AlignedBuffer> buffers;
  for (const size_t size : {size_t{0}, size_t{1}, kPage - 1, kPage, kPage + 1,
                            3 * kPage, size_t{5} << 20, kPage}) {
    auto buffer = arena.Allocate(size);
    ASSERT_TRUE(buffer.ok()) << buffer.status();
    EXPECT_EQ(buffer->size(), size);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer->data()) % 64, 0u);
    EXPECT_TRUE(std::all_of(buffer->data(), buffer->data() + size,
                            [](char c) { return c == 0; }));
    std::fill_n(buffer->data(), size, static_cast<char>(buffers.size() + 1));
    buffers.push_back(*std::move(buffer));
  }
  for (size_t i = 0; i < buffers.size(); ++i) {
    const AlignedBuffer& buffer = buffers[i];
    EXPECT_TRUE(std::all_of(buffer.data(), buffer.data() + buffer.size(),
                            [&](char c) { return c == char(i + 1); }))
        << i;
  }
}

TEST(BufferArenaTest, BuffersFollowEachOther) {
  if (!PageRegion::kInUse) GTEST_SKIP() << "AddressSanitizer has the memory";
  BufferArena arena(size_t{8} << 20);
  const auto first = arena.Allocate(kPage + 1);
  const auto second = arena.Allocate(size_t{3} << 20);
  const auto third = arena.Allocate(kPage);
  EXPECT_EQ(
      reinterpret_cast<uintptr_t>(first->data()) % PageRegion::kHugePageBytes,
      0u);
  EXPECT_EQ(second->data(), first->data() + 2 * kPage);
  EXPECT_EQ(third->data(), second->data() + (size_t{3} << 20));
}

// Weights of experts that have moved away don't stay.
TEST(BufferArenaTest, ABufferThatEndsGivesItsPagesBackAndNoOthers) {
  if (!PageRegion::kInUse) GTEST_SKIP() << "AddressSanitizer has the memory";
  std::optional<BufferArena> arena(16 * kPage);
  auto first = std::make_optional(*arena->Allocate(2 * kPage + 1));
  AlignedBuffer second = *arena->Allocate(kPage);
  std::fill_n(first->data(), first->size(), 'a');
  std::fill_n(second.data(), second.size(), 'b');
  const char* const gone = first->data();
  arena.reset();  // Buffers outlive it.
  ASSERT_TRUE(IsResident(gone));
  first.reset();
  EXPECT_FALSE(IsResident(gone));
  EXPECT_FALSE(IsResident(gone + 2 * kPage));
  EXPECT_EQ(std::string(second.data(), 3), "bbb");
}

TEST(BufferArenaTest, MemoryThatCannotBeHadIsAnError) {
  // Nor does a wrong expectation keep a buffer from being had.
  BufferArena arena(size_t{1} << 60);
  EXPECT_TRUE(arena.Allocate(kPage).ok());
  for (const size_t size : {size_t{1} << 60, ~size_t{0}}) {
    EXPECT_EQ(arena.Allocate(size).status(),
              absl::ResourceExhaustedError("memory: the system refuses " +
                                           std::to_string(size) + " bytes"));
  }
}

}  // namespace
}  // namespace ringfleet::kernels
