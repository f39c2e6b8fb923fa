// SPDX-License-Identifier: Apache-2.0
#include "coordinator/scheduling/block_cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace ringfleet::coordinator {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

using TextIds = std::vector<uint32_t>;

// A sequence whose rows are in the cache.
struct Text {
  TextIds ids;
  EvaluatedSpans spans;
  BlockCache::Table table;
};

class BlockCacheTest : public ::testing::Test {
 protected:
  static TextIds Counting(uint32_t first, size_t count) {
    TextIds ids(count);
    for (size_t i = 0; i < count; ++i) {
      ids[i] = first + static_cast<uint32_t>(i);
    }
    return ids;
  }

  static TextIds Joined(TextIds a, const TextIds& b) {
    a.insert(a.end(), b.begin(), b.end());
    return a;
  }

  BlockCache::Prefix Find(const TextIds& ids, const std::string& salt = "",
                          const EvaluatedSpans& repeated = {}) {
    return cache_.Find(
        salt, static_cast<uint32_t>(ids.size()),
        [&ids](uint32_t i) { return ids[i]; }, repeated);
  }

  // Enters a text with what is cached of it, and evaluates the rest.
  Text Add(const TextIds& ids, const std::string& salt = "") {
    Text text = {.ids = ids};
    cached_ = cache_.Enter(salt, Find(ids, salt), &text.table, &text.spans);
    const size_t blocks = (ids.size() + 127) / 128;
    cache_.Take(static_cast<uint32_t>(blocks - text.table.blocks.size()),
                &text.table);
    Grow(&text, static_cast<uint32_t>(ids.size()));
    return text;
  }

  void Grow(Text* text, uint32_t end) {
    const uint32_t first = text->spans.size();
    text->spans.Append(end - first, {.first = first, .count = end - first});
    cache_.Index(
        end, [text](uint32_t i) { return text->ids[i]; }, text->spans,
        &text->table);
  }

  BlockCache cache_{6};
  uint32_t cached_ = 0;  // Of the last text that was added.
};

TEST_F(BlockCacheTest, BlocksAreCountedFromZeroAndComeBack) {
  BlockCache::Table table;
  cache_.Take(2, &table);
  EXPECT_THAT(table.blocks, ElementsAre(0, 1));
  cache_.Take(4, &table);
  EXPECT_EQ(cache_.available(), 0u);
  cache_.Leave(&table);
  EXPECT_THAT(table.blocks, IsEmpty());
  EXPECT_EQ(cache_.available(), 6u);
  EXPECT_EQ(cache_.kept(), 0u);
  EXPECT_EQ(cache_.total(), 6u);
}

TEST_F(BlockCacheTest, ATextIsFoundToTheLastEqualToken) {
  Text first = Add(Counting(0, 300));
  EXPECT_EQ(cached_, 0u);
  EXPECT_EQ(Find(Counting(0, 300)).positions(), 300u);
  EXPECT_EQ(Find(Counting(0, 128)).positions(), 128u);
  EXPECT_EQ(Find(Joined(Counting(0, 200), {7})).positions(), 200u);
  EXPECT_EQ(Find(Joined(Counting(0, 16), {7})).positions(), 16u);
  EXPECT_EQ(Find(Joined(Counting(0, 15), {7})).positions(), 0u);
  EXPECT_EQ(Find({9}).positions(), 0u);
  cache_.Leave(&first.table);
  EXPECT_EQ(cache_.available(), 6u);
  EXPECT_EQ(cache_.kept(), 3u);
  EXPECT_EQ(Find(Counting(0, 300)).positions(), 300u);
}

TEST_F(BlockCacheTest, WholeBlocksAreSharedAndAPartIsCopied) {
  Text first = Add(Counting(0, 300));
  Text second = Add(Joined(Counting(0, 270), Counting(5000, 10)));
  EXPECT_EQ(cached_, 270u);
  EXPECT_THAT(first.table.blocks, ElementsAre(0, 1, 2));
  EXPECT_THAT(second.table.blocks, ElementsAre(0, 1, 3));
  cache_.Leave(&first.table);
  EXPECT_EQ(cache_.kept(), 1u);  // The second uses the others.
  cache_.Leave(&second.table);
  EXPECT_EQ(cache_.kept(), 4u);
  EXPECT_EQ(Find(Joined(Counting(0, 270), {5000, 5001})).positions(), 272u);
  EXPECT_EQ(Find(Counting(0, 300)).positions(), 300u);
}

