// SPDX-License-Identifier: Apache-2.0
// Turns text into token ids and back, by the tokenizer.json or tiktoken.model
// of a model folder. Supports byte-level BPE with added tokens.
#ifndef RINGFLEET_COORDINATOR_TOKENIZER_TOKENIZER_H_
#define RINGFLEET_COORDINATOR_TOKENIZER_TOKENIZER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "absl/types/span.h"
#include "coordinator/tokenizer/added_tokens.h"
#include "coordinator/tokenizer/bpe.h"
#include "coordinator/tokenizer/marked_text.h"
#include "coordinator/tokenizer/pre_tokenizer.h"

namespace ringfleet::coordinator {

struct TokenizerConfig;
struct TokenizerSpec;

// A tokenizer, immutable after Load. Any thread may call the const methods.
class Tokenizer {
 public:
  // Reads tokenizer.json, else tiktoken.model, and tokenizer_config.json if
  // present. The chat template is that of chat_template.jinja, else of
  // tokenizer_config.json, else of chat_template.json. config.json tells how
  // many ids a tiktoken.model has. `model` is a folder or a synthetic model.
  // Errors:
  //   NOT_FOUND: the folder has neither tokenizer.json nor tiktoken.model.
  //   INVALID_ARGUMENT: a field is malformed or unsupported. The message names
  //     the field and its value.
  //   those of FileReader: a file cannot be read.
  static absl::StatusOr<std::unique_ptr<Tokenizer>> Load(
      const std::string& model);

  // Returns the ids of `text`, without BOS. Recognises added tokens anywhere in
  // the text.
  // Errors: INVALID_ARGUMENT: `text` is not UTF-8 (the message names the byte
  // offset), has 2 GiB or more, has a byte without a token, or exceeds the step
  // limit of an expression.
  absl::StatusOr<std::vector<uint32_t>> Encode(absl::string_view text) const;

  // Returns the ids of `prompt`, a rendered chat template, without a prefix:
  // the template contains BOS. Recognises a control token (IsControl of
  // added_tokens.h) only where all of its bytes are of the template. Other
  // added tokens count anywhere.
  // Errors: those of Encode of a text.
  absl::StatusOr<std::vector<uint32_t>> Encode(const MarkedText& prompt) const;

  // Returns the ids of `text` with the prefix in front: the tokens of
  // tokenizer.json's post_processor, and BOS if tokenizer_config.json has
  // add_bos_token. A text that begins with the prefix gets no second one.
  // Errors: those of Encode.
  absl::StatusOr<std::vector<uint32_t>> EncodePrompt(
      absl::string_view text) const;

  // Returns the bytes of one id, which may be a part of a character. Returns an
  // empty view for an id without a token.
  absl::string_view TokenBytes(uint32_t id) const;
  // Returns whether `id` is a special added token, such as BOS.
  bool IsSpecial(uint32_t id) const;

  // Returns the text of `ids`. Leaves out ids without a token, and special
  // tokens unless `keep_special`. Replaces each maximal part that is not UTF-8
  // by U+FFFD.
  std::string Decode(absl::Span<const uint32_t> ids, bool keep_special) const;

  // Returns the bytes of the longest text that one token stands for. Returns
  // nothing if a text of any length may become few tokens, because some tokens
  // swallow white space or an expression removes text.
  absl::optional<size_t> most_bytes_of_token() const {
    return most_bytes_of_token_;
  }

  // The largest id that has a token, plus one. A model's vocabulary may have
  // more ids, which have no text.
  uint32_t id_limit() const { return static_cast<uint32_t>(tokens_.size()); }
  absl::optional<uint32_t> bos_id() const { return bos_id_; }
  absl::optional<uint32_t> eos_id() const { return eos_id_; }
  // Returns whether prompts get a BOS in front.
  bool add_bos() const;
  // Strings of the files. Empty: the files have none.
  const std::string& chat_template() const { return chat_template_; }
  const std::string& bos_token() const { return bos_token_; }
  const std::string& eos_token() const { return eos_token_; }

 private:
  struct Token {
    std::string bytes;
    bool special = false;
  };

  Tokenizer() = default;
  absl::Status Build(const TokenizerSpec& spec);
  absl::Status AddListedMerges(const TokenizerSpec& spec);
  void AddMergesById(const TokenizerSpec& spec);
  absl::Status Configure(const TokenizerConfig& config);
  absl::StatusOr<uint32_t> FindToken(const std::string& text) const;
  absl::StatusOr<std::vector<uint32_t>> EncodeAccepted(
      absl::string_view text, AddedTokenMatcher::Accept accept) const;
  absl::Status EncodePlain(absl::string_view text, Bpe::Scratch* scratch,
                           std::vector<uint32_t>* ids) const;

  std::vector<Token> tokens_;  // By id. Empty bytes: no token.
  absl::optional<size_t> most_bytes_of_token_;
  Bpe bpe_;
  std::unique_ptr<PreTokenizer> pre_tokenizer_;
  // Added tokens. `verbatim_` is searched first, and `normalized_` in the rest
  // of the text.
  AddedTokenMatcher verbatim_, normalized_;
  absl::optional<uint32_t> bos_id_, eos_id_;
  std::vector<uint32_t> prefix_;
  std::string chat_template_, bos_token_, eos_token_;
};

// Checks ids from outside before they are decoded. Allows ids without a token.
// Refuses ids of 2^31 or more, which come from negative numbers or pointers.
// Errors: INVALID_ARGUMENT names the refused id and its index.
absl::Status CheckTokenIds(absl::Span<const uint32_t> ids);

// Decodes a stream of ids into whole characters. The outputs of all Adds and of
// Finish, joined in order, equal Decode(ids, false), but for the special tokens
// `kept`, which are text. Not thread-safe. The tokenizer must outlive the
// decoder.
class StreamDecoder {
 public:
  explicit StreamDecoder(const Tokenizer* tokenizer,
                         std::vector<uint32_t> kept = {})
      : tokenizer_(tokenizer), kept_(std::move(kept)) {}

  // Returns the characters that `id` completes, perhaps none.
  std::string Add(uint32_t id);

  // Ends the stream. Returns U+FFFD for an incomplete last character, else an
  // empty string. The next Add begins a new stream.
  std::string Finish();

 private:
  const Tokenizer* tokenizer_;
  std::vector<uint32_t> kept_;
  std::string pending_;  // First bytes of an incomplete character, at most 3.
};

}  // namespace ringfleet::coordinator

#endif  // RINGFLEET_COORDINATOR_TOKENIZER_TOKENIZER_H_
