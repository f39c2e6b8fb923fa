// SPDX-License-Identifier: Apache-2.0
#include "cluster/synthetic/synthetic_tokenizer.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "kernels/check.h"
#include "nlohmann/json.hpp"

namespace ringfleet::cluster {
namespace {

using Json = nlohmann::ordered_json;

// As in DeepSeek's files: FULLWIDTH VERTICAL LINE, LOWER ONE EIGHTH BLOCK.
constexpr absl::string_view kSpecials[] = {
    "<\xef\xbd\x9c"
    "begin\xe2\x96\x81of\xe2\x96\x81sentence\xef\xbd\x9c>",
    "<\xef\xbd\x9c"
    "end\xe2\x96\x81of\xe2\x96\x81sentence\xef\xbd\x9c>",
    "<\xef\xbd\x9c\xe2\x96\x81pad\xe2\x96\x81\xef\xbd\x9c>"};
constexpr uint32_t kNumSpecials = 3;
constexpr absl::string_view kSpace = "\xc4\xa0";  // How byte 0x20 is spelled.

std::string Utf8(uint32_t code_point) {  // Below 0x800.
  if (code_point < 0x80) return std::string(1, static_cast<char>(code_point));
  return {static_cast<char>(0xc0 | code_point >> 6),
          static_cast<char>(0x80 | (code_point & 0x3f))};
}

// The spelling of each byte in GPT-2's alphabet: printable bytes are their
// Latin-1 characters, the others follow U+0100 in order.
std::vector<std::string> ByteSpellings() {
  std::vector<std::string> spellings;
  uint32_t moved = 0x100;
  for (uint32_t byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= 0x21 && byte <= 0x7e) ||
                           (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
    spellings.push_back(Utf8(printable ? byte : moved++));
  }
  return spellings;
}

}  // namespace

std::string SyntheticTokenizerJson(uint32_t vocab_size) {
  RF_CHECK(vocab_size >= kNumSpecials + 256);
  uint32_t next = 0;
  std::string vocab;
  const auto add = [&](absl::string_view token) {
    absl::StrAppend(&vocab, next == 0 ? "" : ",",
                    Json(std::string(token)).dump(), ":", next);
    ++next;
  };
  Json added = Json::array();
  for (const absl::string_view special : kSpecials) {
    added.push_back({{"id", next},
                     {"content", std::string(special)},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", true}});
    add(special);
  }
  for (const std::string& byte : ByteSpellings()) add(byte);
  // Every string of a length, each with every letter behind it.
  std::vector<std::string> shorter = {std::string(kSpace)};
  for (char letter = 'a'; letter <= 'z'; ++letter) {
    shorter.emplace_back(1, letter);
  }
  std::string merges;
  while (next < vocab_size) {
    std::vector<std::string> longer;
    for (const std::string& left : shorter) {
      for (char right = 'a'; right <= 'z' && next < vocab_size; ++right) {
        absl::StrAppend(&merges, merges.empty() ? "" : ",", "\"", left, " ",
                        std::string(1, right), "\"");
        longer.push_back(absl::StrCat(left, std::string(1, right)));
        add(longer.back());
      }
    }
    shorter = std::move(longer);
  }
  const Json byte_level = {{"type", "ByteLevel"},
                           {"add_prefix_space", false},
                           {"trim_offsets", true},
                           {"use_regex", true}};
  return absl::StrCat(
      "{\"version\":\"1.0\",\"truncation\":null,\"padding\":null,",
      "\n\"added_tokens\":", added.dump(), ",\n\"normalizer\":null,",
      "\n\"pre_tokenizer\":", byte_level.dump(), ",\n\"post_processor\":null,",
      "\n\"decoder\":", byte_level.dump(), ",\n\"model\":{\"type\":\"BPE\",",
      "\"dropout\":null,\"unk_token\":null,",
      "\"continuing_subword_prefix\":null,\"end_of_word_suffix\":null,",
      "\"fuse_unk\":false,\"byte_fallback\":false,\n\"vocab\":{", vocab,
      "},\n\"merges\":[", merges, "]}}\n");
}

std::string SyntheticTokenizerConfigJson(int max_positions) {
  const Json config = {{"add_bos_token", true},
                       {"add_eos_token", false},
                       {"bos_token", std::string(kSpecials[kSyntheticBos])},
                       {"eos_token", std::string(kSpecials[kSyntheticEos])},
                       {"pad_token", std::string(kSpecials[2])},
                       {"clean_up_tokenization_spaces", false},
                       {"model_max_length", max_positions},
                       {"tokenizer_class", "LlamaTokenizerFast"},
                       {"unk_token", nullptr}};
  return config.dump(2) + "\n";
}

}  // namespace ringfleet::cluster
