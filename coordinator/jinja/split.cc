// SPDX-License-Identifier: Apache-2.0
#include "coordinator/jinja/split.h"

#include <algorithm>

#include "absl/container/flat_hash_set.h"
#include "cluster/process/status_macros.h"
#include "coordinator/jinja/characters.h"
#include "coordinator/tokenizer/utf8.h"

namespace ringfleet::coordinator::jinja {
namespace {

bool IsLineEnd(uint32_t c) {
  return (c >= 0x0A && c <= 0x0D) || (c >= 0x1C && c <= 0x1E) || c == 0x85 ||
         c == 0x2028 || c == 0x2029;
}

// The bytes before the first white space of `text`.
size_t LeadingWord(absl::string_view text) {
  size_t end = 0;
  while (end < text.size()) {
    const Utf8Unit unit = NextUtf8(text.substr(end));
    if (unit.kind == Utf8Unit::kCharacter && IsPythonSpace(unit.code_point)) {
      break;
    }
    end += unit.size;
  }
  return end;
}

// The bytes behind the last white space of `text`.
size_t TrailingWord(absl::string_view text) {
  size_t word = 0;
  while (word < text.size() &&
         TrailingSpace(text.substr(0, text.size() - word)) == 0) {
    ++word;
    while (word < text.size() &&
           (static_cast<uint8_t>(text[text.size() - word]) & 0xC0) == 0x80) {
      ++word;
    }
  }
  return word;
}

// Changes each character by `change(index, code point, out)`.
template <typename Change>
Text MapCharacters(const Text& text, Change change) {
  Text out;
  size_t at = 0;
  for (const absl::string_view character : Characters(text.bytes())) {
    std::string changed;
    const Utf8Unit unit = NextUtf8(character);
    if (unit.kind == Utf8Unit::kCharacter) {
      change(unit.code_point, &changed);
    } else {
      changed.assign(character.data(), character.size());
    }
    out.Append(changed, text.OriginAt(at));
    at += character.size();
  }
  return out;
}

}  // namespace

std::vector<Text> SplitAt(const Text& text, absl::string_view separator,
                          int64_t most, bool from_right) {
  const absl::string_view bytes = text.bytes();
  std::vector<Text> parts;
  if (!from_right) {
    size_t begin = 0;
    while (most < 0 || static_cast<int64_t>(parts.size()) < most) {
      const size_t at = bytes.find(separator, begin);
      if (at == absl::string_view::npos) break;
      parts.push_back(text.Part(begin, at - begin));
      begin = at + separator.size();
    }
    parts.push_back(text.Part(begin));
    return parts;
  }
  size_t end = bytes.size();
  while (most < 0 || static_cast<int64_t>(parts.size()) < most) {
    const size_t at = bytes.substr(0, end).rfind(separator);
    if (at == absl::string_view::npos) break;
    parts.push_back(
        text.Part(at + separator.size(), end - at - separator.size()));
    end = at;
  }
  parts.push_back(text.Part(0, end));
  std::reverse(parts.begin(), parts.end());
  return parts;
}

std::vector<Text> SplitAtSpace(const Text& text, int64_t most,
                               bool from_right) {
  const absl::string_view bytes = text.bytes();
  std::vector<Text> parts;
  size_t begin = 0;
  size_t end = bytes.size();
  const auto rest = [&] { return bytes.substr(begin, end - begin); };
  const auto skip = [&] {
    if (from_right) {
      end -= TrailingSpace(rest());
    } else {
      begin += LeadingSpace(rest());
    }
    return begin < end;
  };
  while (skip()) {
    if (most >= 0 && static_cast<int64_t>(parts.size()) == most) {
      // The last part keeps the white space at its far end only.
      if (from_right) {
        parts.push_back(text.Part(0, end));
      } else {
        parts.push_back(text.Part(begin));
      }
      break;
    }
    if (from_right) {
      const size_t size = TrailingWord(rest());
      parts.push_back(text.Part(end - size, size));
      end -= size;
    } else {
      const size_t size = LeadingWord(rest());
      parts.push_back(text.Part(begin, size));
      begin += size;
    }
  }
  if (from_right) std::reverse(parts.begin(), parts.end());
  return parts;
}

std::vector<Text> SplitLines(const Text& text, bool keep_ends) {
  std::vector<Text> lines;
  size_t begin = 0;
  size_t at = 0;
  const auto characters = Characters(text.bytes());
  for (size_t i = 0; i < characters.size(); ++i) {
    const size_t end = at;
    at += characters[i].size();
    if (!IsLineEnd(CodePoint(characters[i]))) continue;
    if (characters[i] == "\r" && i + 1 < characters.size() &&
        characters[i + 1] == "\n") {
      ++i;
      ++at;
    }
    lines.push_back(text.Part(begin, (keep_ends ? at : end) - begin));
    begin = at;
  }
  if (begin < text.size()) lines.push_back(text.Part(begin));
  return lines;
}

Text Strip(const Text& text, const std::string* set, bool left, bool right) {
  const absl::string_view bytes = text.bytes();
  if (set == nullptr) {
    const size_t begin = left ? LeadingSpace(bytes) : 0;
    const size_t end =
        right ? bytes.size() - TrailingSpace(bytes) : bytes.size();
    return begin < end ? text.Part(begin, end - begin) : Text();
  }
  const auto in_set = Characters(*set);
  const absl::flat_hash_set<absl::string_view> dropped(in_set.begin(),
                                                       in_set.end());
  const auto characters = Characters(bytes);
  size_t first = 0;
  size_t last = characters.size();
  while (left && first < last && dropped.contains(characters[first])) ++first;
  while (right && first < last && dropped.contains(characters[last - 1])) {
    --last;
  }
  if (first == last) return Text();
  const size_t begin = characters[first].data() - bytes.data();
  const absl::string_view end = characters[last - 1];
  return text.Part(begin, end.data() + end.size() - bytes.data() - begin);
}

absl::StatusOr<Text> Replace(const Text& text, absl::string_view old,
                             const Text& by, int64_t count, Context* context) {
  RF_RETURN_IF_ERROR(context->Work(text.size()));
  const absl::string_view bytes = text.bytes();
  Text out;
  size_t begin = 0;  // Bytes from here are not in `out` yet.
  size_t at = 0;     // The next occurrence is searched from here.
  while (count != 0 && at <= bytes.size()) {
    const size_t found = bytes.find(old, at);
    if (found == absl::string_view::npos) break;
    RF_RETURN_IF_ERROR(context->Work(by.size()));
    out.Append(text, begin, found - begin);
    out.Append(by);
    begin = found + old.size();
    // An empty `old` is found once before each character, and at the end.
    at = begin;
    if (old.empty()) {
      at += at < bytes.size() ? Characters(bytes.substr(at, 4))[0].size() : 1;
    }
    --count;
  }
  out.Append(text, begin, bytes.size() - begin);
  return out;
}

Text ChangeCase(const Text& text, LetterCase letter_case) {
  bool in_word = false;  // A character before belongs to the same word.
  return MapCharacters(text, [&](uint32_t c, std::string* out) {
    bool upper = letter_case == LetterCase::kUpper;
    if (letter_case == LetterCase::kTitle ||
        letter_case == LetterCase::kCapitalize) {
      upper = !in_word;
      in_word =
          letter_case == LetterCase::kCapitalize || IsUpper(c) || IsLower(c);
    } else if (letter_case == LetterCase::kSwap) {
      upper = IsLower(c);
    }
    if (upper) {
      AppendUpper(c, out);
    } else {
      AppendLower(c, out);
    }
  });
}

}  // namespace ringfleet::coordinator::jinja
