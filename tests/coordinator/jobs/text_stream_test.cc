// SPDX-License-Identifier: Apache-2.0
#include "coordinator/jobs/text_stream.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/testing/bundled_model.h"

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
        told += stream.Add(id);
        if (stream.stop().has_value()) return told;
      }
    }
    const std::string rest = stream.Finish();
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
  for (const uint32_t id : ids) told += stream.Add(id);
  EXPECT_EQ(stream.decoded_bytes(), 4u);
  EXPECT_EQ(told, "w\xC3\xB6");
  EXPECT_EQ(stream.Finish(), "z");
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
  EXPECT_EQ(stream.Add(5), "");
  EXPECT_EQ(stream.Finish(), "");
}

}  // namespace
}  // namespace ringfleet::coordinator
