// SPDX-License-Identifier: Apache-2.0
// Splits text into pieces by the regular expressions of a tokenizer.json. The
// tokenizer encodes each piece on its own. Each expression splits the pieces of
// the expression before it, so a lookahead never sees beyond its piece.
#ifndef RINGFLEET_COORDINATOR_TOKENIZER_PRE_TOKENIZER_H_
#define RINGFLEET_COORDINATOR_TOKENIZER_PRE_TOKENIZER_H_

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace ringfleet::coordinator {

class PreTokenizer {
 public:
  // Reads the "pre_tokenizer" of a tokenizer.json: ByteLevel alone, or a
  // Sequence of Split (Isolated or Removed) and Digits with ByteLevel at its
  // end.
  // Errors: INVALID_ARGUMENT: a field is malformed or unsupported. The message
  // names it.
  static absl::StatusOr<std::unique_ptr<PreTokenizer>> Parse(
      const nlohmann::json& spec);

  ~PreTokenizer();

  // Returns false if a Split removes parts of a text.
  bool keeps_text() const { return keeps_text_; }

  // Appends the pieces of `text` to `pieces`, as non-empty views of `text` in
  // its order. Requires `text` in UTF-8. Thread-safe.
  // Errors: INVALID_ARGUMENT: an expression takes more steps than its limit.
  absl::Status Split(absl::string_view text,
                     std::vector<absl::string_view>* pieces) const;

 private:
  class Rule;

  PreTokenizer();
  absl::Status AddRules(const nlohmann::json& spec, const char* where);

  std::vector<std::unique_ptr<Rule>> rules_;
  bool keeps_text_ = true;
};

}  // namespace ringfleet::coordinator

#endif  // RINGFLEET_COORDINATOR_TOKENIZER_PRE_TOKENIZER_H_
