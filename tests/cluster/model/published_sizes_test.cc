// SPDX-License-Identifier: Apache-2.0
#include "cluster/model/published_sizes.h"

#include <gtest/gtest.h>

#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "cluster/checkpoint/open_model.h"
#include "cluster/checkpoint/safetensors.h"
#include "tests/testing/checkpoint_writer.h"
#include "tests/testing/published_configs.h"
#include "tests/testing/r1_spec.h"

namespace ringfleet::cluster {
namespace {

uint64_t Parameters(const CheckpointSizes& sizes, WeightClass weight_class) {
  return sizes.parameters[static_cast<size_t>(weight_class)];
}

// Counts that others have published or that follow from the paper's sizes.
TEST(PublishedSizesTest, R1HasItsExactNumbers) {
  const CheckpointSizes sizes = PublishedSizes(testing::R1Spec());
  EXPECT_EQ(Parameters(sizes, WeightClass::kRoutedExperts), 653'908'770'816u);
  EXPECT_EQ(Parameters(sizes, WeightClass::kSharedExperts), 2'554'331'136u);
  EXPECT_EQ(Parameters(sizes, WeightClass::kAttention), 11'413'422'080u);
  EXPECT_EQ(Parameters(sizes, WeightClass::kDenseMlp), 1'189'085'184u);
  EXPECT_EQ(Parameters(sizes, WeightClass::kEmbedding), 926'679'040u);
  EXPECT_EQ(Parameters(sizes, WeightClass::kHead), 926'679'040u);
  EXPECT_EQ(Parameters(sizes, WeightClass::kRouter), 106'445'312u);
  EXPECT_EQ(Parameters(sizes, WeightClass::kNorms), 1'006'592u);
  EXPECT_EQ(sizes.main_parameters(), 671'026'419'200u);
  EXPECT_EQ(Parameters(sizes, WeightClass::kMtp), 13'463'426'304u);
  // 688.58 GB of files, their headers included.
  EXPECT_NEAR(static_cast<double>(sizes.all_bytes()) * 1e-9, 688.58, 0.02);
}

// The sums over the published dimensions, computed apart from this program.
TEST(CountParametersTest, TheFamiliesHaveTheirPublishedNumbers) {
  const auto count = [](const nlohmann::json& config) {
    const auto spec = ParseModelSpec(config.dump());
    EXPECT_TRUE(spec.ok()) << spec.status();
    return spec.ok() ? CountParameters(*spec) : 0;
  };
  EXPECT_EQ(count(testing::KimiK25Config()), 1'026'408'232'448u);
  EXPECT_EQ(count(testing::KimiTextConfig()), 1'026'408'232'448u);
  EXPECT_EQ(count(testing::Glm47FlashConfig()), 29'943'393'920u);
  EXPECT_EQ(count(testing::Glm53Config()), 743'180'209'920u);
  EXPECT_EQ(count(testing::DeepSeekV32Config()), 671'026'419'200u);
  EXPECT_EQ(count(testing::MistralSmall4Config()), 118'972'826'624u);
  EXPECT_EQ(count(testing::MoonlightConfig()), 15'960'110'208u);
}

// The files are an independent count.
TEST(CountParametersTest, IsWhatTheFilesHold) {
  for (const char* model : {"tiny-v2-lite", "tiny-v2", "tiny-v3"}) {
    SCOPED_TRACE(model);
    const std::string folder = absl::StrCat(RINGFLEET_TEST_MODELS, "/", model);
    const auto spec = LoadModelSpec(folder);
    ASSERT_TRUE(spec.ok()) << spec.status();
    const auto checkpoint = OpenCheckpoint(folder);
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
    const std::string mtp =
        absl::StrCat("model.layers.", spec->num_hidden_layers, ".");
    uint64_t count = 0;
    for (const std::string& name : (*checkpoint)->Names()) {
      if (absl::EndsWith(name, "_scale_inv") || absl::StartsWith(name, mtp)) {
        continue;
      }
      const auto tensor = (*checkpoint)->Find(name);
      ASSERT_TRUE(tensor.ok()) << tensor.status();
      uint64_t elements = 1;
      for (const int64_t size : (*tensor)->shape) elements *= size;
      count += elements;
    }
    EXPECT_EQ(CountParameters(*spec), count);
  }
}

// DeepSeek-V3, arXiv:2412.19437, section 4.2: 671 B, of which each token uses
// 37 B.
TEST(CountParametersTest, R1HasItsPublishedNumber) {
  ModelSpec spec = testing::R1Spec();
  EXPECT_EQ(CountParameters(spec) / 1'000'000'000, 671u);
  spec.n_routed_experts = 8;
  EXPECT_NEAR(CountParameters(spec) * 1e-9, 37, 0.6);
}

TEST(CountParametersTest, ATiedHeadIsNotCountedTwice) {
  ModelSpec spec = testing::TinyV2LiteSpec();
  const uint64_t untied = CountParameters(spec);
  spec.tie_word_embeddings = true;
  EXPECT_EQ(untied - CountParameters(spec),
            uint64_t{1} * spec.vocab_size * spec.hidden_size);
}

}  // namespace
}  // namespace ringfleet::cluster
