// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_CLUSTER_SYNTHETIC_SYNTHETIC_TOKENIZER_H_
#define RINGFLEET_CLUSTER_SYNTHETIC_SYNTHETIC_TOKENIZER_H_

#include <cstdint>
#include <string>

namespace ringfleet::cluster {

inline constexpr uint32_t kSyntheticBos = 0;
inline constexpr uint32_t kSyntheticEos = 1;

// Returns the text of a byte-level BPE tokenizer.json with `vocab_size` tokens,
// at least 259. Ids 0 to 2 are begin, end and padding. The 256 bytes follow,
// then strings of lower-case letters with or without a leading space, shorter
// ones first. So any text can be encoded, and every id below `vocab_size` can
// be decoded.
std::string SyntheticTokenizerJson(uint32_t vocab_size);

// Returns the text of the tokenizer_config.json that belongs to
// SyntheticTokenizerJson.
std::string SyntheticTokenizerConfigJson(int max_positions);

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_SYNTHETIC_SYNTHETIC_TOKENIZER_H_
