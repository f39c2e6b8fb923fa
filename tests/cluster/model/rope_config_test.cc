// SPDX-License-Identifier: Apache-2.0
#include "cluster/model/rope_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace ringfleet::cluster {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Json = nlohmann::json;

struct ParsedRope {
  absl::Status status;
  ModelSpec spec;
  std::vector<std::string> unread;
};

ParsedRope ParseRopeOf(const Json& config,
                       absl::string_view model_type = "deepseek_v3",
                       absl::string_view params = "") {
  ParsedRope parsed;
  ConfigFields fields(config, "config.json: ");
  parsed.status = ParseRope(fields, *FindFamilyOfType(model_type), params,
                            &parsed.spec, &parsed.unread);
  return parsed;
}

ModelSpec GoodRope(const Json& config) {
  const ParsedRope parsed = ParseRopeOf(config);
  EXPECT_TRUE(parsed.status.ok()) << config << parsed.status;
  return parsed.spec;
}

std::string RopeProblem(const Json& config) {
  const ParsedRope parsed = ParseRopeOf(config);
  EXPECT_EQ(parsed.status.code(), absl::StatusCode::kInvalidArgument) << config;
  return std::string(parsed.status.message());
}

// YaRN of R1 without the member that names the type.
Json RopeYarn() {
  return {{"beta_fast", 32},       {"beta_slow", 1},
          {"factor", 40},          {"mscale", 1.0},
          {"mscale_all_dim", 1.0}, {"original_max_position_embeddings", 4096}};
}

Json MergedJson(Json object, const Json& more) {
  object.update(more);
  return object;
}

TEST(RopeConfigTest, BothSpellingsMeanTheSame) {
  const ModelSpec flat =
      GoodRope({{"rope_theta", 50000},
                {"rope_scaling", MergedJson(RopeYarn(), {{"type", "yarn"}})}});
  EXPECT_EQ(flat.rope_theta, 50000);
  ASSERT_TRUE(flat.rope_scaling.has_value());
  EXPECT_EQ(flat.rope_scaling->factor, 40);
  const Json type = {{"rope_type", "yarn"}};
  const Json both_types = {{"rope_type", "yarn"}, {"type", "yarn"}};
  const Json theta = {{"rope_theta", 50000}};
  for (const Json& config : std::vector<Json>{
           {{"rope_parameters",
             MergedJson(MergedJson(RopeYarn(), type), theta)}},
           {{"rope_parameters",
             MergedJson(MergedJson(RopeYarn(), both_types), theta)}},
           {{"rope_theta", 50000},
            {"rope_parameters", MergedJson(RopeYarn(), type)}},
           {{"rope_theta", 50000.0},
            {"rope_parameters",
             MergedJson(MergedJson(RopeYarn(), type), theta)}},
           {{"rope_theta", 50000},
            {"rope_scaling", MergedJson(RopeYarn(), type)}},
           {{"rope_scaling", MergedJson(MergedJson(RopeYarn(), type), theta)}},
           {{"rope_parameters",
             MergedJson(MergedJson(RopeYarn(), type), theta)},
            {"rope_scaling", MergedJson(RopeYarn(), type)}},
           {{"rope_parameters",
             MergedJson(MergedJson(RopeYarn(), type), theta)},
            {"rope_scaling", nullptr},
            {"rope_theta", nullptr}}}) {
    const ModelSpec spec = GoodRope(config);
    EXPECT_EQ(spec.rope_theta, 50000) << config;
    EXPECT_EQ(spec.rope_scaling, flat.rope_scaling) << config;
  }
}

TEST(RopeConfigTest, DefaultIsNoScaling) {
  for (const Json& config : std::vector<Json>{
           {{"rope_theta", 500}},
           {{"rope_theta", 500}, {"rope_scaling", nullptr}},
           {{"rope_theta", 500}, {"rope_scaling", Json::object()}},
           {{"rope_theta", 500}, {"rope_scaling", {{"type", "default"}}}},
           {{"rope_theta", 500}, {"rope_scaling", {{"rope_type", "default"}}}},
           {{"rope_theta", 500}, {"rope_parameters", Json::object()}},
           {{"rope_parameters", {{"rope_theta", 500}}}},
           {{"rope_parameters",
             {{"rope_theta", 500},
              {"rope_type", "default"},
              {"partial_rotary_factor", 1.0}}}}}) {
    const ModelSpec spec = GoodRope(config);
    EXPECT_EQ(spec.rope_theta, 500) << config;
    EXPECT_FALSE(spec.rope_scaling.has_value()) << config;
  }
}

