// SPDX-License-Identifier: Apache-2.0
#include "coordinator/tokenizer/pre_tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

namespace ringfleet::coordinator {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

const json kByteLevel = {
    {"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}};

json Sequence(std::vector<json> parts) {
  parts.push_back(kByteLevel);
  return {{"type", "Sequence"}, {"pretokenizers", parts}};
}

json SplitBy(const std::string& regex, const std::string& behavior = "Isolated",
             bool invert = false) {
  return {{"type", "Split"},
          {"pattern", {{"Regex", regex}}},
          {"behavior", behavior},
          {"invert", invert}};
}

std::vector<std::string> Pieces(const json& spec, absl::string_view text) {
  const auto splitter = PreTokenizer::Parse(spec);
  EXPECT_TRUE(splitter.ok()) << splitter.status();
  if (!splitter.ok()) return {};
  std::vector<absl::string_view> views;
  const absl::Status status = (*splitter)->Split(text, &views);
  EXPECT_TRUE(status.ok()) << status;
  return {views.begin(), views.end()};
}

std::string Problem(const json& spec) {
  const absl::Status status = PreTokenizer::Parse(spec).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  return std::string(status.message());
}

// The expressions of DeepSeek-V3, from a bundled model.
json DeepSeekV3() {
  std::ifstream file(RINGFLEET_SOURCE_DIR
                     "/tests/models/tiny-v3/tokenizer.json");
  return json::parse(file).at("pre_tokenizer");
}

TEST(PreTokenizerTest, DeepSeekV3SplitsAsPublished) {
  const json spec = DeepSeekV3();
  EXPECT_THAT(Pieces(spec, "#include <a.h>\n\n\n  int"),
              ElementsAre("#include", " <", "a", ".h", ">\n\n\n", " ", " int"));
  EXPECT_THAT(Pieces(spec, "foo.bar()"), ElementsAre("foo", ".bar", "()"));
  EXPECT_THAT(Pieces(spec, "x=1,2;y"),
              ElementsAre("x", "=", "1", ",", "2", ";y"));
  EXPECT_THAT(Pieces(spec, " \n x"), ElementsAre(" \n", " x"));
  EXPECT_THAT(Pieces(spec, "12345678"), ElementsAre("123", "456", "78"));
  EXPECT_THAT(Pieces(spec, "a \u4e16\u754c b"),
              ElementsAre("a", " ", "\u4e16\u754c", " b"));
  EXPECT_THAT(Pieces(spec, ""), ElementsAre());
}

// The lookahead of \s+(?!\S) does not see past the piece of the first split.
TEST(PreTokenizerTest, EachSplitSeesOnlyItsPiece) {
  EXPECT_THAT(Pieces(DeepSeekV3(), "a   1"), ElementsAre("a", "   ", "1"));
  EXPECT_THAT(Pieces(DeepSeekV3(), "a   b"), ElementsAre("a", "  ", " b"));
}

TEST(PreTokenizerTest, ByteLevelAloneSplitsAsGpt2) {
  const json spec = {{"type", "ByteLevel"}, {"add_prefix_space", false}};
  EXPECT_THAT(Pieces(spec, "Hello, it's  42!\n"),
              ElementsAre("Hello", ",", " it", "'s", " ", " 42", "!", "\n"));
  json whole = spec;
  whole["use_regex"] = false;
  EXPECT_THAT(Pieces(whole, "a b"), ElementsAre("a b"));
}

TEST(PreTokenizerTest, RemovedKeepsTheGapsOrInvertedTheMatches) {
  EXPECT_THAT(Pieces(Sequence({SplitBy("b+", "Removed")}), "abbac"),
              ElementsAre("a", "ac"));
  EXPECT_THAT(Pieces(Sequence({SplitBy("b+", "Removed", true)}), "abbab"),
              ElementsAre("bb", "b"));
  EXPECT_THAT(Pieces(Sequence({SplitBy("b+", "Isolated", true)}), "abba"),
              ElementsAre("a", "bb", "a"));
}

TEST(PreTokenizerTest, DigitsSplitOneByOneOrTogether) {
  json digits = {{"type", "Digits"}, {"individual_digits", true}};
  EXPECT_THAT(Pieces(Sequence({digits}), "a12"), ElementsAre("a", "1", "2"));
  digits["individual_digits"] = false;
  EXPECT_THAT(Pieces(Sequence({digits}), "a12b"), ElementsAre("a", "12", "b"));
}

TEST(PreTokenizerTest, AStringPatternIsTakenLiterally) {
  const json split = {{"type", "Split"},
                      {"pattern", {{"String", "."}}},
                      {"behavior", "Isolated"}};
  EXPECT_THAT(Pieces(Sequence({split}), "a.b"), ElementsAre("a", ".", "b"));
}

TEST(PreTokenizerTest, EmptyMatchesCutAndGoOn) {
  EXPECT_THAT(Pieces(Sequence({SplitBy("x*")}), "\u00e9xxb"),
              ElementsAre("\u00e9", "xx", "b"));
  EXPECT_THAT(Pieces(Sequence({SplitBy("(?=b)")}), "abab"),
              ElementsAre("a", "ba", "b"));
}

// PCRE2's own \s holds U+180E; Unicode's White_Space does not.
TEST(PreTokenizerTest, WhitespaceClassesAreUnicodes) {
  const std::string separator = "\u180e";
  EXPECT_THAT(Pieces(Sequence({SplitBy("\\s")}), "a" + separator + "\u3000b"),
              ElementsAre("a" + separator, "\u3000", "b"));
  EXPECT_THAT(Pieces(Sequence({SplitBy("[\\sx]+")}), "a\u00a0x b"),
              ElementsAre("a", "\u00a0x ", "b"));
  EXPECT_THAT(Pieces(Sequence({SplitBy("\\S+")}), " a" + separator + "\u2028"),
              ElementsAre(" ", "a" + separator, "\u2028"));
  EXPECT_THAT(Pieces(Sequence({SplitBy("[^]\\s]+")}), "ab]c d"),
              ElementsAre("ab", "]", "c", " ", "d"));
}

TEST(PreTokenizerTest, AnchorsMatchAtEveryLine) {
  EXPECT_THAT(Pieces(Sequence({SplitBy("b$")}), "ab\ncb"),
              ElementsAre("a", "b", "\nc", "b"));
}

TEST(PreTokenizerTest, UnsupportedPartsAreNamed) {
  EXPECT_THAT(Problem(nullptr), HasSubstr("pre_tokenizer"));
  EXPECT_THAT(Problem({{"type", "Metaspace"}}), HasSubstr("Metaspace"));
  EXPECT_THAT(Problem(Sequence({{{"type", "BertPreTokenizer"}}})),
              HasSubstr("pretokenizers[0]: type \"BertPreTokenizer\""));
  EXPECT_THAT(Problem(Sequence({SplitBy("a", "MergedWithNext")})),
              HasSubstr("MergedWithNext"));
  EXPECT_THAT(Problem(Sequence({SplitBy("(a")})), HasSubstr("\"(a\""));
  EXPECT_THAT(Problem(Sequence({SplitBy("\\C")})), HasSubstr("\\C"));
  EXPECT_THAT(Problem({{"type", "ByteLevel"}}), HasSubstr("add_prefix_space"));
  EXPECT_THAT(Problem({{"type", "ByteLevel"}, {"add_prefix_space", 1}}),
              HasSubstr("add_prefix_space"));
  EXPECT_THAT(Problem({{"type", "Sequence"}}), HasSubstr("pretokenizers"));
  EXPECT_THAT(Problem({{"type", "Sequence"}, {"pretokenizers", json::array()}}),
              HasSubstr("ByteLevel"));
  EXPECT_THAT(Problem(Sequence({kByteLevel})), HasSubstr("last"));
  EXPECT_THAT(
      Problem({{"type", "Sequence"}, {"pretokenizers", {SplitBy("a")}}}),
      HasSubstr("last"));
  EXPECT_THAT(
      Problem(Sequence({{{"type", "Split"}, {"behavior", "Isolated"}}})),
      HasSubstr("pattern"));
  EXPECT_THAT(Problem(Sequence({json(7)})), HasSubstr("pretokenizers[0]"));
}

// Both libraries compile these, and split differently.
TEST(PreTokenizerTest, ExpressionsThatPcre2ReadsOtherwiseAreNamed) {
  for (const auto& [expression, construct] :
       std::vector<std::pair<std::string, std::string>>{
           {"[a&&]", "\"&&\" at offset 1"},
           {"[&&a]", "\"&&\" at offset 0"},
           {"[[:graph:]]", "\"[:graph:]\""},
           {"[a[:x]", "\"[ in a class\""},
           {std::string(20, '[') + "a" + std::string(20, ']'),
            "\"[ in a class\" at offset 17"},
           {"\\pL+", "\"\\p\""},
           {"(?i)a|ss", "\"ss\" at offset 6"},
           {"(?i:Fi)", "\"Fi\" at offset 4"},
           {"(?i:[a\u00df])", "\"\u00df\""},
           {"\\p{N}{1,3}+", "\"{1,3}+\" at offset 5"},
           {"a{2}?", "\"{2}?\""},
           {"a{,2}", "\"{,2}\""},
           {"(?m).", "\"(?m\""},
           {"(?P<n>a)", "\"(?P\""},
           {"(?|a)", "\"(?|\""},
           {"a(*SKIP)", "\"(*\""},
           {"\\bfoo", "\"\\b\""},
           {"\\Qa.\\E", "\"\\Q\""},
           {"\\N", "\"\\N\""},
           {"\\u12", "\"\\u\""}}) {
    EXPECT_THAT(Problem(Sequence({SplitBy(expression)})),
                AllOf(HasSubstr("pretokenizers[0]: expression"),
                      HasSubstr(construct), HasSubstr("is not supported")))
        << expression;
  }
}

// The pieces are those of the tokenizers library.
TEST(PreTokenizerTest, ExpressionsAreOnigurumas) {
  const auto pieces = [](const std::string& expression,
                         absl::string_view text) {
    return Pieces(Sequence({SplitBy(expression)}), text);
  };
  // A mark and a connector belong to words, a circled letter as well.
  EXPECT_THAT(pieces("\\w+", "e\u0301_\u24b6 -a"),
              ElementsAre("e\u0301_\u24b6", " -", "a"));
  EXPECT_THAT(pieces("\\W+", "e\u0301 -a"), ElementsAre("e\u0301", " -", "a"));
  EXPECT_THAT(pieces("\\h+", "0fg \t"), ElementsAre("0f", "g \t"));
  EXPECT_THAT(pieces("[\\hx]+", "0fxg"), ElementsAre("0fx", "g"));
  EXPECT_THAT(pieces("\\v+", "a\n\x0b\n"), ElementsAre("a\n", "\x0b", "\n"));
  EXPECT_THAT(pieces("[[:punct:]]+", "a\u20ac+b"),
              ElementsAre("a", "\u20ac+", "b"));
  // The comma is used with this script, but is not of it.
  EXPECT_THAT(pieces("\\p{Han}+", "\u4e16\u3001\u754c"),
              ElementsAre("\u4e16", "\u3001", "\u754c"));
  EXPECT_THAT(pieces("[\\P{Han}]+", "\u4e16\u3001x"),
              ElementsAre("\u4e16", "\u3001x"));
  EXPECT_THAT(pieces("\\u4e16|\\x{754c}", "\u4e16\u754c"),
              ElementsAre("\u4e16", "\u754c"));
  EXPECT_THAT(pieces("(?i:'s|'t)|(?<x>b)|a{1,2}?", "'Sbaa"),
              ElementsAre("'S", "b", "a", "a"));
  EXPECT_THAT(
      pieces("a++|[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~]", "aa&["),
      ElementsAre("aa", "&", "["));
}

// The pieces are those of the tokenizers library.
TEST(PreTokenizerTest, ClassesMayIntersectAndHoldClasses) {
  const std::string letters = "abcdefghij XYZ_9";
  for (const auto& [expression, pieces] :
       std::vector<std::pair<std::string, std::vector<std::string>>>{
           {"[a-f&&[c-z]]+", {"ab", "cdef", "ghij XYZ_9"}},
           {"[^a-f&&[c-z]]+", {"ab", "cdef", "ghij XYZ_9"}},
           {"[a-i&&[^aei]&&[^bh]]+", {"ab", "cd", "e", "fg", "hij XYZ_9"}},
           {"[a[bc]X]+", {"abc", "defghij ", "X", "YZ_9"}},
           {"[^a[bc]X]+", {"abc", "defghij ", "X", "YZ_9"}},
           {"[b[^a-h]]+", {"a", "b", "cdefgh", "ij XYZ_9"}},
           {"[^\\W\\d_]+", {"abcdefghij", " ", "XYZ", "_9"}},
           {"[a-z&&^b]+", {"a", "b", "cdefghij XYZ_9"}},
           {"(?i:[x-z&&[^y]])+", {"abcdefghij ", "X", "Y", "Z", "_9"}},
           {"[\\W9]+", {"abcdefghij", " ", "XYZ_", "9"}}}) {
    EXPECT_EQ(Pieces(Sequence({SplitBy(expression)}), letters), pieces)
        << expression;
  }
  EXPECT_THAT(
      Pieces(Sequence({SplitBy("[\\p{L}&&[^\\p{Han}]]+")}), "a\u4e16b\u3001"),
      ElementsAre("a", "\u4e16", "b", "\u3001"));
  EXPECT_THAT(Pieces(Sequence({SplitBy("[\\Sx]+")}), "a\u180e x"),
              ElementsAre("a\u180e", " ", "x"));
}

// Pieces of published families' expressions.
TEST(PreTokenizerTest, PiecesEqualTheRecordedOnes) {
  std::ifstream file(RINGFLEET_SOURCE_DIR
                     "/tests/coordinator/tokenizer/split_vectors.json");
  const json vectors = json::parse(file);
  ASSERT_GE(vectors.at("families").size(), 11u);
  for (const json& family : vectors.at("families")) {
    std::vector<json> splits;
    for (const json& expression : family.at("expressions")) {
      splits.push_back(SplitBy(expression.get<std::string>()));
    }
    const json spec = Sequence(splits);
    for (const json& pieces : family.at("cases")) {
      std::string text;
      for (const json& piece : pieces) text += piece.get<std::string>();
      EXPECT_EQ(Pieces(spec, text), pieces.get<std::vector<std::string>>())
          << family.at("name");
    }
  }
}

TEST(PreTokenizerTest, ExponentialExpressionsAreStopped) {
  const auto splitter = PreTokenizer::Parse(Sequence({SplitBy("(a|aa)+$")}));
  ASSERT_TRUE(splitter.ok());
  std::vector<absl::string_view> pieces;
  const std::string text = std::string(200, 'a') + "b";
  const absl::Status status = (*splitter)->Split(text, &pieces);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
}

TEST(PreTokenizerTest, LongRunsOfEveryKindEndAndLoseNothing) {
  const json spec = DeepSeekV3();
  for (const char* run : {"a", " ", "\n", " \n", "1", ".", "\u4e16", ".a", "\t",
                          "\u0301", "\r", "a1", " 1"}) {
    std::string text;
    while (text.size() < (1 << 20)) text += run;
    text += "x";
    std::string joined;
    for (const std::string& piece : Pieces(spec, text)) joined += piece;
    EXPECT_TRUE(joined == text) << "run of \"" << run << "\"";
  }
}

// Groups that repeat need memory for each repetition: past the compiled
// matcher's stack the interpreter goes on with memory of its own.
TEST(PreTokenizerTest, DeepBacktrackingNeedsNoStack) {
  const json spec = Sequence({SplitBy("(?:a|b)+(?!c)")});
  const std::string text = std::string(1 << 17, 'a') + "b";
  EXPECT_THAT(Pieces(spec, text + "c"),
              ElementsAre(std::string(1 << 17, 'a'), "bc"));
}

}  // namespace
}  // namespace ringfleet::coordinator
