// SPDX-License-Identifier: Apache-2.0
#include "coordinator/cli/unexpected_arguments.h"

#include <algorithm>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ringfleet::coordinator::cli {
namespace {

// Parses the arguments of a verb that has a few flags, and describes what it
// does not know.
std::string Described(std::vector<std::string> arguments,
                      bool has_prompt = true) {
  CLI::App app;
  CLI::App* verb = app.add_subcommand("generate");
  std::string text;
  verb->add_option("-m,--model", text);
  if (has_prompt) verb->add_option("-p,--prompt", text);
  verb->add_option_group("sampling")->add_option("--temp,--temperature", text);
  arguments.insert(arguments.begin(), "generate");
  std::reverse(arguments.begin(), arguments.end());  // As CLI11 wants them.
  try {
    app.parse(arguments);
  } catch (const CLI::ExtrasError&) {
    return DescribeUnexpected(*verb, app.remaining(true));
  }
  return "";
}

TEST(UnexpectedArgumentsTest, StandInTheOrderInWhichTheyWereTyped) {
  EXPECT_EQ(Described({"-m", "x", "--grammar", "foo", "bar"}),
            "unexpected arguments --grammar foo bar: grammars are not "
            "supported");
  EXPECT_EQ(Described({"--mirostat", "2", "--reverse-prompt=a",
                       "--reverse-prompt", "b"}),
            "unexpected arguments --mirostat 2 --reverse-prompt=a "
            "--reverse-prompt b: mirostat sampling is not supported; --stop "
            "names a stop string");
}

TEST(UnexpectedArgumentsTest, TheNearestFlagIsNamed) {
  EXPECT_EQ(Described({"--modle", "x"}),
            "unexpected arguments --modle x: did you mean --model?");
  EXPECT_EQ(Described({"--temprature=1"}),
            "unexpected argument --temprature=1: did you mean --temperature?");
  EXPECT_EQ(Described({"--xyzzy"}), "unexpected argument --xyzzy");
}

TEST(UnexpectedArgumentsTest, APromptHasAFlag) {
  EXPECT_EQ(Described({"Once", "upon"}),
            "unexpected arguments Once upon: a prompt follows -p");
  EXPECT_EQ(Described({"Once"}, /*has_prompt=*/false),
            "unexpected argument Once");
}

}  // namespace
}  // namespace ringfleet::coordinator::cli
