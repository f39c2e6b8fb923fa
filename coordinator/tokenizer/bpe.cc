// SPDX-License-Identifier: Apache-2.0
#include "coordinator/tokenizer/bpe.h"

#include <algorithm>
#include <functional>

#include "absl/strings/str_cat.h"

namespace ringfleet::coordinator {

// The merge of the symbol at `position` with its right neighbour, or null.
const Bpe::Merge* Bpe::FindMerge(const Scratch& scratch,
                                 int32_t position) const {
  const Scratch::Symbol& left = scratch.symbols[position];
  if (left.next < 0) return nullptr;
  const auto found = merges_.find(Key(left.id, scratch.symbols[left.next].id));
  return found == merges_.end() ? nullptr : &found->second;
}

absl::Status Bpe::Encode(absl::string_view piece, Scratch* scratch,
                         std::vector<uint32_t>* ids) const {
  if (!whole_.empty()) {
    const auto found = whole_.find(piece);
    if (found != whole_.end()) {
      ids->push_back(found->second);
      return absl::OkStatus();
    }
  }
  auto& symbols = scratch->symbols;
  auto& heap = scratch->heap;
  symbols.clear();
  heap.clear();
  const auto size = static_cast<int32_t>(piece.size());
  for (int32_t i = 0; i < size; ++i) {
    const auto byte = static_cast<uint8_t>(piece[i]);
    if (byte_id_[byte] == kNone) {
      return absl::InvalidArgumentError(
          absl::StrCat("the vocabulary has no token for byte 0x",
                       absl::Hex(byte, absl::kZeroPad2)));
    }
    symbols.push_back({byte_id_[byte], i - 1, i + 1 < size ? i + 1 : -1});
  }
  const auto entry = [](const Merge& merge, int32_t position) {
    return uint64_t{merge.rank} << 32 | static_cast<uint32_t>(position);
  };
  for (int32_t i = 0; i < size; ++i) {
    const Merge* merge = FindMerge(*scratch, i);
    if (merge != nullptr) heap.push_back(entry(*merge, i));
  }
  std::make_heap(heap.begin(), heap.end(), std::greater<>());
  const auto push = [&](int32_t position) {
    const Merge* merge = FindMerge(*scratch, position);
    if (merge == nullptr) return;
    heap.push_back(entry(*merge, position));
    std::push_heap(heap.begin(), heap.end(), std::greater<>());
  };
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), std::greater<>());
    const uint64_t top = heap.back();
    heap.pop_back();
    const auto position = static_cast<int32_t>(top & 0xFFFFFFFF);
    Scratch::Symbol& left = symbols[position];
    if (left.id == kNone) continue;  // Merged into its left neighbour.
    const Merge* merge = FindMerge(*scratch, position);
    // Entries are not removed when a neighbour changes: a stale one is known by
    // its rank. Merges of equal rank make the same token.
    if (merge == nullptr || merge->rank != top >> 32) continue;
    Scratch::Symbol& right = symbols[left.next];
    left.id = merge->id;
    left.next = right.next;
    right.id = kNone;
    if (left.next >= 0) symbols[left.next].previous = position;
    if (left.previous >= 0) push(left.previous);
    push(position);
  }
  for (int32_t i = 0; i >= 0 && i < size; i = symbols[i].next) {
    ids->push_back(symbols[i].id);
  }
  return absl::OkStatus();
}

}  // namespace ringfleet::coordinator