TEST_F(BlockCacheTest, TheLeastRecentlyUsedEndOfATextGoesFirst) {
  Text a = Add(Counting(0, 256));
  Text b = Add(Counting(1000, 256));
  cache_.Leave(&a.table);
  cache_.Leave(&b.table);
  Text again = Add(Counting(0, 200));  // `a` was used last. One copy.
  EXPECT_EQ(cached_, 200u);
  cache_.Leave(&again.table);
  BlockCache::Table other;
  cache_.Take(2, &other);  // One was free.
  EXPECT_EQ(Find(Counting(1000, 256)).positions(), 128u);
  cache_.Take(1, &other);
  EXPECT_EQ(Find(Counting(1000, 256)).positions(), 0u);
  EXPECT_EQ(Find(Counting(0, 256)).positions(), 256u);
}

TEST_F(BlockCacheTest, BlocksInUseAreNeverTaken) {
  Text user = Add(Counting(0, 256));
  BlockCache::Table other;
  cache_.Take(4, &other);
  EXPECT_EQ(cache_.available(), 0u);
  EXPECT_EQ(Find(Counting(0, 256)).positions(), 256u);
}

TEST_F(BlockCacheTest, APartIsLeftOutWhereOnlyItsOwnBlockCanBeTaken) {
  Text kept = Add(Counting(0, 100));
  cache_.Leave(&kept.table);
  BlockCache::Table others;
  cache_.Take(5, &others);
  Text text;
  const TextIds ids = Counting(0, 90);
  EXPECT_EQ(cache_.Enter("", Find(ids), &text.table, &text.spans), 0u);
  EXPECT_THAT(text.table.blocks, IsEmpty());
  EXPECT_EQ(text.spans.size(), 0u);
  EXPECT_EQ(cache_.available(), 1u);
}

TEST_F(BlockCacheTest, SaltsAreApart) {
  Text mine = Add(Counting(0, 140), "mine");
  EXPECT_EQ(Find(Counting(0, 140), "yours").positions(), 0u);
  EXPECT_EQ(Find(Counting(0, 140), "mine").positions(), 140u);
}

TEST_F(BlockCacheTest, EqualTextsOfTwoSequencesBecomeOnePath) {
  // Both are evaluated at one time, so neither finds the other.
  Text a = {.ids = Joined(Counting(0, 128), Counting(500, 60))};
  Text b = {.ids = Joined(Counting(0, 128), Counting(700, 60))};
  cache_.Take(2, &a.table);
  cache_.Take(2, &b.table);
  Grow(&a, 128);
  Grow(&b, 128);
  Grow(&a, 188);
  Grow(&b, 188);
  EXPECT_EQ(Find(a.ids).positions(), 188u);
  EXPECT_EQ(Find(b.ids).positions(), 188u);
  cache_.Leave(&a.table);
  EXPECT_EQ(cache_.kept(), 1u);  // `b` uses the common block of `a`, too.
  cache_.Leave(&b.table);
  EXPECT_EQ(cache_.kept(), 3u);
  EXPECT_EQ(cache_.available(), 6u);
}

TEST_F(BlockCacheTest, APartThatAFullBlockCoversIsFreed) {
  Text part = Add(Counting(0, 100));
  cache_.Leave(&part.table);
  Text whole = Add(Counting(0, 128));
  EXPECT_EQ(cached_, 100u);
  cache_.Leave(&whole.table);
  EXPECT_EQ(cache_.kept(), 1u);
  EXPECT_EQ(Find(Counting(0, 128)).positions(), 128u);
}

TEST_F(BlockCacheTest, DiscardedRowsAreNotFoundNorWhatLiesBehindThem) {
  Text bad = Add(Counting(0, 200));
  Text behind = Add(Joined(Counting(0, 200), Counting(900, 100)));
  cache_.Discard(&bad.table);
  EXPECT_EQ(Find(behind.ids).positions(), 0u);
  behind.ids.push_back(1);
  Grow(&behind, 301);  // Does not come back.
  EXPECT_EQ(Find(behind.ids).positions(), 0u);
  cache_.Leave(&bad.table);
  cache_.Leave(&behind.table);
  EXPECT_EQ(cache_.kept(), 0u);
  EXPECT_EQ(cache_.available(), 6u);
}

TEST_F(BlockCacheTest, RepeatedPositionsMustHaveTheirForm) {
  Text text = Add(Counting(0, 200));
  EvaluatedSpans repeated;
  repeated.Append(150, {.first = 0, .count = 200});
  EXPECT_EQ(Find(text.ids, "", repeated).positions(), 200u);
  repeated.Append(50, SpanForm());
  EXPECT_EQ(Find(text.ids, "", repeated).positions(), 150u);
  repeated.Clear();
  repeated.Append(150, {.first = 0, .count = 150});
  EXPECT_EQ(Find(text.ids, "", repeated).positions(), 0u);
}

