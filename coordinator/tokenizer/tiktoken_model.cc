// SPDX-License-Identifier: Apache-2.0
#include "coordinator/tokenizer/tiktoken_model.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "cluster/process/status_macros.h"

namespace ringfleet::coordinator {
namespace {

// Each way to divide a token is a merge. This bounds their number.
constexpr size_t kMaxRankedBytes = 1024;
constexpr uint32_t kReservedIds = 256;

// Kimi's expression: runs of Han, words by case with an English contraction,
// up to three digits, punctuation, white space.
std::string KimiExpression() {
  constexpr char kBefore[] = R"([^\r\n\p{L}\p{N}]?)";
  constexpr char kUpper[] = R"([\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]])";
  constexpr char kLower[] = R"([\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]])";
  constexpr char kContraction[] = R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?)";
  return absl::StrCat(R"([\p{Han}]+|)",                                       //
                      kBefore, kUpper, "*", kLower, "+", kContraction, "|",   //
                      kBefore, kUpper, "+", kLower, "*", kContraction, "|",   //
                      R"(\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|)",  //
                      R"(\s+(?!\S)|\s+)");
}

nlohmann::json KimiPreTokenizer() {
  return {{"type", "Sequence"},
          {"pretokenizers",
           {{{"type", "Split"},
             {"pattern", {{"Regex", KimiExpression()}}},
             {"behavior", "Isolated"}},
            {{"type", "ByteLevel"},
             {"add_prefix_space", false},
             {"use_regex", false}}}}};
}

}  // namespace

absl::StatusOr<TokenizerSpec> ParseTiktokenModel(absl::string_view text) {
  TokenizerSpec spec;
  spec.merges_by_id = true;
  spec.pre_tokenizer = KimiPreTokenizer();
  absl::flat_hash_set<std::string> known;
  absl::flat_hash_set<uint32_t> ids;
  int number = 0;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    ++number;
    absl::ConsumeSuffix(&line, "\r");
    if (line.empty()) continue;
    const std::pair<absl::string_view, absl::string_view> fields =
        absl::StrSplit(line, absl::MaxSplits(' ', 1));
    std::string bytes;
    uint32_t id = 0;
    absl::string_view problem;
    if (!absl::Base64Unescape(fields.first, &bytes) || bytes.empty() ||
        bytes.size() > kMaxRankedBytes ||
        !absl::SimpleAtoi(fields.second, &id) ||
        id >= TokenizerSpec::kMaxTokenId) {
      problem = "want 1 to 1024 bytes in base64, a space, a rank below 1048576";
    } else if (!known.insert(bytes).second) {
      problem = "the bytes have a rank already";
    } else if (!ids.insert(id).second) {
      problem = "the rank is taken already";
    }
    if (!problem.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("line ", number, ": \"",
                       absl::CHexEscape(line.substr(0, 80)), "\": ", problem));
    }
    spec.vocab.emplace_back(SpellingOfBytes(bytes), id);
  }
  if (spec.vocab.empty()) return absl::InvalidArgumentError("has no tokens");
  return spec;
}

absl::Status AddReservedTokens(absl::optional<uint32_t> vocab_size,
                               TokenizerSpec* spec) {
  uint32_t first = 0;
  for (const auto& entry : spec->vocab) {
    first = std::max(first, entry.second + 1);
  }
  const uint32_t limit = std::min(vocab_size.value_or(first + kReservedIds),
                                  TokenizerSpec::kMaxTokenId);
  absl::flat_hash_set<uint32_t> named;
  for (const AddedToken& token : spec->added_tokens) named.insert(token.id);
  std::vector<AddedToken> reserved;
  for (uint32_t id = first; id < limit; ++id) {
    if (named.contains(id)) continue;
    AddedToken token;
    token.id = id;
    token.content = absl::StrCat("<|reserved_token_", id, "|>");
    reserved.push_back(std::move(token));
  }
  return AddTokens(reserved, spec);
}

}  // namespace ringfleet::coordinator
