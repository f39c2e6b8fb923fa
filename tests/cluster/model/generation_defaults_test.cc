// SPDX-License-Identifier: Apache-2.0
#include "cluster/model/generation_defaults.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cluster/checkpoint/open_model.h"
#include "tests/testing/checkpoint_writer.h"

namespace ringfleet::cluster {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(GenerationDefaultsTest, AbsentFileMeansGreedy) {
  const testing::TempDir dir;
  const auto defaults = LoadGenerationDefaults(dir.path());
  ASSERT_TRUE(defaults.ok()) << defaults.status();
  EXPECT_EQ(defaults->temperature, 0);
  EXPECT_EQ(defaults->top_p, 1);
}

TEST(GenerationDefaultsTest, SamplesOnlyWithDoSample) {
  auto defaults = ParseGenerationDefaults(
      R"({"do_sample": true, "temperature": 0.6, "top_p": 0.95, "top_k": 50,
          "min_p": 0.05, "eos_token_id": [1, 2]})");
  ASSERT_TRUE(defaults.ok()) << defaults.status();
  EXPECT_EQ(defaults->temperature, 0.6);
  EXPECT_EQ(defaults->top_p, 0.95);
  EXPECT_EQ(defaults->top_k, 50);
  EXPECT_EQ(defaults->min_p, 0.05);
  EXPECT_THAT(defaults->eos_token_ids, ElementsAre(1, 2));
  defaults = ParseGenerationDefaults(
      R"({"do_sample": false, "temperature": 0.6, "top_p": 0.95})");
  ASSERT_TRUE(defaults.ok()) << defaults.status();
  EXPECT_EQ(defaults->temperature, 0);
  defaults = ParseGenerationDefaults(R"({"temperature": 0.6})");
  ASSERT_TRUE(defaults.ok()) << defaults.status();
  EXPECT_EQ(defaults->temperature, 0);
}

TEST(GenerationDefaultsTest, SamplingWithoutATemperatureHasOne) {
  for (const char* text : {R"({"do_sample": true})",
                           R"({"do_sample": true, "temperature": null})"}) {
    const auto defaults = ParseGenerationDefaults(text);
    ASSERT_TRUE(defaults.ok()) << defaults.status();
    EXPECT_EQ(defaults->temperature, 1) << text;
  }
  const auto greedy =
      ParseGenerationDefaults(R"({"do_sample": true, "temperature": 0.0})");
  ASSERT_TRUE(greedy.ok()) << greedy.status();
  EXPECT_EQ(greedy->temperature, 0);
}

TEST(GenerationDefaultsTest, ValuesThatMeanOffAreOff) {
  for (const char* text :
       {R"({"top_k": -1, "top_p": 1, "min_p": 0, "eos_token_id": -1})",
        R"({"top_k": 0, "top_p": 1.0, "min_p": 0.0, "eos_token_id": []})",
        R"({"top_k": null, "top_p": null, "min_p": null,
            "eos_token_id": null})",
        R"({"repetition_penalty": 1.0, "encoder_repetition_penalty": 1,
            "no_repeat_ngram_size": 0, "suppress_tokens": [],
            "begin_suppress_tokens": null, "num_beams": 1,
            "length_penalty": 1.0, "typical_p": 1.0, "stop_strings": null,
            "diversity_penalty": 0.0, "guidance_scale": null,
            "forced_eos_token_id": null, "min_length": 0,
            "remove_invalid_values": false, "max_new_tokens": -1})"}) {
    const auto defaults = ParseGenerationDefaults(text);
    ASSERT_TRUE(defaults.ok()) << text << defaults.status();
    EXPECT_EQ(defaults->top_k, 0) << text;
    EXPECT_EQ(defaults->top_p, 1) << text;
    EXPECT_EQ(defaults->min_p, 0) << text;
    EXPECT_EQ(defaults->repetition_penalty, 1) << text;
    EXPECT_THAT(defaults->eos_token_ids, IsEmpty()) << text;
    EXPECT_THAT(defaults->ignored, IsEmpty()) << text;
  }
}

// A filter always leaves the likeliest token.
TEST(GenerationDefaultsTest, NoMassAtAllIsTheLikeliestToken) {
  const auto defaults =
      ParseGenerationDefaults(R"({"do_sample": true, "top_p": 0})");
  ASSERT_TRUE(defaults.ok()) << defaults.status();
  EXPECT_EQ(defaults->top_p, 1);
  EXPECT_EQ(defaults->top_k, 1);
}

TEST(GenerationDefaultsTest, NamesWhatItDoesNotSupport) {
  const auto defaults = ParseGenerationDefaults(
      R"({"_from_model_config": true, "transformers_version": "5.24.0",
          "bos_token_id": 0, "pad_token_id": 2, "use_cache": true,
          "repetition_penalty": 5, "no_repeat_ngram_size": 2,
          "suppress_tokens": [5], "max_new_tokens": 3,
          "stop_strings": ["x"], "num_beams": 4, "forced_eos_token_id": 0})");
  ASSERT_TRUE(defaults.ok()) << defaults.status();
  EXPECT_THAT(defaults->ignored,
              ElementsAre("forced_eos_token_id 0", "max_new_tokens 3",
                          "no_repeat_ngram_size 2", "num_beams 4",
                          "stop_strings [\"x\"]", "suppress_tokens [5]"));
  EXPECT_EQ(defaults->repetition_penalty, 5);
  EXPECT_EQ(defaults->min_new_tokens, 0);
  const auto least = ParseGenerationDefaults(
      R"({"min_new_tokens": 7, "repetition_penalty": -1})");
  ASSERT_TRUE(least.ok()) << least.status();
  EXPECT_EQ(least->min_new_tokens, 7);
  EXPECT_EQ(least->repetition_penalty, 1);
}

TEST(GenerationDefaultsTest, RejectsImpossibleValues) {
  for (const char* text :
       {R"({"temperature": -1})", R"({"top_p": 1.5})", R"({"top_k": -2})",
        R"({"min_p": 2})", R"({"do_sample": "yes"})", R"({"temperature": "x"})",
        "[]"}) {
    EXPECT_EQ(ParseGenerationDefaults(text).status().code(),
              absl::StatusCode::kInvalidArgument)
        << text;
  }
}

}  // namespace
}  // namespace ringfleet::cluster