TEST(RopeConfigTest, AnIncompleteSpellingIsRefused) {
  for (const Json& config : std::vector<Json>{
           Json::object(),
           {{"rope_scaling", MergedJson(RopeYarn(), {{"type", "yarn"}})}},
           {{"rope_parameters",
             MergedJson(RopeYarn(), {{"rope_type", "yarn"}})}},
           {{"rope_parameters", {{"rope_type", "default"}}}}}) {
    EXPECT_THAT(RopeProblem(config),
                HasSubstr("config.json: rope_theta: missing, want a number "
                          "here or in rope_parameters"));
  }
  for (const char* name : {"factor", "original_max_position_embeddings"}) {
    Json yarn =
        MergedJson(RopeYarn(), {{"rope_type", "yarn"}, {"rope_theta", 10000}});
    yarn.erase(name);
    EXPECT_THAT(
        RopeProblem({{"rope_parameters", yarn}}),
        HasSubstr(std::string("rope_parameters.") + name + ": missing, want"));
  }
  EXPECT_THAT(
      RopeProblem({{"rope_theta", 10000}, {"rope_parameters", RopeYarn()}}),
      HasSubstr("rope_parameters.rope_type: missing beside beta_fast"));
}

// Without the other one, or beside one that is 0, each published program
// computes its own magnitude.
TEST(RopeConfigTest, OneMscaleAloneIsRefused) {
  const auto rope = [](std::optional<double> mscale,
                       std::optional<double> mscale_all_dim, const Json& more) {
    Json yarn =
        MergedJson(RopeYarn(), {{"rope_type", "yarn"}, {"rope_theta", 10000}});
    yarn.erase("mscale");
    yarn.erase("mscale_all_dim");
    if (mscale.has_value()) yarn["mscale"] = *mscale;
    if (mscale_all_dim.has_value()) yarn["mscale_all_dim"] = *mscale_all_dim;
    return Json{{"rope_parameters", MergedJson(yarn, more)}};
  };
  const std::vector<std::pair<std::optional<double>, std::optional<double>>>
      disputed = {
          {0.707, std::nullopt}, {0.707, 0}, {std::nullopt, 1}, {0, 1}, {0, 0},
          {0, std::nullopt}};
  for (const auto& [mscale, mscale_all_dim] : disputed) {
    const std::string value =
        mscale.has_value() ? absl::StrCat(*mscale) : "absent";
    EXPECT_THAT(
        RopeProblem(rope(mscale, mscale_all_dim, Json::object())),
        HasSubstr(absl::StrCat(
            "rope_parameters.mscale: ", value, " beside mscale_all_dim ",
            mscale_all_dim.value_or(0), ", want both, neither or")));
    const ModelSpec spec =
        GoodRope(rope(mscale, mscale_all_dim, {{"attention_factor", 1.5}}));
    EXPECT_EQ(spec.rope_scaling->attention_factor, 1.5);
    GoodRope(rope(mscale, mscale_all_dim, {{"factor", 1}}));
  }
  for (const auto& [mscale, mscale_all_dim] :
       std::vector<std::pair<std::optional<double>, std::optional<double>>>{
           {std::nullopt, std::nullopt},
           {1, std::nullopt},
           {1, 0},
           {0.5, 0.707},
           {std::nullopt, 0}}) {
    EXPECT_EQ(GoodRope(rope(mscale, mscale_all_dim, Json::object()))
                  .rope_scaling->mscale,
              mscale.value_or(1));
  }
}

TEST(RopeConfigTest, ContradictionsAreRefused) {
  const Json yarn = MergedJson(RopeYarn(), {{"rope_type", "yarn"}});
  EXPECT_THAT(RopeProblem({{"rope_theta", 10000},
                           {"rope_parameters",
                            MergedJson(yarn, {{"rope_theta", 50000}})}}),
              HasSubstr("rope_parameters.rope_theta: 50000, but rope_theta is "
                        "10000"));
  EXPECT_THAT(
      RopeProblem({{"rope_theta", 10000},
                   {"rope_parameters", yarn},
                   {"rope_scaling", MergedJson(yarn, {{"factor", 4}})}}),
      HasSubstr("but rope_parameters differs"));
  EXPECT_THAT(
      RopeProblem({{"rope_theta", 10000},
                   {"rope_parameters", MergedJson(yarn, {{"type", "su"}})}}),
      HasSubstr("rope_type: \"yarn\", but type is \"su\""));
}

