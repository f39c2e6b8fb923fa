// SPDX-License-Identifier: Apache-2.0
#include "coordinator/cli/checkpoint/text_findings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <memory>

#include "tests/testing/bundled_model.h"

namespace ringfleet::coordinator::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// tiny-v3: BOS is id 0, EOS id 1, ids from 2044 on have no token.
class TextFindingsTest : public ::testing::Test {
 protected:
  TextFindingsTest() {
    tokenizer_ = *Tokenizer::Load(testing::BundledModel("tiny-v3"));
    spec_.vocab_size = 2048;
    spec_.bos_token_id = 0;
    spec_.eos_token_ids = {1};
  }

  TextFindings Judge() const {
    return JudgeTextFiles(spec_, generation_, *tokenizer_);
  }

  std::unique_ptr<Tokenizer> tokenizer_;
  cluster::ModelSpec spec_;
  cluster::GenerationDefaults generation_;
};

TEST_F(TextFindingsTest, FilesThatAgreeRaiseNothing) {
  EXPECT_THAT(Judge().contradictions, IsEmpty());
  EXPECT_THAT(Judge().doubts, IsEmpty());
  generation_.eos_token_ids = {1, 2042};
  EXPECT_THAT(Judge().contradictions, IsEmpty());
  EXPECT_THAT(Judge().doubts, IsEmpty());
}

TEST_F(TextFindingsTest, IdsBeyondTheVocabularyContradictIt) {
  generation_.eos_token_ids = {1, 2048};
  EXPECT_THAT(Judge().contradictions,
              ElementsAre("generation_config.json: eos_token_id 2048, want "
                          "less than 2048 (vocab_size)"));
  generation_.eos_token_ids = {};
  spec_.vocab_size = 2042;
  EXPECT_THAT(Judge().contradictions,
              ElementsAre("tokenizer: id 2043 is "
                          "\"<\uff5cAssistant\uff5c>\", want ids below 2042 "
                          "(vocab_size)"));
}

TEST_F(TextFindingsTest, DifferentEndTokensAreDoubts) {
  generation_.eos_token_ids = {2042, 2045};
  spec_.bos_token_id = 7;
  const TextFindings findings = Judge();
  EXPECT_THAT(findings.contradictions, IsEmpty());
  EXPECT_THAT(
      findings.doubts,
      ElementsAre("generation_config.json: eos_token_id 2045 has no token in "
                  "the tokenizer",
                  "config.json: eos_token_id 1 does not end an answer: "
                  "generation_config.json has 2042, 2045",
                  "tokenizer: eos_token "
                  "\"<\uff5cend\u2581of\u2581sentence\uff5c>\" (1) does not "
                  "end an answer: "
                  "generation_config.json has 2042, 2045",
                  "tokenizer: bos_token "
                  "\"<\uff5cbegin\u2581of\u2581sentence\uff5c>\" is 0, but "
                  "config.json has bos_token_id "
                  "7"));
}

TEST_F(TextFindingsTest, WhatIsAbsentIsADoubt) {
  tokenizer_ = *Tokenizer::Load("synth:tiny");
  spec_.eos_token_ids = {};
  spec_.vocab_size = 512;
  EXPECT_THAT(Judge().contradictions, IsEmpty());
  EXPECT_THAT(Judge().doubts, ElementsAre("tokenizer: no chat template"));
}

}  // namespace
}  // namespace ringfleet::coordinator::cli
