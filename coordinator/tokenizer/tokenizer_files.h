// SPDX-License-Identifier: Apache-2.0
// The tokenizer files of a model folder: tokenizer.json, tokenizer_config.json
// and chat_template.jinja, checked but not compiled.
#ifndef RINGFLEET_COORDINATOR_TOKENIZER_TOKENIZER_FILES_H_
#define RINGFLEET_COORDINATOR_TOKENIZER_TOKENIZER_FILES_H_

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "coordinator/tokenizer/added_tokens.h"

namespace ringfleet::coordinator {

// tokenizer.json. Invariant: every id is below kMaxTokenId, no two tokens share
// an id, and each added token whose text is in the vocabulary has its id.
struct TokenizerSpec {
  // Bounds the tables that are indexed by id. DeepSeek-V3 has 129280.
  static constexpr uint32_t kMaxTokenId = 1 << 20;

  // Text and id. Each character of the text stands for one byte.
  std::vector<std::pair<std::string, uint32_t>> vocab;
  // Pairs of texts, the best pair first.
  std::vector<std::pair<std::string, std::string>> merges;
  bool ignore_merges = false;
  std::vector<AddedToken> added_tokens;
  nlohmann::json pre_tokenizer;
};

// tokenizer_config.json. Absent fields stay empty or false.
struct TokenizerConfig {
  absl::optional<std::string> bos_token, eos_token;
  bool add_bos_token = false;
  std::string chat_template;
};

// INVALID_ARGUMENT names the field and its value.
absl::StatusOr<TokenizerSpec> ParseTokenizerJson(absl::string_view text);
absl::StatusOr<TokenizerConfig> ParseTokenizerConfig(absl::string_view text);

// Returns the bytes that a token of the vocabulary stands for: each character
// is one byte in the alphabet of GPT-2's bytes_to_unicode. Nothing: the text
// has another character, and stands for its own UTF-8.
absl::optional<std::string> BytesOfSpelling(absl::string_view text);

}  // namespace ringfleet::coordinator

#endif  // RINGFLEET_COORDINATOR_TOKENIZER_TOKENIZER_FILES_H_
