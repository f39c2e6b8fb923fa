// SPDX-License-Identifier: Apache-2.0
#include "cluster/config/settings.h"

#include <regex>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "cluster/config/config.h"
#include "cluster/placement/placement.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/checkpoint_writer.h"

namespace ringfleet::cluster {
namespace {

using ::testing::HasSubstr;

std::string Set(absl::string_view name, absl::string_view text) {
  v1::FleetSettings settings;
  const Setting& setting = SettingOf(name);
  const absl::Status status = SetSetting(setting, text, &settings);
  return status.ok() ? SettingText(setting, settings)
                     : std::string(status.message());
}

// A choice that is no value of the field's enum, or a default that is not
// allowed, aborts.
TEST(SettingsTest, EveryDescriptionHolds) {
  const v1::FleetSettings defaults = DefaultSettings();
  for (const Setting& setting : Settings()) {
    const v1::SettingOptions& options = setting.options();
    SCOPED_TRACE(setting.name());
    EXPECT_FALSE(options.help().empty());
    EXPECT_EQ(&SettingOf(setting.name()), &setting);
    for (const std::string& choice : options.choices()) {
      EXPECT_EQ(Set(setting.name(), choice), choice);
    }
    if (setting.is_section()) continue;
    EXPECT_EQ(SettingText(setting, defaults), options.default_value());
  }
}

TEST(SettingsTest, LimitsAreThoseOfTheCode) {
  EXPECT_EQ(SettingOf("experts.slots").options().max(), kMaxReplicas);
  for (const char* axis : {"mesh.data", "mesh.expert", "mesh.tensor"}) {
    EXPECT_EQ(SettingOf(axis).options().max(), kMaxWorkers);
  }
}

TEST(SettingsTest, ValuesAreCheckedByType) {
  EXPECT_EQ(Set("dtype", "int4-experts"), "int4-experts");
  EXPECT_EQ(Set("dtype", "fp8"),
            "'fp8', want native, f32, bf16, int8, int4-experts or int4");
  EXPECT_EQ(Set("context", "16777216"), "16777216");
  EXPECT_EQ(Set("context", "16777217"),
            "'16777217', want a whole number from 1 to 16777216");
  EXPECT_EQ(Set("context", "-1"),
            "'-1', want a whole number from 1 to 16777216");
  EXPECT_EQ(Set("batch_step_ms", "0"), "0");
  EXPECT_EQ(Set("batch_step_ms", "3600001"),
            "'3600001', want a whole number from 0 to 3600000");
  EXPECT_EQ(Set("experts.threshold", "1.5"), "1.5");
  EXPECT_EQ(Set("experts.threshold", "nan"),
            "'nan', want a number above 0, at most 1024");
  EXPECT_EQ(Set("reference", "true"), "true");
  EXPECT_EQ(Set("reference", "yes"), "'yes', want true or false");
  EXPECT_EQ(Set("mesh.data", "auto"), "");
  EXPECT_EQ(Set("cache_dir", "a b"), "a b");
}

TEST(SettingsTest, AMeshIsAFlagAndASection) {
  v1::FleetSettings settings;
  ASSERT_TRUE(SetSetting(SettingOf("mesh"), "1x4x2", &settings).ok());
  EXPECT_EQ(MeshOf(settings).expert, 4);
  EXPECT_EQ(MeshOf(settings).world_size(), 8);
  EXPECT_EQ(MeshOf(v1::FleetSettings()).world_size(), 1);
  EXPECT_EQ(SetSetting(SettingOf("mesh"), "2x2", &settings).message(),
            "'2x2', want DATAxEXPERTxTENSOR as in 1x4x2");
}

TEST(SettingsTest, DefaultsFillOnlyWhatIsUnset) {
  v1::FleetSettings settings;
  settings.set_parallel(9);
  FillDefaults(&settings);
  EXPECT_EQ(settings.parallel(), 9u);
  EXPECT_EQ(settings.dtype(), v1::DTYPE_NATIVE);
  EXPECT_FALSE(settings.has_context());
}

TEST(SettingsTest, DurationsAreSecondsAsUsersWriteThem) {
  const Setting& wait = SettingOf("recovery.wait");
  v1::FleetSettings settings = DefaultSettings();
  EXPECT_EQ(settings.recovery().wait(), 600u);
  EXPECT_EQ(SettingText(wait, settings), "10m");
  for (const auto& [text, seconds] :
       {std::pair("90", 90u), std::pair("90s", 90u), std::pair("1h30m", 5400u),
        std::pair("168h", 604800u)}) {
    EXPECT_TRUE(SetSetting(wait, text, &settings).ok()) << text;
    EXPECT_EQ(settings.recovery().wait(), seconds) << text;
  }
  for (const char* text : {"", "0", "-1", "1.5", "500ms", "169h", "10 m", "m",
                           "inf", "9999999999999999h"}) {
    EXPECT_EQ(SetSetting(wait, text, &settings),
              absl::InvalidArgumentError(absl::StrCat(
                  "'", text,
                  "', want whole seconds from 1s to 168h, as in 90s "
                  "or 10m")));
  }
}

TEST(SettingsTest, LiveSettingsCanBeCleared) {
  v1::FleetSettings settings;
  settings.set_log_dir("/l");
  settings.set_cache_dir("/c");
  ClearLiveSettings(&settings);
  EXPECT_EQ(settings.log_dir(), "");
  EXPECT_EQ(settings.cache_dir(), "/c");
}

// The sample is the reference of the cluster file. It describes every setting
// as --help does, with its default.
TEST(SettingsTest, TheSampleDescribesEverySetting) {
  const std::string yaml = testing::ReadFile(
      absl::StrCat(RINGFLEET_SOURCE_DIR, "/cluster/launch/sample.yaml"));
  const std::string words = absl::StrJoin(
      absl::StrSplit(yaml, absl::ByAnyChar("# \n"), absl::SkipEmpty()), " ");
  for (const Setting& setting : Settings()) {
    const v1::SettingOptions& options = setting.options();
    SCOPED_TRACE(setting.name());
    if (options.flag_only()) continue;
    // "KEY: VALUE" at the top, a line "KEY  WORDS" of a section's table.
    EXPECT_TRUE(std::regex_search(
        yaml, std::regex(absl::StrCat("\n(# *)?", setting.field->name(),
                                      setting.section ? "  " : ":"))));
    const std::string described = setting.is_section()
                                      ? options.help()
                                      : SettingHelp(setting, ". Default: ");
    EXPECT_THAT(words, HasSubstr(described));
    if (!options.default_value().empty()) {
      EXPECT_THAT(words, HasSubstr(absl::StrCat(described, ". Default: ",
                                                options.default_value())));
    }
  }
}

}  // namespace
}  // namespace ringfleet::cluster
