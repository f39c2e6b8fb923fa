// SPDX-License-Identifier: Apache-2.0
#include "coordinator/jinja/characters.h"

#include <locale.h>
#include <wctype.h>

#include <algorithm>
#include <array>

#include "absl/strings/ascii.h"
#include "coordinator/tokenizer/utf8.h"

namespace ringfleet::coordinator::jinja {
namespace {

// The locale of glibc's tables, which lives as long as the process. Null: the
// system has none.
locale_t UnicodeLocale() {
  static const locale_t locale = newlocale(LC_CTYPE_MASK, "C.UTF-8", nullptr);
  return locale;
}

bool HasProperty(uint32_t code_point, int (*ascii)(int),
                 int (*unicode)(wint_t, locale_t)) {
  if (code_point < 0x80) return ascii(static_cast<int>(code_point)) != 0;
  return UnicodeLocale() != nullptr &&
         unicode(code_point, UnicodeLocale()) != 0;
}

int AsciiUpper(int c) { return c >= 'A' && c <= 'Z'; }
int AsciiLower(int c) { return c >= 'a' && c <= 'z'; }
int AsciiAlpha(int c) { return AsciiUpper(c) || AsciiLower(c); }

// Characters whose upper case is more than one character.
struct LongUpper {
  uint32_t code_point;
  absl::string_view upper;
};
constexpr std::array<LongUpper, 8> kLongUppers = {{{0xDF, "SS"},
                                                   {0xFB00, "FF"},
                                                   {0xFB01, "FI"},
                                                   {0xFB02, "FL"},
                                                   {0xFB03, "FFI"},
                                                   {0xFB04, "FFL"},
                                                   {0xFB05, "ST"},
                                                   {0xFB06, "ST"}}};

}  // namespace

bool IsPythonSpace(uint32_t code_point) {
  return IsWhitespace(code_point) || (code_point >= 0x1C && code_point <= 0x1F);
}

size_t LeadingSpace(absl::string_view text) {
  size_t end = 0;
  while (end < text.size()) {
    const Utf8Unit unit = NextUtf8(text.substr(end));
    if (unit.kind != Utf8Unit::kCharacter || !IsPythonSpace(unit.code_point)) {
      break;
    }
    end += unit.size;
  }
  return end;
}

size_t TrailingSpace(absl::string_view text) {
  size_t begin = text.size();
  while (begin > 0) {
    size_t last = begin - 1;
    while (last > 0 && begin - last < 4 &&
           (static_cast<uint8_t>(text[last]) & 0xC0) == 0x80) {
      --last;
    }
    const Utf8Unit unit = NextUtf8(text.substr(last, begin - last));
    if (unit.kind != Utf8Unit::kCharacter || unit.size != begin - last ||
        !IsPythonSpace(unit.code_point)) {
      break;
    }
    begin = last;
  }
  return text.size() - begin;
}

size_t CountCharacters(absl::string_view text) {
  size_t count = 0;
  for (size_t at = 0; at < text.size(); ++count) {
    const Utf8Unit unit = NextUtf8(text.substr(at));
    at += unit.kind == Utf8Unit::kCharacter ? unit.size : 1;
  }
  return count;
}

uint32_t CodePoint(absl::string_view character) {
  const Utf8Unit unit = NextUtf8(character);
  return unit.kind == Utf8Unit::kCharacter ? unit.code_point : 0xFFFD;
}

bool IsUpper(uint32_t code_point) {
  return HasProperty(code_point, AsciiUpper, iswupper_l);
}

bool IsLower(uint32_t code_point) {
  return HasProperty(code_point, AsciiLower, iswlower_l);
}

bool IsAlpha(uint32_t code_point) {
  return HasProperty(code_point, AsciiAlpha, iswalpha_l) &&
         !IsDecimal(code_point);
}

bool IsDecimal(uint32_t code_point) {
  return code_point >= '0' && code_point <= '9';
}

bool IsPrintable(uint32_t code_point) {
  // Format characters and private use, which glibc counts as printable.
  static constexpr uint32_t kHidden[][2] = {
      {0xAD, 0xAD},       {0x600, 0x605},     {0x61C, 0x61C},
      {0x6DD, 0x6DD},     {0x70F, 0x70F},     {0x180E, 0x180E},
      {0x200B, 0x200F},   {0x202A, 0x202E},   {0x2060, 0x206F},
      {0xE000, 0xF8FF},   {0xFEFF, 0xFEFF},   {0xFFF9, 0xFFFB},
      {0xE0000, 0xE0FFF}, {0xF0000, 0x10FFFF}};
  if (code_point == ' ') return true;
  if (IsPythonSpace(code_point)) return false;
  for (const auto& range : kHidden) {
    if (code_point >= range[0] && code_point <= range[1]) return false;
  }
  if (code_point < 0x80) return code_point > 0x20 && code_point != 0x7F;
  return UnicodeLocale() == nullptr || iswprint_l(code_point, UnicodeLocale());
}

void AppendUpper(uint32_t code_point, std::string* out) {
  const auto found = std::find_if(
      kLongUppers.begin(), kLongUppers.end(),
      [&](const LongUpper& entry) { return entry.code_point == code_point; });
  if (found != kLongUppers.end()) {
    out->append(found->upper.data(), found->upper.size());
  } else if (code_point < 0x80) {
    out->push_back(absl::ascii_toupper(static_cast<uint8_t>(code_point)));
  } else {
    AppendUtf8(
        UnicodeLocale() ? towupper_l(code_point, UnicodeLocale()) : code_point,
        out);
  }
}

void AppendLower(uint32_t code_point, std::string* out) {
  if (code_point < 0x80) {
    out->push_back(absl::ascii_tolower(static_cast<uint8_t>(code_point)));
  } else {
    AppendUtf8(
        UnicodeLocale() ? towlower_l(code_point, UnicodeLocale()) : code_point,
        out);
  }
}

}  // namespace ringfleet::coordinator::jinja
