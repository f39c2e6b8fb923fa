// SPDX-License-Identifier: Apache-2.0
// Byte-pair encoding of one piece of text (Sennrich et al., arXiv:1508.07909,
// section 3.2), over bytes. The adjacent pair of the lowest rank is merged
// first, the leftmost of equal pairs, until no pair has a merge.
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

// Filled by SetByte, AddMerge and AddWhole. Then Encode is thread-safe.
class Bpe {
 public:
  // Memory that calls of Encode reuse. One per thread.
  struct Scratch {
    struct Symbol {
      uint32_t id;
      int32_t previous, next;  // Positions in `symbols`, -1 at the ends.
    };
    std::vector<Symbol> symbols;
    std::vector<uint64_t> heap;  // rank << 32 | position, least on top.
  };

  // Longest piece that Encode takes: positions are 31 bits.
  static constexpr size_t kMaxPieceBytes = (size_t{1} << 31) - 1;

  Bpe() { byte_id_.fill(kNone); }

  void SetByte(uint8_t byte, uint32_t id) { byte_id_[byte] = id; }

  // A later merge of a pair replaces an earlier one.
  void AddMerge(uint32_t left, uint32_t right, uint32_t rank, uint32_t merged) {
    merges_[Key(left, right)] = {rank, merged};
  }

  // A piece equal to `bytes` becomes `id` without looking at the merges.
  void AddWhole(absl::string_view bytes, uint32_t id) {
    whole_.emplace(std::string(bytes.data(), bytes.size()), id);
  }

  // Appends the ids of `piece` (at most kMaxPieceBytes). Takes O(n log n) time.
  // INVALID_ARGUMENT: a byte has no token.
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
