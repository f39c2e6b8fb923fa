// SPDX-License-Identifier: Apache-2.0
#include "coordinator/cli/chat/chat_input.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace ringfleet::coordinator::cli {
namespace {

using ::testing::ElementsAre;

std::vector<std::string> InputsOf(const std::vector<std::string>& lines) {
  InputLines joiner;
  std::vector<std::string> inputs;
  for (const std::string& line : lines) {
    if (auto input = joiner.Add(line)) inputs.push_back(*input);
  }
  if (auto input = joiner.Finish()) inputs.push_back("end: " + *input);
  EXPECT_FALSE(joiner.open());
  return inputs;
}

TEST(InputLinesTest, ALineIsAnInput) {
  EXPECT_THAT(InputsOf({"a", "", "b \"\"\""}),
              ElementsAre("a", "", "b \"\"\""));
}

TEST(InputLinesTest, ABackslashGoesOn) {
  EXPECT_THAT(InputsOf({"a\\", "b\\", "c", "d"}), ElementsAre("a\nb\nc", "d"));
  EXPECT_THAT(InputsOf({"a\\"}), ElementsAre("end: a\n"));
}

TEST(InputLinesTest, QuotesHoldABlock) {
  EXPECT_THAT(InputsOf({"\"\"\"", "a", "", "  b\\", "\"\"\"", "c"}),
              ElementsAre("a\n\n  b\\", "c"));
  EXPECT_THAT(InputsOf({"\"\"\"a", "b\"\"\""}), ElementsAre("a\nb"));
  EXPECT_THAT(InputsOf({"\"\"\"a b\"\"\""}), ElementsAre("a b"));
  EXPECT_THAT(InputsOf({"\"\"\"", "a"}), ElementsAre("end: a"));
}

}  // namespace
}  // namespace ringfleet::coordinator::cli
