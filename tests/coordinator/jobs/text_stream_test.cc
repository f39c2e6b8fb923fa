// SPDX-License-Identifier: Apache-2.0
#include "coordinator/jobs/text_stream.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/testing/bundled_model.h"
#include "tests/testing/checkpoint_writer.h"

namespace ringfleet::coordinator {
namespace {

class TextStreamTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    tokenizer_ = Tokenizer::Load(testing::BundledModel("tiny-v3"))->release();
  }
  static void TearDownTestSuite() { delete tokenizer_; }

  // Feeds a text character by character, so that no token hides a border.
  static std::string Told(const std::string& text,
                          std::vector<std::string> stops, bool keeps = false,
                          std::string* held = nullptr) {
    TextStream stream({tokenizer_, std::move(stops), keeps});
    std::string told;
    for (const char c : text) {
      const std::vector<uint32_t> ids = *tokenizer_->Encode({&c, 1});
      for (const uint32_t id : ids) {
        told += stream.Add(id).text;
        if (stream.stop().has_value()) return told;
      }
    }
    const std::string rest = stream.Finish().text;
    if (held != nullptr) *held = rest;
    return told + rest;
  }

  static Tokenizer* tokenizer_;
};

Tokenizer* TextStreamTest::tokenizer_ = nullptr;

TEST_F(TextStreamTest, StopsAtTheFirstStopString) {
  EXPECT_EQ(Told("abcdef", {}), "abcdef");
  EXPECT_EQ(Told("abcdef", {"cd"}), "ab");
  EXPECT_EQ(Told("abcdef", {"cd"}, /*keeps=*/true), "abcd");
  EXPECT_EQ(Told("abcdef", {"ef", "bc"}), "a");
  EXPECT_EQ(Told("aaab", {"aab"}), "a");
  EXPECT_EQ(Told("x\n\ny", {"\n\n"}), "x");
  EXPECT_EQ(Told("abc", {"abcd"}), "abc");
}

TEST_F(TextStreamTest, HoldsBackNoMoreThanABeginning) {
  std::string held;
  EXPECT_EQ(Told("abxabc", {"abcd"}, false, &held), "abxabc");
  EXPECT_EQ(held, "abc");
  EXPECT_EQ(Told("abab", {"abc"}, false, &held), "abab");
  EXPECT_EQ(held, "ab");
  EXPECT_EQ(Told("xyz", {"abc"}, false, &held), "xyz");
  EXPECT_EQ(held, "");
}

TEST_F(TextStreamTest, CountsAllDecodedText) {
  TextStream stream({tokenizer_, {"zz"}});
  const std::vector<uint32_t> ids = *tokenizer_->Encode("w\xC3\xB6z");
  std::string told;
  for (const uint32_t id : ids) told += stream.Add(id).text;
  EXPECT_EQ(stream.decoded_bytes(), 4u);
  EXPECT_EQ(told, "w\xC3\xB6");
  EXPECT_EQ(stream.told_bytes(), 3u);
  EXPECT_EQ(stream.Finish().text, "z");
}

TEST_F(TextStreamTest, CountsTheTokensOfAReasoning) {
  const auto count = [](const std::string& text, ReasoningState state) {
    TextStream stream({.tokenizer = tokenizer_,
                       .reasoning = Reasoning{{"<think>", "</think>"}, state}});
    std::vector<uint32_t> ids = *tokenizer_->Encode(text);
    ids.push_back(*tokenizer_->eos_id());
    for (const uint32_t id : ids) stream.Add(id);
    stream.Finish();
    EXPECT_EQ(stream.told_bytes(), text.size());
    return stream.reasoning_tokens();
  };
  const auto tokens = [](const std::string& text) {
    return tokenizer_->Encode(text)->size();
  };
  EXPECT_EQ(count("Hello.", ReasoningState::kUndecided), 0u);
  EXPECT_EQ(count(" \n", ReasoningState::kUndecided), 0u);
  EXPECT_EQ(count("<think>Hm.</think>Hello.", ReasoningState::kUndecided),
            tokens("<think>Hm.</think>"));
  EXPECT_EQ(count("Hm.\n</think>\n\nHello.", ReasoningState::kReasoningBegins),
            tokens("Hm.\n</think>"));
  // Without an end all tokens are of the reasoning, with the end token.
  EXPECT_EQ(count("Hm. \n", ReasoningState::kReasoningBegins),
            tokens("Hm. \n") + 1);
}

TEST(SpecialMarkersTest, AreMarkersWhereTheyDivide) {
  // Mistral's markers are special tokens, which are no text otherwise.
  const testing::TempDir folder;
  auto file = nlohmann::json::parse(
      testing::ReadFile(testing::BundledModel("tiny-v3/tokenizer.json")));
  for (auto& token : file["added_tokens"]) token["special"] = true;
  testing::WriteFile(folder.File("tokenizer.json"), file.dump());
  const auto tokenizer = Tokenizer::Load(folder.path());
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  TextRules rules = {.tokenizer = tokenizer->get()};
  for (const bool divides : {false, true}) {
    if (divides) rules.reasoning = {{"<think>", "</think>"}};
    TextStream stream(rules);
    AnswerPiece told;
    const std::vector<uint32_t> ids =
        *(*tokenizer)->Encode("<think>a</think>b");
    for (const uint32_t id : ids) {
      const AnswerPiece piece = stream.Add(id);
      told.reasoning += piece.reasoning;
      told.text += piece.text;
    }
    EXPECT_EQ(told.reasoning, divides ? "a" : "");
    EXPECT_EQ(told.text, divides ? "b" : "ab");
  }
}

TEST(StopsTest, AreFewAndShort) {
  EXPECT_TRUE(CheckStops({}).ok());
  EXPECT_TRUE(
      CheckStops(std::vector<std::string>(16, std::string(256, 'a'))).ok());
  EXPECT_EQ(CheckStops(std::vector<std::string>(17, "a")).message(),
            "17 strings, want at most 16");
  EXPECT_EQ(CheckStops({"a", ""}).message(),
            "a string of 0 bytes, want 1 to 256");
  EXPECT_EQ(CheckStops({std::string(257, 'a')}).message(),
            "a string of 257 bytes, want 1 to 256");
}

TEST_F(TextStreamTest, ATextWithoutATokenizerIsEmpty) {
  TextStream stream({nullptr, {"a"}});
  EXPECT_TRUE(stream.Add(5).empty());
  EXPECT_TRUE(stream.Finish().empty());
}

}  // namespace
}  // namespace ringfleet::coordinator
