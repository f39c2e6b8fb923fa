// SPDX-License-Identifier: Apache-2.0
#include "coordinator/fleet/checkpoint_difference.h"

#include <gtest/gtest.h>

#include "coordinator/cli/checkpoint/manifest.h"

namespace ringfleet::coordinator {
namespace {

v1::CheckpointFacts TwoTensors() {
  v1::CheckpointFacts facts;
  for (const char* name :
       {"config.json", "model.safetensors.index.json", "model-1.safetensors"}) {
    v1::CheckpointFile* file = facts.add_files();
    file->set_name(name);
    file->set_bytes(20000);
    file->set_header_hash(1);
  }
  for (const uint64_t offset : {1000, 9000}) {
    facts.mutable_files(2)->add_page_offsets(offset);
    facts.mutable_files(2)->add_page_hashes(offset + 1);
  }
  for (const auto& [name, offset] :
       std::vector<std::pair<std::string, uint64_t>>{{"a.weight", 1000},
                                                     {"b.weight", 9000}}) {
    v1::CheckpointTensor* tensor = facts.add_tensors();
    tensor->set_name(name);
    tensor->set_dtype("bf16");
    tensor->add_shape(2);
    tensor->add_shape(2000);
    tensor->set_offset(offset);
    tensor->set_bytes(8000);
    tensor->set_hash(offset);
  }
  return facts;
}

TEST(FindDifferenceTest, IsEmptyForTheSame) {
  EXPECT_EQ(FindDifference(TwoTensors(), TwoTensors()), "");
}

TEST(FindDifferenceTest, NamesTheTensor) {
  v1::CheckpointFacts got = TwoTensors();
  got.mutable_tensors(1)->set_shape(1, 2001);
  EXPECT_EQ(FindDifference(TwoTensors(), got),
            "b.weight: bf16 [2, 2001], want bf16 [2, 2000]");
  got = TwoTensors();
  got.mutable_tensors(0)->set_hash(7);
  EXPECT_EQ(FindDifference(TwoTensors(), got),
            "a.weight: XXH3-64 0000000000000007, want 00000000000003e8");
  got.mutable_tensors(0)->set_hash(0);  // Not hashed.
  EXPECT_EQ(FindDifference(TwoTensors(), got), "");
  got = TwoTensors();
  got.mutable_tensors()->RemoveLast();
  EXPECT_EQ(FindDifference(TwoTensors(), got), "b.weight: missing");
  EXPECT_EQ(FindDifference(got, TwoTensors()), "b.weight: not wanted");
}

TEST(FindDifferenceTest, NamesTheTensorOfASampledPage) {
  v1::CheckpointFacts got = TwoTensors();
  got.mutable_files(2)->set_page_hashes(1, 5);
  EXPECT_EQ(FindDifference(TwoTensors(), got),
            "b.weight: other bytes near byte 9000 of model-1.safetensors");
}

TEST(FindDifferenceTest, NamesTheFileWhereNoTensorDiffers) {
  v1::CheckpointFacts got = TwoTensors();
  got.mutable_files(0)->set_header_hash(2);
  EXPECT_EQ(FindDifference(TwoTensors(), got), "config.json: another text");
  got.mutable_files(2)->set_bytes(20001);  // Says more.
  EXPECT_EQ(FindDifference(TwoTensors(), got),
            "model-1.safetensors: 20001 bytes, want 20000");
  got.mutable_files()->RemoveLast();
  EXPECT_EQ(FindDifference(TwoTensors(), got), "0 files, want 1");
}

TEST(ManifestTest, BringsBackWhatTellsTensorsApart) {
  const auto parsed =
      cli::ParseManifest(cli::ManifestJson(TwoTensors()).dump());
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  v1::CheckpointFacts want = TwoTensors();
  want.clear_files();
  EXPECT_EQ(FindDifference(want, *parsed), "");
  EXPECT_EQ(parsed->tensors(1).hash(), 9000u);
}

TEST(ManifestTest, RefusesWhatIsNone) {
  for (
      const char* text :
      {"", "[]", "{}", R"({"version":2,"tensors":{}})",
       R"({"version":1,"tensors":[]})",
       R"({"version":1,"tensors":{"a":{"dtype":"f32","shape":[1]}}})",
       R"({"version":1,"tensors":{"a":{"dtype":"f32","shape":["x"],"xxh3_64":"0000000000000000"}}})",
       R"({"version":1,"tensors":{"a":{"dtype":"f32","shape":[1],"xxh3_64":"00"}}})"}) {
    EXPECT_EQ(cli::ParseManifest(text).status().code(),
              absl::StatusCode::kInvalidArgument)
        << text;
  }
}

}  // namespace
}  // namespace ringfleet::coordinator
