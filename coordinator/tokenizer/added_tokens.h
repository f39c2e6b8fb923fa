// SPDX-License-Identifier: Apache-2.0
// Finds added tokens in a text: the tokens that a tokenizer.json adds to its
// vocabulary. The tokenizer cuts added tokens out of a text before it splits
// the rest into pieces.
#ifndef RINGFLEET_COORDINATOR_TOKENIZER_ADDED_TOKENS_H_
#define RINGFLEET_COORDINATOR_TOKENIZER_ADDED_TOKENS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"

namespace ringfleet::coordinator {

struct AddedToken {
  uint32_t id = 0;
  std::string content;      // Never empty.
  bool special = false;     // Decoded text leaves the token out by default.
  bool lstrip = false;      // A match includes white space before the token.
  bool rstrip = false;      // A match includes white space after the token.
  bool normalized = false;  // Searched after tokens with normalized == false.
};

// Returns whether the token steers a conversation, so that a message must not
// spell it: a special token, or one whose content is <|...|> or <｜...｜>,
// which DeepSeek's tokenizers do not mark as special.
bool IsControl(const AddedToken& token);

// A byte trie over the contents of added tokens. Thread-safe after the last
// Add.
class AddedTokenMatcher {
 public:
  struct Match {
    // Bytes [begin, end) of the text, with the white space that belongs to the
    // match.
    size_t begin, end;
    // The search goes on behind the content: tokens that begin with white space
    // are found in the white space of a match, too.
    size_t next;
    uint32_t id;
  };

  AddedTokenMatcher();

  void Add(const AddedToken& token);

  // Returns whether `token` may be found in bytes [begin, end) of the text.
  using Accept = absl::FunctionRef<bool(const AddedToken& token, size_t begin,
                                        size_t end)>;

  // Returns the first accepted match whose content begins at byte `from` or
  // later. Returns the longest one if several begin at one byte. White space
  // before byte `done` belongs to no match. Takes time linear in the number of
  // bytes up to the match, at worst times the length of the longest content.
  absl::optional<Match> Find(absl::string_view text, size_t from, size_t done,
                             Accept accept) const;

 private:
  static constexpr uint32_t kNone = ~uint32_t{0};

  std::vector<AddedToken> tokens_;
  // Node 0 is the root. Key: node << 8 | byte.
  absl::flat_hash_map<uint64_t, uint32_t> child_;
  std::vector<uint32_t> token_at_;  // By node: index into tokens_, or kNone.
  std::array<bool, 256> begins_;    // True: a content begins with the byte.
};

}  // namespace ringfleet::coordinator

#endif  // RINGFLEET_COORDINATOR_TOKENIZER_ADDED_TOKENS_H_