TEST(RopeConfigTest, NamesWhatIsNotSupported) {
  const auto problem = [](const Json& more) {
    return RopeProblem(
        {{"rope_parameters",
          MergedJson(MergedJson(RopeYarn(),
                                {{"rope_type", "yarn"}, {"rope_theta", 10000}}),
                     more)}});
  };
  EXPECT_THAT(
      RopeProblem({{"rope_theta", 1e4},
                   {"rope_scaling", {{"type", "linear"}, {"factor", 2}}}}),
      HasSubstr("rope_scaling.type: \"linear\", want \"yarn\" or "
                "\"default\""));
  EXPECT_THAT(problem({{"rope_type", "llama3"}}),
              HasSubstr("rope_parameters.rope_type: \"llama3\""));
  EXPECT_THAT(problem({{"attention_factor", -1}}),
              HasSubstr("rope_parameters.attention_factor: -1, want a number"));
  EXPECT_THAT(problem({{"truncate", 0}}),
              HasSubstr("rope_parameters.truncate: 0, want true or false"));
  EXPECT_THAT(problem({{"llama_4_scaling_beta", 0.1}}),
              HasSubstr("rope_parameters.llama_4_scaling_beta: 0.1, want none "
                        "in DeepseekV3ForCausalLM"));
  EXPECT_THAT(problem({{"partial_rotary_factor", 0.5}}),
              HasSubstr("rope_parameters.partial_rotary_factor: 0.5, want 1"));
  EXPECT_THAT(
      RopeProblem({{"rope_theta", 1e4}, {"partial_rotary_factor", 0.5}}),
      HasSubstr("config.json: partial_rotary_factor: 0.5, want 1"));
  const Json one =
      MergedJson(RopeYarn(), {{"rope_type", "yarn"}, {"rope_theta", 1e4}});
  EXPECT_THAT(
      RopeProblem({{"rope_parameters",
                    {{"full_attention", one}, {"sliding_attention", one}}}}),
      AllOf(HasSubstr("rope_parameters.full_attention: "),
            HasSubstr("parameters of one layer type are not "
                      "supported")));
  EXPECT_THAT(RopeProblem({{"rope_parameters", "yarn"}}),
              HasSubstr("rope_parameters: \"yarn\", want an object"));
}

TEST(RopeConfigTest, ReadsWhatChangesYarn) {
  Json yarn =
      MergedJson(RopeYarn(), {{"rope_type", "yarn"}, {"rope_theta", 1e4}});
  const ModelSpec plain = GoodRope({{"rope_parameters", yarn}});
  EXPECT_FALSE(plain.rope_scaling->attention_factor.has_value());
  EXPECT_TRUE(plain.rope_scaling->truncate);
  yarn["attention_factor"] = 1.25;
  yarn["truncate"] = false;
  yarn["beta_fast"] = 1.0;  // As Kimi K2: one step between fast and slow.
  yarn["llama_4_scaling_beta"] = 0.0;  // Scales nothing.
  const ModelSpec changed = GoodRope({{"rope_parameters", yarn}});
  EXPECT_EQ(changed.rope_scaling->attention_factor, 1.25);
  EXPECT_FALSE(changed.rope_scaling->truncate);
  EXPECT_EQ(changed.rope_scaling->beta_fast, 1);
  EXPECT_FALSE(changed.query_scale.has_value());
}

TEST(RopeConfigTest, MistralScalesQueriesAndSoftmaxByItsParams) {
  const Json config = {
      {"rope_parameters",
       MergedJson(RopeYarn(), {{"rope_type", "yarn"},
                               {"rope_theta", 1e4},
                               {"llama_4_scaling_beta", 0.1}})}};
  for (const auto& [params, scales] : std::vector<std::pair<std::string, bool>>{
           {"", false},
           {"{}", false},
           {R"({"yarn": {"factor": 40}})", false},
           {R"({"yarn": {"apply_scale": false}})", false},
           {R"({"yarn": {"apply_scale": true}})", true}}) {
    const ParsedRope parsed = ParseRopeOf(config, "mistral4", params);
    ASSERT_TRUE(parsed.status.ok()) << parsed.status;
    EXPECT_EQ(parsed.spec.rope_scaling->scales_softmax, scales) << params;
    ASSERT_TRUE(parsed.spec.query_scale.has_value());
    EXPECT_EQ(parsed.spec.query_scale->Of(4095), 1);
    EXPECT_NEAR(parsed.spec.query_scale->Of(4096), 1.0693147181, 1e-10);
  }
  EXPECT_TRUE(ParseRopeOf({{"rope_theta", 1e4}}, "mistral4", "{}").status.ok());
  for (const char* params :
       {"[]", R"({"yarn": 3})", R"({"yarn": {"apply_scale": "no"}})"}) {
    EXPECT_THAT(
        std::string(ParseRopeOf(config, "mistral4", params).status.message()),
        HasSubstr("params.json: "))
        << params;
  }
}

TEST(RopeConfigTest, NamesTheMembersThatNothingReads) {
  const ParsedRope parsed = ParseRopeOf(
      {{"rope_parameters", MergedJson(RopeYarn(), {{"rope_type", "yarn"},
                                                   {"rope_theta", 1e4},
                                                   {"low_freq_factor", 4}})}});
  ASSERT_TRUE(parsed.status.ok()) << parsed.status;
  EXPECT_THAT(parsed.unread, ElementsAre("rope_parameters.low_freq_factor"));
}

}  // namespace
}  // namespace ringfleet::cluster