// Compares with a list of all rows that the cache may remember.
TEST(BlockCacheRandomTest, OnlyRowsOfEqualPrefixesAreReused) {
  std::mt19937 random(12);
  const auto draw = [&random](int low, int high) {
    return std::uniform_int_distribution<int>(low, high)(random);
  };
  for (int round = 0; round < 20; ++round) {
    const auto total = static_cast<uint32_t>(draw(4, 20));
    BlockCache cache(total);
    // TextIds whose rows a block holds, with all before them.
    std::map<uint32_t, std::vector<TextIds>> rows;
    std::deque<Text> running;
    for (int turn = 0; turn < 400; ++turn) {
      if (draw(0, 2) == 0 && !running.empty()) {
        const int i = draw(0, static_cast<int>(running.size()) - 1);
        if (draw(0, 9) == 0) cache.Discard(&running[i].table);
        cache.Leave(&running[i].table);
        running.erase(running.begin() + i);
      } else {
        Text text;
        // Texts branch at a few places.
        uint32_t id = 0;
        const int length = draw(1, 500);
        for (int i = 0; i < length; ++i) {
          if (i % 61 == 7) id += 1000 * draw(0, 1);
          text.ids.push_back(id++);
        }
        const auto id_at = [&text](uint32_t i) { return text.ids[i]; };
        const BlockCache::Prefix prefix =
            cache.Find("", length - 1, id_at, text.spans);
        const uint32_t blocks = (length + 127) / 128;
        if (blocks - prefix.whole.size() + prefix.kept > cache.available()) {
          continue;
        }
        const uint32_t part_block =
            prefix.part == nullptr ? 0 : prefix.part_block();
        const uint32_t cached =
            cache.Enter("", prefix, &text.table, &text.spans);
        ASSERT_EQ(text.spans.size(), cached);
        for (uint32_t i = 0; i < cached; ++i) {
          const bool copied = i / 128 == prefix.whole.size();
          const auto& held =
              rows[copied ? part_block : text.table.blocks[i / 128]];
          ASSERT_GT(held.size(), i % 128);
          ASSERT_EQ(held[i % 128],
                    TextIds(text.ids.begin(), text.ids.begin() + i + 1));
        }
        cache.Take(blocks - static_cast<uint32_t>(text.table.blocks.size()),
                   &text.table);
        std::set<uint32_t> distinct(text.table.blocks.begin(),
                                    text.table.blocks.end());
        ASSERT_EQ(distinct.size(), blocks);
        for (const Text& other : running) {
          for (size_t b = cached / 128; b < blocks; ++b) {
            ASSERT_EQ(
                std::count(other.table.blocks.begin(), other.table.blocks.end(),
                           text.table.blocks[b]),
                0)
                << "a block in use was taken";
          }
        }
        for (int i = static_cast<int>(cached) / 128 * 128; i < length; ++i) {
          auto& held = rows[text.table.blocks[i / 128]];
          if (i % 128 == 0) held.clear();
          held.emplace_back(text.ids.begin(), text.ids.begin() + i + 1);
        }
        text.spans.Append(length - cached,
                          {.first = cached, .count = length - cached});
        cache.Index(length, id_at, text.spans, &text.table);
        running.push_back(std::move(text));
      }
      std::set<uint32_t> used;
      for (const Text& text : running) {
        used.insert(text.table.blocks.begin(), text.table.blocks.end());
      }
      ASSERT_LE(used.size(), total - cache.available());
    }
    for (Text& text : running) cache.Leave(&text.table);
    EXPECT_EQ(cache.available(), total);
  }
}

TEST(BlockCacheDeathTest, RefusesMoreThanIsAvailable) {
  BlockCache cache(6);
  BlockCache::Table table;
  EXPECT_DEATH(cache.Take(7, &table), "available");
}

TEST(EvaluatedSpansTest, EqualNeighboursAreOneRun) {
  EvaluatedSpans spans;
  spans.Append(3, {.first = 0, .count = 5});
  spans.Append(2, {.first = 0, .count = 5});
  spans.Append(4, SpanForm());
  spans.Append(0, {.first = 7, .count = 9});
  EXPECT_EQ(spans.size(), 9u);
  EXPECT_EQ(spans.From(1), (EvaluatedSpans::Run{4, {.first = 0, .count = 5}}));
  EXPECT_EQ(spans.From(5), (EvaluatedSpans::Run{4, SpanForm()}));
  EvaluatedSpans part;
  part.Append(spans, 4, 7);
  EXPECT_EQ(part.size(), 3u);
  EXPECT_EQ(part.From(0).positions, 1u);
  EXPECT_TRUE(part.From(1).form.decode());
  part.Append(spans, 9, 9);
  EXPECT_EQ(part.size(), 3u);
}

}  // namespace
}  // namespace ringfleet::coordinator
