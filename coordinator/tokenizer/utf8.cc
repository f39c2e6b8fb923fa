// SPDX-License-Identifier: Apache-2.0
#include "coordinator/tokenizer/utf8.h"

#include "absl/strings/str_cat.h"

namespace ringfleet::coordinator {
namespace {

constexpr absl::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

uint8_t Byte(absl::string_view bytes, size_t i) {
  return static_cast<uint8_t>(bytes[i]);
}

// Start of the last character of a non-empty `text`.
size_t LastCharacter(absl::string_view text) {
  size_t begin = text.size() - 1;
  while (begin > 0 && text.size() - begin < 4 &&
         (Byte(text, begin) & 0xC0) == 0x80) {
    --begin;
  }
  return begin;
}

}  // namespace

Utf8Unit NextUtf8(absl::string_view bytes) {
  const uint8_t lead = Byte(bytes, 0);
  if (lead < 0x80) return {Utf8Unit::kCharacter, lead, 1};
  // The second byte's range excludes overlong forms, surrogates and code
  // points past U+10FFFF; the other bytes are 80..BF.
  uint8_t low = 0x80;
  uint8_t high = 0xBF;
  size_t size;
  uint32_t code_point;
  if (lead >= 0xC2 && lead <= 0xDF) {
    size = 2;
    code_point = lead & 0x1F;
  } else if (lead >= 0xE0 && lead <= 0xEF) {
    size = 3;
    code_point = lead & 0x0F;
    if (lead == 0xE0) low = 0xA0;
    if (lead == 0xED) high = 0x9F;
  } else if (lead >= 0xF0 && lead <= 0xF4) {
    size = 4;
    code_point = lead & 0x07;
    if (lead == 0xF0) low = 0x90;
    if (lead == 0xF4) high = 0x8F;
  } else {
    return {Utf8Unit::kInvalid, 0, 1};
  }
  for (size_t i = 1; i < size; ++i) {
    if (i == bytes.size()) return {Utf8Unit::kIncomplete, 0, i};
    const uint8_t next = Byte(bytes, i);
    if (next < low || next > high) return {Utf8Unit::kInvalid, 0, i};
    code_point = code_point << 6 | (next & 0x3F);
    low = 0x80;
    high = 0xBF;
  }
  return {Utf8Unit::kCharacter, code_point, size};
}

absl::Status CheckUtf8(absl::string_view text) {
  for (size_t i = 0; i < text.size();) {
    const Utf8Unit unit = NextUtf8(text.substr(i));
    if (unit.kind != Utf8Unit::kCharacter) {
      return absl::InvalidArgumentError(absl::StrCat(
          "text is not UTF-8: byte 0x",
          absl::Hex(Byte(text, i), absl::kZeroPad2), " at offset ", i,
          unit.kind == Utf8Unit::kIncomplete ? " begins an incomplete character"
                                             : " begins no character"));
    }
    i += unit.size;
  }
  return absl::OkStatus();
}

void AppendUtf8(uint32_t code_point, std::string* out) {
  if (code_point < 0x80) {
    out->push_back(static_cast<char>(code_point));
    return;
  }
  if (code_point < 0x800) {
    out->push_back(static_cast<char>(0xC0 | code_point >> 6));
  } else {
    if (code_point < 0x10000) {
      out->push_back(static_cast<char>(0xE0 | code_point >> 12));
    } else {
      out->push_back(static_cast<char>(0xF0 | code_point >> 18));
      out->push_back(static_cast<char>(0x80 | (code_point >> 12 & 0x3F)));
    }
    out->push_back(static_cast<char>(0x80 | (code_point >> 6 & 0x3F)));
  }
  out->push_back(static_cast<char>(0x80 | (code_point & 0x3F)));
}

size_t AppendWholeCharacters(absl::string_view bytes, std::string* out) {
  size_t used = 0;
  while (used < bytes.size()) {
    const Utf8Unit unit = NextUtf8(bytes.substr(used));
    if (unit.kind == Utf8Unit::kIncomplete) break;
    const absl::string_view text = unit.kind == Utf8Unit::kCharacter
                                       ? bytes.substr(used, unit.size)
                                       : kReplacement;
    out->append(text.data(), text.size());
    used += unit.size;
  }
  return used;
}

void AppendLossy(absl::string_view bytes, std::string* out) {
  if (AppendWholeCharacters(bytes, out) < bytes.size()) {
    out->append(kReplacement.data(), kReplacement.size());
  }
}

bool IsWhitespace(uint32_t code_point) {
  switch (code_point) {
    case 0x20:
    case 0x85:
    case 0xA0:
    case 0x1680:
    case 0x2028:
    case 0x2029:
    case 0x202F:
    case 0x205F:
    case 0x3000:
      return true;
    default:
      return (code_point >= 0x09 && code_point <= 0x0D) ||
             (code_point >= 0x2000 && code_point <= 0x200A);
  }
}

size_t LeadingWhitespace(absl::string_view text) {
  size_t end = 0;
  while (end < text.size()) {
    const Utf8Unit unit = NextUtf8(text.substr(end));
    if (unit.kind != Utf8Unit::kCharacter || !IsWhitespace(unit.code_point)) {
      break;
    }
    end += unit.size;
  }
  return end;
}

size_t TrailingWhitespace(absl::string_view text) {
  size_t begin = text.size();
  while (begin > 0) {
    const size_t last = LastCharacter(text.substr(0, begin));
    const Utf8Unit unit = NextUtf8(text.substr(last, begin - last));
    if (unit.kind != Utf8Unit::kCharacter || unit.size != begin - last ||
        !IsWhitespace(unit.code_point)) {
      break;
    }
    begin = last;
  }
  return text.size() - begin;
}

std::vector<absl::string_view> Characters(absl::string_view text) {
  std::vector<absl::string_view> characters;
  for (size_t i = 0; i < text.size();) {
    const Utf8Unit unit = NextUtf8(text.substr(i));
    const size_t size = unit.kind == Utf8Unit::kCharacter ? unit.size : 1;
    characters.push_back(text.substr(i, size));
    i += size;
  }
  return characters;
}

}  // namespace ringfleet::coordinator
