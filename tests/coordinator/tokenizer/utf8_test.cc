// SPDX-License-Identifier: Apache-2.0
#include "coordinator/tokenizer/utf8.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ringfleet::coordinator {
namespace {

using ::testing::HasSubstr;

std::string Lossy(absl::string_view bytes) {
  std::string out;
  AppendLossy(bytes, &out);
  return out;
}

TEST(Utf8Test, EveryCodePointReadsBackAsItself) {
  for (uint32_t code_point = 0; code_point <= 0x10FFFF; ++code_point) {
    if (code_point >= 0xD800 && code_point <= 0xDFFF) continue;
    std::string bytes;
    AppendUtf8(code_point, &bytes);
    const Utf8Unit unit = NextUtf8(bytes);
    ASSERT_EQ(unit.kind, Utf8Unit::kCharacter) << code_point;
    ASSERT_EQ(unit.code_point, code_point);
    ASSERT_EQ(unit.size, bytes.size());
    // Every proper prefix may still grow to a character.
    for (size_t size = 1; size < bytes.size(); ++size) {
      const Utf8Unit part = NextUtf8(bytes.substr(0, size));
      ASSERT_EQ(part.kind, Utf8Unit::kIncomplete) << code_point;
      ASSERT_EQ(part.size, size);
    }
  }
}

TEST(Utf8Test, CheckNamesTheOffsetOfWhatIsWrong) {
  EXPECT_TRUE(CheckUtf8("").ok());
  EXPECT_TRUE(CheckUtf8("a\u00e9\u4e16\U0001F642").ok());
  for (const char* bad :
       {"\x80", "\xC0\x80", "\xC1\xBF", "\xE0\x80\x80", "\xED\xA0\x80",
        "\xF0\x80\x80\x80", "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "\xFF",
        "\xE4\xB8", "\xF0\x9F\x99"}) {
    const absl::Status status = CheckUtf8(std::string("ab") + bad);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr("at offset 2"));
  }
}

// The examples of the Unicode Standard, section 3.9, tables 3-8 to 3-11.
TEST(Utf8Test, EachMaximalSubpartBecomesOneReplacement) {
  const std::string r = "\uFFFD";
  EXPECT_EQ(Lossy("\xC0\xAF\xE0\x80\xBF\xF0\x81\x82\x41"),
            r + r + r + r + r + r + r + r + "A");
  EXPECT_EQ(Lossy("\xED\xA0\x80\xED\xBF\xBF\xED\xAF\x41"),
            r + r + r + r + r + r + r + r + "A");
  EXPECT_EQ(Lossy("\xF4\x91\x92\x93\xFF\x41\x80\xBF\x42"),
            r + r + r + r + r + "A" + r + r + "B");
  EXPECT_EQ(Lossy("\xE1\x80\xE2\xF0\x91\x92\xF1\xBF\x41"), r + r + r + r + "A");
  EXPECT_EQ(Lossy("x\xF0\x9F\x99"), "x" + r);
}

TEST(Utf8Test, WholeCharactersLeaveAnIncompleteEnd) {
  std::string out;
  EXPECT_EQ(AppendWholeCharacters("a\xE4\xB8", &out), 1u);
  EXPECT_EQ(out, "a");
  out.clear();
  EXPECT_EQ(AppendWholeCharacters("\xE4\xB8!", &out), 3u);
  EXPECT_EQ(out, "\uFFFD!");
}

TEST(Utf8Test, WhitespaceIsUnicodes) {
  int count = 0;
  for (uint32_t code_point = 0; code_point <= 0x10FFFF; ++code_point) {
    count += IsWhitespace(code_point);
  }
  EXPECT_EQ(count, 25);  // PropList.txt has 25 White_Space code points.
  EXPECT_FALSE(IsWhitespace(0x180E));
  EXPECT_FALSE(IsWhitespace(0x200B));
  EXPECT_EQ(LeadingWhitespace("\u3000 \tx "), 5u);
  EXPECT_EQ(TrailingWhitespace(" x\u3000 \t"), 5u);
  EXPECT_EQ(TrailingWhitespace("\u3000"), 3u);
  EXPECT_EQ(TrailingWhitespace("\x80\x80"), 0u);
  EXPECT_EQ(LeadingWhitespace(""), 0u);
}

}  // namespace
}  // namespace ringfleet::coordinator
