// SPDX-License-Identifier: Apache-2.0
// Reads tiktoken.model, the vocabulary of Kimi's models.
#ifndef RINGFLEET_COORDINATOR_TOKENIZER_TIKTOKEN_MODEL_H_
#define RINGFLEET_COORDINATOR_TOKENIZER_TIKTOKEN_MODEL_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "coordinator/tokenizer/tokenizer_files.h"

namespace ringfleet::coordinator {

// Parses the text of tiktoken.model: one line for each token, with its bytes in
// base64, a space and its rank, which is its id. The file has neither the
// expression that splits texts, which is Kimi's here, nor special tokens.
// Errors: INVALID_ARGUMENT names the line and its value.
absl::StatusOr<TokenizerSpec> ParseTiktokenModel(absl::string_view text);

// Names the ids behind the ranks that have no token yet, as
// "<|reserved_token_N|>" for id N: all ids below `vocab_size`, or 256 ids where
// it is nothing. Requires the result of ParseTiktokenModel, with the tokens of
// tokenizer_config.json.
// Errors: INVALID_ARGUMENT: a token of another id has such a name.
absl::Status AddReservedTokens(absl::optional<uint32_t> vocab_size,
                               TokenizerSpec* spec);

}  // namespace ringfleet::coordinator

#endif  // RINGFLEET_COORDINATOR_TOKENIZER_TIKTOKEN_MODEL_H_
