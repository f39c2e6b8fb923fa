// SPDX-License-Identifier: Apache-2.0
#include "coordinator/service/setting_flags.h"

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "cluster/config/settings.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ringfleet::coordinator {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class SettingFlagsTest : public ::testing::Test {
 protected:
  SettingFlagsTest() {
    CLI::Option* file = app_.add_option("--cluster", file_);
    flags_.AddAll(app_, {"threads"}, {file});
  }
  absl::StatusOr<v1::FleetSettings> Parse(std::vector<std::string> words) {
    std::reverse(words.begin(), words.end());  // As CLI11 wants them.
    app_.parse(words);
    return flags_.Read();
  }
  std::string Error(const std::vector<std::string>& words) {
    return std::string(Parse(words).status().message());
  }

  CLI::App app_;
  std::string file_;
  SettingFlags flags_;
};

TEST_F(SettingFlagsTest, HelpSaysWhatTheDescriptionSays) {
  const std::string help = app_.help();
  for (const cluster::Setting& setting : cluster::Settings()) {
    const std::string& flag = setting.options().flag();
    if (flag.empty() || setting.name() == "threads") continue;
    EXPECT_THAT(help, HasSubstr(flag));
    EXPECT_THAT(help, HasSubstr(setting.options().help()));
    EXPECT_THAT(help, HasSubstr(setting.options().default_value()));
  }
  EXPECT_THAT(help, Not(HasSubstr("--threads")));
}

TEST_F(SettingFlagsTest, OnlyGivenFlagsAreSet) {
  const auto settings = Parse({"--dtype", "f32", "-c", "77", "--mesh", "1x2x1",
                               "--reference", "--expert-capacity", "1.5",
                               "--expert-slots", "0", "--batch-step-ms", "0"});
  ASSERT_TRUE(settings.ok()) << settings.status();
  v1::FleetSettings want;
  want.set_dtype(v1::DTYPE_F32);
  want.set_context(77);
  cluster::SetMesh({.expert = 2}, &want);
  want.set_reference(true);
  want.mutable_experts()->set_capacity(1.5);
  want.set_batch_step_ms(0);  // Other than expert-slots, it is a value.
  EXPECT_EQ(settings->DebugString(), want.DebugString());
  EXPECT_EQ(flags_.Given("mesh"), "1x2x1");
  EXPECT_EQ(flags_.Given("wire"), "");
}

TEST_F(SettingFlagsTest, ErrorsNameFlagValueAndExpectation) {
  EXPECT_EQ(Error({"--wire", "fp4"}),
            "usage: --wire 'fp4', want f32, bf16 or int8");
}

TEST_F(SettingFlagsTest, ErrorsNameTheLongFlag) {
  EXPECT_EQ(Error({"-c", "many"}),
            "usage: --ctx-size 'many', want a whole number from 1 to 16777216");
}

TEST_F(SettingFlagsTest, ANumberWithADefaultIsNotZero) {
  EXPECT_EQ(Error({"--parallel", "0"}),
            "usage: --parallel '0', want a whole number from 1 to 1024");
}

TEST_F(SettingFlagsTest, PathsAreUtf8) {
  EXPECT_THAT(Error({"--model", "m\xff"}),
              HasSubstr("usage: --model 'm\\xff': text is not UTF-8"));
}

TEST_F(SettingFlagsTest, AClusterFileExcludesWhatItSays) {
  EXPECT_THROW((void)Parse({"--cluster", "f", "--dtype", "f32"}),
               CLI::ExcludesError);
  const auto settings = Parse({"--cluster", "f", "--parallel", "7"});
  ASSERT_TRUE(settings.ok()) << settings.status();
  EXPECT_EQ(settings->parallel(), 7u);
}

}  // namespace
}  // namespace ringfleet::coordinator
