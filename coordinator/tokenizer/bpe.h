// SPDX-License-Identifier: Apache-2.0
// Byte-pair encoding of one piece of text, over bytes (Sennrich et al.,
// arXiv:1508.07909, section 3.2). Encode begins with one symbol for each byte.
// It merges the adjacent pair of symbols with the lowest rank, the leftmost one
// of equal ranks, until no adjacent pair has a merge.
#ifndef RINGFLEET_COORDINATOR_TOKENIZER_BPE_H_
#define RINGFLEET_COORDINATOR_TOKENIZER_BPE_H_

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace ringfleet::coordinator {

// The merges of a vocabulary. Call SetByte, AddMerge and AddWhole first. Encode
// is thread-safe afterwards.
class Bpe {
 public:
  // Memory that Encode reuses from call to call. Each thread needs its own.
  struct Scratch {
    struct Symbol {
      uint32_t id;
      int32_t previous, next;  // Indices in `symbols`. -1: none.
    };
    std::vector<Symbol> symbols;
    std::vector<uint64_t> heap;  // rank << 32 | index, least on top.
  };

  // Longest piece that Encode takes. Indices have 31 bits.
  static constexpr size_t kMaxPieceBytes = (size_t{1} << 31) - 1;

  Bpe() { byte_id_.fill(kNone); }

  // Sets the token of a single byte.
  void SetByte(uint8_t byte, uint32_t id) { byte_id_[byte] = id; }

  // Adds the merge of `left` and `right` into `merged`. Lower ranks merge
  // first. Replaces an earlier merge of the pair.
  void AddMerge(uint32_t left, uint32_t right, uint32_t rank, uint32_t merged) {
    merges_[Key(left, right)] = {rank, merged};
  }

  // Makes Encode return `id` for a piece equal to `bytes`, without merges.
  void AddWhole(absl::string_view bytes, uint32_t id) {
    whole_.emplace(std::string(bytes.data(), bytes.size()), id);
  }

  // Appends the ids of `piece` to `ids`. Takes O(n log n) time. Requires at
  // most kMaxPieceBytes bytes.
  // Errors: INVALID_ARGUMENT: a byte has no token.
  absl::Status Encode(absl::string_view piece, Scratch* scratch,
                      std::vector<uint32_t>* ids) const;

 private:
  static constexpr uint32_t kNone = ~uint32_t{0};

  struct Merge {
    uint32_t rank, id;
  };

  static uint64_t Key(uint32_t left, uint32_t right) {
    return uint64_t{left} << 32 | right;
  }

  const Merge* FindMerge(const Scratch& scratch, int32_t position) const;

  std::array<uint32_t, 256> byte_id_;
  absl::flat_hash_map<uint64_t, Merge> merges_;
  absl::flat_hash_map<std::string, uint32_t> whole_;
};

}  // namespace ringfleet::coordinator

#endif  // RINGFLEET_COORDINATOR_TOKENIZER_BPE_H_
