// SPDX-License-Identifier: Apache-2.0
#include "coordinator/fleet/served_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "tests/testing/checkpoint_writer.h"

namespace ringfleet::coordinator {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A folder with the small files of a bundled model, to be changed.
class ServedModelTest : public ::testing::Test {
 protected:
  ServedModelTest() {
    for (const char* name : {"config.json", "generation_config.json",
                             "tokenizer.json", "tokenizer_config.json"}) {
      std::filesystem::copy_file(
          std::string(RINGFLEET_TEST_MODELS "/tiny-v3/") + name,
          folder_.File(name));
    }
  }

  void Change(const std::string& file, const std::string& pointer,
              const nlohmann::json& value) {
    auto json = nlohmann::json::parse(testing::ReadFile(folder_.File(file)));
    json[nlohmann::json::json_pointer(pointer)] = value;
    testing::WriteFile(folder_.File(file), json.dump());
  }

  std::unique_ptr<ServedModel> Load() const {
    auto model = ServedModel::Load(folder_.path());
    EXPECT_TRUE(model.ok()) << model.status();
    return model.ok() ? *std::move(model) : nullptr;
  }

  const testing::TempDir folder_;
};

v1::Prompt TextPrompt(const std::string& text) {
  v1::Prompt prompt;
  prompt.set_text(text);
  return prompt;
}

TEST_F(ServedModelTest, AnEmptyTextIsTheBosAlone) {
  EXPECT_THAT(*Load()->PromptIds(TextPrompt("")), ElementsAre(0));
  Change("tokenizer_config.json", "/add_bos_token", false);
  const auto ids = Load()->PromptIds(TextPrompt(""));
  EXPECT_EQ(ids.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ids.status().message(), "prompt: empty, want at least one token");
}

// The longest token of tiny-v3 is one of 32 spaces.
TEST_F(ServedModelTest, ATextOfTooManyBytesIsRefusedBeforeItIsTokenized) {
  const auto model = Load();
  const std::string spaces(32 * 100, ' ');
  EXPECT_TRUE(model->PromptIds(TextPrompt(spaces), 101).ok());
  const absl::Status status =
      model->PromptIds(TextPrompt(spaces + " \xff"), 99).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(),
            "prompt: 3202 bytes of text, want at most 3168: 99 tokens of up to "
            "32 bytes");
  // Any number of tokens is possible where windows follow each other.
  EXPECT_TRUE(model->PromptIds(TextPrompt(spaces)).ok());
}

// One token may stand for a text of any length then.
TEST_F(ServedModelTest, TokensThatSwallowWhiteSpaceHaveNoMostBytes) {
  Change("tokenizer.json", "/added_tokens/0/rstrip", true);
  const auto model = Load();
  EXPECT_EQ((*model->tokenizer())->most_bytes_of_token(), absl::nullopt);
  const std::string bos = (*model->tokenizer())->bos_token();
  EXPECT_THAT(*model->PromptIds(TextPrompt(bos + std::string(4000, ' ')), 2),
              ElementsAre(0));
}

TEST_F(ServedModelTest, SamplingTakesTheDefaultsOfTheFile) {
  Change("generation_config.json", "/temperature", nullptr);
  Change("generation_config.json", "/top_k", -1);
  const auto sampling = Load()->Sampling(v1::GenerateRequest());
  ASSERT_TRUE(sampling.ok()) << sampling.status();
  EXPECT_EQ(sampling->temperature(), 1);
  EXPECT_EQ(sampling->top_k(), 0u);
}

}  // namespace
}  // namespace ringfleet::coordinator
