// SPDX-License-Identifier: Apache-2.0
#include "coordinator/tokenizer/added_tokens.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "coordinator/tokenizer/utf8.h"

namespace ringfleet::coordinator {

bool IsControl(const AddedToken& token) {
  const auto is_within = [&](absl::string_view begin, absl::string_view end) {
    return token.content.size() > begin.size() + end.size() &&
           absl::StartsWith(token.content, begin) &&
           absl::EndsWith(token.content, end);
  };
  return token.special || is_within("<|", "|>") || is_within("<｜", "｜>");
}

AddedTokenMatcher::AddedTokenMatcher() : token_at_(1, kNone) {
  begins_.fill(false);
}

void AddedTokenMatcher::Add(const AddedToken& token) {
  uint64_t node = 0;
  for (const char c : token.content) {
    const uint64_t key = node << 8 | static_cast<uint8_t>(c);
    const auto inserted =
        child_.emplace(key, static_cast<uint32_t>(token_at_.size()));
    if (inserted.second) token_at_.push_back(kNone);
    node = inserted.first->second;
  }
  begins_[static_cast<uint8_t>(token.content[0])] = true;
  token_at_[node] = static_cast<uint32_t>(tokens_.size());
  tokens_.push_back(token);
}

absl::optional<AddedTokenMatcher::Match> AddedTokenMatcher::Find(
    absl::string_view text, size_t from, size_t done, Accept accept) const {
  for (size_t begin = from; begin < text.size(); ++begin) {
    if (!begins_[static_cast<uint8_t>(text[begin])]) continue;
    uint64_t node = 0;
    uint32_t found = kNone;
    for (size_t i = begin; i < text.size(); ++i) {
      const auto next = child_.find(node << 8 | static_cast<uint8_t>(text[i]));
      if (next == child_.end()) break;
      node = next->second;
      if (token_at_[node] != kNone &&
          accept(tokens_[token_at_[node]], begin, i + 1)) {
        found = token_at_[node];
      }
    }
    if (found == kNone) continue;
    const AddedToken& token = tokens_[found];
    const size_t end = begin + token.content.size();
    Match match{begin, end, end, token.id};
    if (token.lstrip) {
      match.begin = std::max(begin, done);
      match.begin -= TrailingWhitespace(text.substr(done, match.begin - done));
    }
    if (token.rstrip) {
      // All up to `done` is the white space of the match before.
      match.end = std::max(end, done);
      if (match.end == end) match.end += LeadingWhitespace(text.substr(end));
    }
    return match;
  }
  return absl::nullopt;
}

}  // namespace ringfleet::coordinator
