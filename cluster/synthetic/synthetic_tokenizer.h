// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_CLUSTER_SYNTHETIC_SYNTHETIC_TOKENIZER_H_
#define RINGFLEET_CLUSTER_SYNTHETIC_SYNTHETIC_TOKENIZER_H_

#include <cstdint>
#include <string>

namespace ringfleet::cluster {

inline constexpr uint32_t kSyntheticBos = 0;
inline constexpr uint32_t kSyntheticEos = 1;

// The text of a tokenizer.json, byte-level BPE, in which every id below
// `vocab_size` (at least 259) has a token: begin, end and padding, the 256
// bytes, then strings of lower-case letters, with or without a space in front,
// shorter ones first. So any text can be encoded, and every id a model of
// random weights draws shows as text.
std::string SyntheticTokenizerJson(uint32_t vocab_size);

// The text of its tokenizer_config.json.
std::string SyntheticTokenizerConfigJson(int max_positions);

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_SYNTHETIC_SYNTHETIC_TOKENIZER_H_
