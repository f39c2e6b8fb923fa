// SPDX-License-Identifier: Apache-2.0
// Reads the tokenizer files of a model folder: tokenizer.json,
// tokenizer_config.json and what config.json says of the vocabulary. Checks
// fields, but does not compile expressions and templates.
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

// A vocabulary, as tokenizer.json or tiktoken.model has it. Invariant: every id
// is below kMaxTokenId. No two tokens of the vocabulary have one id. An added
// token whose text is in the vocabulary has the id of the vocabulary.
struct TokenizerSpec {
  // Bound of the tables that ids index. DeepSeek-V3 has 129280 ids.
  static constexpr uint32_t kMaxTokenId = 1 << 20;

  // Text and id of each token. Each character of the text stands for one byte.
  std::vector<std::pair<std::string, uint32_t>> vocab;
  // Pairs of texts that merge, lowest rank first.
  std::vector<std::pair<std::string, std::string>> merges;
  // True: two tokens merge if a token has the bytes of both. The lowest id goes
  // first. `merges` is empty then.
  bool merges_by_id = false;
  // True: a piece that is in the vocabulary becomes its token without merges.
  bool ignore_merges = false;
  std::vector<AddedToken> added_tokens;
  // Ids that the post-processor puts in front of a text.
  std::vector<uint32_t> prefix;
  nlohmann::json pre_tokenizer;
};

// The content of tokenizer_config.json. Absent fields stay empty or false.
struct TokenizerConfig {
  absl::optional<std::string> bos_token, eos_token;
  bool add_bos_token = false;
  std::string tokenizer_class;
  std::vector<AddedToken> added_tokens;
  std::string chat_template;
};

// Parse the text of a file.
// Errors: INVALID_ARGUMENT names the field and its value.
absl::StatusOr<TokenizerSpec> ParseTokenizerJson(absl::string_view text);
absl::StatusOr<TokenizerConfig> ParseTokenizerConfig(absl::string_view text);
// Returns the template of a chat_template.json, which processors of
// transformers 4 write.
absl::StatusOr<std::string> ParseChatTemplateJson(absl::string_view text);
// Returns vocab_size of a config.json, or of its text_config. Nothing: the file
// has none.
absl::StatusOr<absl::optional<uint32_t>> ParseVocabSize(absl::string_view text);

// Adds added tokens, as of a tokenizer_config.json. A token that is an added
// one already becomes special if `tokens` says so. INVALID_ARGUMENT: a text or
// an id is another token's; `spec` may be changed then.
absl::Status AddTokens(const std::vector<AddedToken>& tokens,
                       TokenizerSpec* spec);

// Returns the bytes of a token of the vocabulary. Each character of `text`
// stands for one byte by GPT-2's bytes_to_unicode. Returns nothing if `text`
// has another character. The bytes of the token are then the UTF-8 of `text`.
absl::optional<std::string> BytesOfSpelling(absl::string_view text);
// Returns the text of which BytesOfSpelling gives `bytes`.
std::string SpellingOfBytes(absl::string_view bytes);

}  // namespace ringfleet::coordinator

#endif  // RINGFLEET_COORDINATOR_TOKENIZER_TOKENIZER_FILES_H_
