// SPDX-License-Identifier: Apache-2.0
#include "coordinator/tokenizer/bpe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <utility>

namespace ringfleet::coordinator {
namespace {

using ::testing::ElementsAre;

std::vector<uint32_t> Encode(const Bpe& bpe, absl::string_view piece) {
  Bpe::Scratch scratch;
  std::vector<uint32_t> ids;
  EXPECT_TRUE(bpe.Encode(piece, &scratch, &ids).ok());
  return ids;
}

// Merges the leftmost pair of the lowest rank, over and over.
std::vector<uint32_t> PlainMerge(
    std::vector<uint32_t> ids,
    const std::vector<std::pair<std::pair<uint32_t, uint32_t>, uint32_t>>&
        merges) {
  while (true) {
    size_t best_rank = merges.size();
    size_t best = 0;
    for (size_t i = 0; i + 1 < ids.size(); ++i) {
      for (size_t rank = 0; rank < best_rank; ++rank) {
        if (merges[rank].first == std::make_pair(ids[i], ids[i + 1])) {
          best_rank = rank;
          best = i;
        }
      }
    }
    if (best_rank == merges.size()) return ids;
    ids[best] = merges[best_rank].second;
    ids.erase(ids.begin() + best + 1);
  }
}

TEST(BpeTest, MergesInOrderOfRankThenFromTheLeft) {
  Bpe bpe;
  bpe.SetByte('a', 0);
  bpe.SetByte('b', 1);
  bpe.AddMerge(1, 1, 0, 2);  // bb
  bpe.AddMerge(0, 1, 1, 3);  // ab
  EXPECT_THAT(Encode(bpe, "abb"), ElementsAre(0, 2));
  EXPECT_THAT(Encode(bpe, "bbb"), ElementsAre(2, 1));
  EXPECT_THAT(Encode(bpe, "ab"), ElementsAre(3));
  EXPECT_THAT(Encode(bpe, ""), ElementsAre());
}

TEST(BpeTest, EqualsThePlainAlgorithmOnRandomMerges) {
  std::mt19937 random(1);
  for (int round = 0; round < 200; ++round) {
    Bpe bpe;
    std::vector<std::pair<std::pair<uint32_t, uint32_t>, uint32_t>> merges;
    std::map<std::pair<uint32_t, uint32_t>, bool> seen;
    uint32_t next_id = 3;
    for (uint32_t id = 0; id < 3; ++id) bpe.SetByte('a' + id, id);
    for (int i = 0; i < 30; ++i) {
      const std::pair<uint32_t, uint32_t> pair(random() % next_id,
                                               random() % next_id);
      if (seen[pair]) continue;
      seen[pair] = true;
      bpe.AddMerge(pair.first, pair.second,
                   static_cast<uint32_t>(merges.size()), next_id);
      merges.push_back({pair, next_id++});
    }
    for (int length = 0; length < 40; ++length) {
      std::string piece;
      std::vector<uint32_t> ids;
      for (int i = 0; i < length; ++i) {
        ids.push_back(random() % 3);
        piece.push_back(static_cast<char>('a' + ids.back()));
      }
      ASSERT_EQ(Encode(bpe, piece), PlainMerge(ids, merges)) << piece;
    }
  }
}

TEST(BpeTest, AMegabyteWithoutSpacesEnds) {
  Bpe bpe;
  bpe.SetByte('a', 0);
  for (uint32_t i = 0; i < 4; ++i) bpe.AddMerge(i, i, i, i + 1);  // Up to 16.
  const std::vector<uint32_t> ids = Encode(bpe, std::string(1 << 20, 'a'));
  EXPECT_EQ(ids, std::vector<uint32_t>((1 << 20) / 16, 4));
}

TEST(BpeTest, WholePiecesGoBeforeMerges) {
  Bpe bpe;
  bpe.SetByte('a', 0);
  bpe.AddWhole("aaa", 9);
  EXPECT_THAT(Encode(bpe, "aaa"), ElementsAre(9));
  EXPECT_THAT(Encode(bpe, "aa"), ElementsAre(0, 0));
}

TEST(BpeTest, AByteWithoutATokenIsAnError) {
  Bpe bpe;
  bpe.SetByte('a', 0);
  Bpe::Scratch scratch;
  std::vector<uint32_t> ids;
  const absl::Status status = bpe.Encode("ab", &scratch, &ids);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("0x62"));
}

}  // namespace
}  // namespace ringfleet::coordinator
