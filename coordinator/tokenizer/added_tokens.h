// SPDX-License-Identifier: Apache-2.0
// Finds the tokens that a tokenizer.json adds to its vocabulary. They are cut
// out of the text before it is split into pieces.
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
  bool lstrip = false;      // Includes the white space before it.
  bool rstrip = false;      // Includes the white space after it.
  bool normalized = false;  // Searched after those without this flag.
};

// A byte trie over the tokens' contents. Thread-safe once all tokens are added.
class AddedTokenMatcher {
 public:
  struct Match {
    size_t begin, end;  // Bytes of the text, included white space too.
    uint32_t id;
  };

  AddedTokenMatcher();

  void Add(const AddedToken& token);

  // Returns the leftmost match that begins at or after `from`; the longest one
  // if several begin there. Takes time linear in the distance, and at worst
  // times the longest content.
  absl::optional<Match> Find(absl::string_view text, size_t from) const;

 private:
  static constexpr uint32_t kNone = ~uint32_t{0};

  std::vector<AddedToken> tokens_;
  // Node 0 is the root. Key: node << 8 | byte.
  absl::flat_hash_map<uint64_t, uint32_t> child_;
  std::vector<uint32_t> token_at_;  // Per node: index into tokens_, or kNone.
  std::array<bool, 256> begins_;    // True: a content begins with the byte.
};

}  // namespace ringfleet::coordinator

#endif  // RINGFLEET_COORDINATOR_TOKENIZER_ADDED_TOKENS_H_
