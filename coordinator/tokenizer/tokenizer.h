// SPDX-License-Identifier: Apache-2.0
// Turns text into token ids and back, by the tokenizer.json of a model folder:
// byte-level BPE with added tokens, as in the DeepSeek models.
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
  // Reads tokenizer.json, tokenizer_config.json if present, and
  // chat_template.jinja if present, which replaces the config's template.
  // `model`: a folder, or a synthetic model's name.
  //   NOT_FOUND: there is no tokenizer.json.
  //   INVALID_ARGUMENT: malformed or unsupported; names the field and value.
  //   Errors of FileReader: a file cannot be read.
  static absl::StatusOr<std::unique_ptr<Tokenizer>> Load(
      const std::string& model);

  // Turns text into ids, without BOS. Recognises added tokens anywhere in the
  // text. INVALID_ARGUMENT: `text` is not UTF-8 (names the byte offset), is 2
  // GiB or longer, has a byte without a token, or exceeds the step limit of an
  // expression.
  absl::StatusOr<std::vector<uint32_t>> Encode(absl::string_view text) const;

  // Does the work of Encode, and puts BOS in front if tokenizer_config.json
  // says add_bos_token. Not for a rendered chat template, which has its own
  // BOS.
  absl::StatusOr<std::vector<uint32_t>> EncodePrompt(
      absl::string_view text) const;

  // Returns the bytes of one id, possibly a part of a character. Empty: the id
  // has no token.
  absl::string_view TokenBytes(uint32_t id) const;
  bool IsSpecial(uint32_t id) const;

  // Returns the ids' bytes as text. Leaves out special tokens unless
  // `keep_special`, and ids without a token. Each maximal part that is not
  // UTF-8 becomes U+FFFD.
  std::string Decode(absl::Span<const uint32_t> ids, bool keep_special) const;

  // One past the largest id that has a token. Later rows of the model's
  // vocabulary have no text.
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

  std::vector<Token> tokens_;  // By id; no bytes: no token.
  Bpe bpe_;
  std::unique_ptr<PreTokenizer> pre_tokenizer_;
  // Added tokens are searched in this order: the second kind in the gaps that
  // the first kind leaves.
  AddedTokenMatcher verbatim_, normalized_;
  absl::optional<uint32_t> bos_id_, eos_id_;
  bool add_bos_ = false;
  std::string chat_template_, bos_token_, eos_token_;
};

// Checks ids from outside before they are decoded. An id without a token is
// allowed. An id of 2^31 or more was a negative number or a pointer:
// INVALID_ARGUMENT names it and its index.
absl::Status CheckTokenIds(absl::Span<const uint32_t> ids);

// Decodes a stream of ids. Each Add returns the text to append, in whole
// characters. All outputs in order, Finish's last, equal Decode(ids, false).
// Not thread-safe; the tokenizer must outlive it.
class StreamDecoder {
 public:
  explicit StreamDecoder(const Tokenizer* tokenizer) : tokenizer_(tokenizer) {}

  std::string Add(uint32_t id);

  // Returns U+FFFD for an incomplete last character, else "". Starts anew.
  std::string Finish();

 private:
  const Tokenizer* tokenizer_;
  std::string pending_;  // The beginning of a character, at most 3 bytes.
};

}  // namespace ringfleet::coordinator

#endif  // RINGFLEET_COORDINATOR_TOKENIZER_TOKENIZER_H_
