// SPDX-License-Identifier: Apache-2.0
// Text to token ids and back, as the tokenizer.json of a model folder says:
// byte-level BPE with added tokens, the form of the DeepSeek models.
#ifndef RINGFLEET_COORDINATOR_TOKENIZER_TOKENIZER_H_
#define RINGFLEET_COORDINATOR_TOKENIZER_TOKENIZER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "absl/types/span.h"
#include "coordinator/tokenizer/added_tokens.h"
#include "coordinator/tokenizer/bpe.h"
#include "coordinator/tokenizer/pre_tokenizer.h"

namespace ringfleet::coordinator {

// Immutable once loaded: all const methods may be called from any thread.
class Tokenizer {
 public:
  // Reads tokenizer.json and, where present, tokenizer_config.json and
  // chat_template.jinja (which then replaces the config's template) of a model:
  // a folder, or a synthetic model's name.
  //   NOT_FOUND: there is no tokenizer.json.
  //   INVALID_ARGUMENT: malformed or unsupported; names the field and value.
  //   Those of FileReader: a file is there but cannot be read.
  static absl::StatusOr<std::unique_ptr<Tokenizer>> Load(
      const std::string& model);

  // Text to ids, without BOS. Added tokens are recognised wherever their text
  // stands. INVALID_ARGUMENT when `text` is not UTF-8 (names the byte offset),
  // is 2 GiB or longer, or has a byte or run that the vocabulary or an
  // expression of this tokenizer cannot take.
  absl::StatusOr<std::vector<uint32_t>> Encode(absl::string_view text) const;

  // The same as a prompt: with BOS in front when tokenizer_config.json says
  // add_bos_token. A rendered chat template brings its own BOS: use Encode.
  absl::StatusOr<std::vector<uint32_t>> EncodePrompt(
      absl::string_view text) const;

  // Bytes of one id, possibly a part of a character; empty for ids without a
  // token.
  absl::string_view TokenBytes(uint32_t id) const;
  bool IsSpecial(uint32_t id) const;

  // The ids' bytes as text. Special tokens are left out unless `keep_special`;
  // ids without a token give nothing; each maximal part that is not UTF-8
  // becomes U+FFFD.
  std::string Decode(absl::Span<const uint32_t> ids, bool keep_special) const;

  // One past the largest id that has a token. Rows of the model's vocabulary
  // from here on carry no text.
  uint32_t id_limit() const { return static_cast<uint32_t>(tokens_.size()); }
  absl::optional<uint32_t> bos_id() const { return bos_id_; }
  absl::optional<uint32_t> eos_id() const { return eos_id_; }
  bool add_bos() const { return add_bos_; }
  // "" when absent.
  const std::string& chat_template() const { return chat_template_; }
  const std::string& bos_token() const { return bos_token_; }
  const std::string& eos_token() const { return eos_token_; }

 private:
  struct Token {
    std::string bytes;
    bool special = false;
  };

  Tokenizer() = default;
  absl::Status ReadTokenizerJson(absl::string_view text);
  absl::Status ReadTokenizerConfig(absl::string_view text);
  absl::StatusOr<uint32_t> FindToken(const std::string& text) const;
  absl::Status EncodePlain(absl::string_view text, Bpe::Scratch* scratch,
                           std::vector<uint32_t>* ids) const;

  std::vector<Token> tokens_;  // By id; no bytes where an id has no token.
  Bpe bpe_;
  std::unique_ptr<PreTokenizer> pre_tokenizer_;
  // Added tokens are searched in this order, the second kind in the gaps that
  // the first one leaves.
  AddedTokenMatcher verbatim_, normalized_;
  absl::optional<uint32_t> bos_id_, eos_id_;
  bool add_bos_ = false;
  std::string chat_template_, bos_token_, eos_token_;
};

// For ids from outside that are to be decoded: an id without a token means
// nothing, but one of 2^31 or more was a negative number or a pointer, and is a
// mistake. INVALID_ARGUMENT names it and its index.
absl::Status CheckTokenIds(absl::Span<const uint32_t> ids);

// Decodes a stream of ids: each Add returns what the text grows by, in whole
// characters. All outputs in order, Finish's last, equal Decode(ids, false).
// Not thread-safe; the tokenizer must outlive it.
class StreamDecoder {
 public:
  explicit StreamDecoder(const Tokenizer* tokenizer) : tokenizer_(tokenizer) {}

  std::string Add(uint32_t id);

  // U+FFFD for a character that stayed incomplete, else "". Starts anew.
  std::string Finish();

 private:
  const Tokenizer* tokenizer_;
  std::string pending_;  // The beginning of a character, at most 3 bytes.
};

}  // namespace ringfleet::coordinator

#endif  // RINGFLEET_COORDINATOR_TOKENIZER_TOKENIZER_H_
