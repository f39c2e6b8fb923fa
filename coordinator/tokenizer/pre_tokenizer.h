// SPDX-License-Identifier: Apache-2.0
// Splits text into the pieces that are encoded one by one, by the regular
// expressions of a tokenizer.json. Each split works inside the pieces of the
// split before it, so a lookahead never sees past its piece.
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
  // Reads the "pre_tokenizer" of a tokenizer.json: ByteLevel, alone or at the
  // end of a Sequence of Split (Isolated or Removed) and Digits.
  // INVALID_ARGUMENT names the field that is malformed or unsupported.
  static absl::StatusOr<std::unique_ptr<PreTokenizer>> Parse(
      const nlohmann::json& spec);

  ~PreTokenizer();

  // Appends the pieces of `text`: non-empty views of it, in order. `text` must
  // be UTF-8. INVALID_ARGUMENT: an expression needs more than its limit of
  // steps on this text. Thread-safe.
  absl::Status Split(absl::string_view text,
                     std::vector<absl::string_view>* pieces) const;

 private:
  class Rule;

  PreTokenizer();
  absl::Status AddRules(const nlohmann::json& spec, const char* where);

  std::vector<std::unique_ptr<Rule>> rules_;
};

}  // namespace ringfleet::coordinator

#endif  // RINGFLEET_COORDINATOR_TOKENIZER_PRE_TOKENIZER_H_
