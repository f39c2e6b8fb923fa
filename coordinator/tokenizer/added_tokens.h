// SPDX-License-Identifier: Apache-2.0
// Finds the tokens that a tokenizer.json adds beside its vocabulary: they are
// cut out of the text before it is split into pieces.
#ifndef RINGFLEET_COORDINATOR_TOKENIZER_ADDED_TOKENS_H_
#define RINGFLEET_COORDINATOR_TOKENIZER_ADDED_TOKENS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"

namespace ringfleet::coordinator {

struct AddedToken {
  uint32_t id = 0;
  std::string content;      // Never empty.
  bool special = false;     // Left out of decoded text unless asked for.
  bool lstrip = false;      // Swallows white space before it.
  bool rstrip = false;      // Swallows white space after it.
  bool normalized = false;  // Searched after the tokens that are not.
};

// A byte trie over the tokens' contents. Thread-safe once all are added.
class AddedTokenMatcher {
 public:
  struct Match {
    size_t begin, end;  // Bytes of the text, white space that it swallows too.
    uint32_t id;
  };

  AddedTokenMatcher();

  void Add(const AddedToken& token);

  // The leftmost match that begins at or after `from`, the longest of those.
  // Time is linear in the distance, times the longest content at worst.
  absl::optional<Match> Find(absl::string_view text, size_t from) const;

 private:
  static constexpr uint32_t kNone = ~uint32_t{0};

  std::vector<AddedToken> tokens_;
  // Node 0 is the root. Key: node << 8 | byte.
  absl::flat_hash_map<uint64_t, uint32_t> child_;
  std::vector<uint32_t> token_at_;  // Per node: index into tokens_, or kNone.
  std::array<bool, 256> begins_;    // Whether a content begins with the byte.
};

}  // namespace ringfleet::coordinator

#endif  // RINGFLEET_COORDINATOR_TOKENIZER_ADDED_TOKENS_H_
