// SPDX-License-Identifier: Apache-2.0
// The published tokenizer and chat template of DeepSeek-R1, which is too large
// to bundle. RINGFLEET_R1_TOKENIZER names a folder with its tokenizer.json and
// tokenizer_config.json, and vectors.json with what they give:
//   {"encode": [{"text": ..., "ids": [...], "decoded": ...}, ...],
//    "chat": [{"messages": [...], "add_generation_prompt": ..., "text": ...}]}
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>

#include "coordinator/chat/chat_template.h"
#include "coordinator/tokenizer/tokenizer.h"

namespace ringfleet::coordinator {
namespace {

class R1TokenizerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const char* folder = std::getenv("RINGFLEET_R1_TOKENIZER");
    if (folder == nullptr) {
      GTEST_SKIP() << "RINGFLEET_R1_TOKENIZER names no folder with R1's "
                      "tokenizer and vectors.json";
    }
    auto loaded = Tokenizer::Load(folder);
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    tokenizer_ = *std::move(loaded);
    std::ifstream file(std::string(folder) + "/vectors.json");
    vectors_ = nlohmann::json::parse(file);
  }

  std::unique_ptr<Tokenizer> tokenizer_;
  nlohmann::json vectors_;
};

TEST_F(R1TokenizerTest, EncodesAndDecodesThePublishedVectors) {
  EXPECT_EQ(tokenizer_->id_limit(), 128815u);
  EXPECT_EQ(tokenizer_->bos_id(), 0u);
  EXPECT_EQ(tokenizer_->eos_id(), 1u);
  ASSERT_GE(vectors_.at("encode").size(), 38u);
  for (const auto& vector : vectors_.at("encode")) {
    const auto text = vector.at("text").get<std::string>();
    const auto expected = vector.at("ids").get<std::vector<uint32_t>>();
    const auto ids = tokenizer_->Encode(text);
    ASSERT_TRUE(ids.ok()) << ids.status();
    EXPECT_EQ(*ids, expected) << text;
    std::vector<uint32_t> prompt = expected;
    if (prompt.empty() || prompt[0] != 0) prompt.insert(prompt.begin(), 0);
    EXPECT_EQ(*tokenizer_->EncodePrompt(text), prompt) << text;
    EXPECT_EQ(tokenizer_->Decode(expected, /*keep_special=*/true),
              vector.at("decoded").get<std::string>());
  }
}

TEST_F(R1TokenizerTest, RendersThePublishedConversations) {
  ASSERT_GE(vectors_.at("chat").size(), 6u);
  const auto parsed =
      ChatTemplate::Parse(tokenizer_->chat_template(), tokenizer_->bos_token(),
                          tokenizer_->eos_token());
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  for (const auto& vector : vectors_.at("chat")) {
    Conversation conversation;
    conversation.messages = vector.at("messages");
    conversation.add_generation_prompt =
        vector.at("add_generation_prompt").get<bool>();
    const auto prompt = (*parsed)->Render(conversation, absl::CivilSecond());
    ASSERT_TRUE(prompt.ok()) << prompt.status();
    EXPECT_EQ(prompt->bytes(), vector.at("text").get<std::string>());
    // No message spells a token.
    EXPECT_EQ(*tokenizer_->Encode(*prompt),
              *tokenizer_->Encode(prompt->bytes()));
  }
}

}  // namespace
}  // namespace ringfleet::coordinator
