// SPDX-License-Identifier: Apache-2.0
#include "cluster/synthetic/synthetic_checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "cluster/checkpoint/open_model.h"
#include "cluster/checkpoint/safetensors.h"
#include "cluster/model/model_spec.h"
#include "kernels/dtype.h"
#include "tests/testing/checkpoint_writer.h"

namespace ringfleet::cluster {
namespace {

using kernels::Dtype;
using ::testing::HasSubstr;

std::unique_ptr<SyntheticCheckpoint> Synthetic(const std::string& model) {
  auto checkpoint = SyntheticCheckpoint::Open(model);
  EXPECT_TRUE(checkpoint.ok()) << checkpoint.status();
  return *std::move(checkpoint);
}

std::unique_ptr<Checkpoint> Open(const std::string& model) {
  auto checkpoint = OpenCheckpoint(model);
  EXPECT_TRUE(checkpoint.ok()) << checkpoint.status();
  return *std::move(checkpoint);
}

std::string FileBytes(const SyntheticCheckpoint& checkpoint, int file) {
  std::string bytes(checkpoint.contents().files[file].size, '\0');
  EXPECT_TRUE(checkpoint.Read(file, 0, bytes.size(), bytes.data()).ok());
  return bytes;
}

std::string TensorBytes(const Checkpoint& checkpoint, const std::string& name) {
  const auto info = checkpoint.Find(name);
  EXPECT_TRUE(info.ok()) << info.status();
  std::string bytes((*info)->bytes, '\0');
  EXPECT_TRUE(checkpoint.Read(**info, 0, bytes.size(), bytes.data()).ok());
  return bytes;
}

std::vector<float> TensorFloats(const Checkpoint& checkpoint,
                                const std::string& name) {
  const std::string bytes = TensorBytes(checkpoint, name);
  const Dtype dtype = (*checkpoint.Find(name))->dtype;
  std::vector<float> values(bytes.size() / kernels::DtypeBytes(dtype));
  kernels::ToFloat(dtype, bytes.data(), values.size(), values.data());
  return values;
}

double RootMeanSquare(const std::vector<float>& values) {
  double sum = 0;
  for (const float value : values) sum += value * value;
  return std::sqrt(sum / values.size());
}

// From the architecture's description alone (DeepSeek-V3, arXiv:2412.19437,
// section 2.1); nothing is generated.
uint64_t CountWritten(const ModelSpec& spec) {
  const uint64_t hidden = spec.hidden_size;
  const uint64_t heads = spec.num_attention_heads;
  const uint64_t attention =
      hidden * spec.q_lora_rank + spec.q_lora_rank +
      spec.q_lora_rank * heads * spec.qk_head_dim() +
      hidden * (spec.kv_lora_rank + spec.qk_rope_head_dim) + spec.kv_lora_rank +
      spec.kv_lora_rank * heads * (spec.qk_nope_head_dim + spec.v_head_dim) +
      heads * spec.v_head_dim * hidden;
  const auto mlp = [hidden](uint64_t width) { return 3 * hidden * width; };
  const uint64_t experts = spec.n_routed_experts;
  const uint64_t layer = attention + 2 * hidden;
  const uint64_t moe = layer + (experts + 1) * mlp(spec.moe_intermediate_size) +
                       experts * (hidden + 1);
  uint64_t total = 2 * spec.vocab_size * hidden + hidden;
  for (int i = 0; i < spec.num_hidden_layers; ++i) {
    total += spec.IsMoeLayer(i) ? moe : layer + mlp(spec.intermediate_size);
  }
  // With copies of embedding and head, as published.
  total +=
      spec.num_nextn_predict_layers *
      (moe + 2 * hidden * hidden + 3 * hidden + 2 * spec.vocab_size * hidden);
  return total;
}

TEST(SyntheticCheckpointTest, R1SliceHas4Point33BillionParameters) {
  const auto checkpoint = Synthetic("synth:r1-slice");
  const auto spec = LoadModelSpec("synth:r1-slice");
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(checkpoint->parameters(), CountWritten(*spec));
  EXPECT_EQ(checkpoint->parameters(), 4'334'607'424u);
  EXPECT_EQ(Synthetic("synth:tiny")->parameters(),
            CountWritten(*LoadModelSpec("synth:tiny")));
}

TEST(SyntheticCheckpointTest, SplitsIntoFilesOfAtMostAGibibyte) {
  for (const std::string model : {"synth:r1-slice", "synth:tiny"}) {
    const auto checkpoint = Synthetic(model);
    const auto& files = checkpoint->contents().files;
    EXPECT_GT(files.size(), 3u);
    for (const auto& file : files) {
      EXPECT_LE(file.size, (uint64_t{1} << 30) + file.header_bytes);
      EXPECT_EQ(file.header_bytes % 8, 0u);
    }
    EXPECT_THAT(files[1].name, HasSubstr("model-00002-of-0000"));
  }
  EXPECT_LT(Synthetic("synth:tiny")->bytes(), 2'000'000u);
}

TEST(SyntheticCheckpointTest, EveryRangeHasTheSameBytes) {
  const auto checkpoint = Synthetic("synth:tiny,seed=5");
  std::mt19937 random(1);
  for (size_t i = 0; i < checkpoint->contents().files.size(); ++i) {
    const std::string whole = FileBytes(*checkpoint, static_cast<int>(i));
    for (int round = 0; round < 200; ++round) {
      const size_t offset = random() % whole.size();
      const size_t size =
          std::min<size_t>(whole.size() - offset, random() % 40'000);
      std::string part(size, '\0');
      ASSERT_TRUE(
          checkpoint->Read(static_cast<int>(i), offset, size, part.data())
              .ok());
      ASSERT_TRUE(part == whole.substr(offset, size))
          << size << " bytes at " << offset << " of file " << i;
    }
  }
}

TEST(SyntheticCheckpointTest, ManyThreadsReadTheSame) {
  const auto one = Synthetic("synth:tiny,zipf=1");
  std::vector<std::string> expected;
  const size_t files = one->contents().files.size();
  for (size_t i = 0; i < files; ++i) {
    expected.push_back(FileBytes(*one, static_cast<int>(i)));
  }
  const auto shared = Synthetic("synth:tiny,zipf=1");
  std::vector<std::thread> threads;
  for (size_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (size_t i = 0; i < files; ++i) {
        const size_t file = (i + t) % files;
        EXPECT_TRUE(FileBytes(*shared, static_cast<int>(file)) ==
                    expected[file]);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// What a reader of the hub's format makes of the bytes, once they are files.
TEST(SyntheticCheckpointTest, AsFilesItIsTheSameCheckpoint) {
  const std::string model = "synth:tiny,seed=2,zipf=0.5";
  const auto synthetic = Synthetic(model);
  const testing::TempDir dir;
  for (size_t i = 0; i < synthetic->contents().files.size(); ++i) {
    testing::WriteFile(dir.File(synthetic->contents().files[i].name),
                       FileBytes(*synthetic, static_cast<int>(i)));
  }
  testing::WriteFile(dir.File("model.safetensors.index.json"),
                     *synthetic->contents().index);
  testing::WriteFile(dir.File("config.json"),
                     *ReadModelFile(model, "config.json", 1 << 20));
  const auto files = Open(dir.path());
  const auto memory = Open(model);
  EXPECT_EQ(files->Names(), memory->Names());
  for (const std::string& name : files->Names()) {
    const TensorInfo& a = **files->Find(name);
    const TensorInfo& b = **memory->Find(name);
    EXPECT_EQ(a.dtype, b.dtype) << name;
    EXPECT_EQ(a.shape, b.shape) << name;
    EXPECT_EQ(a.offset, b.offset) << name;
    EXPECT_EQ(files->FileName(a), memory->FileName(b)) << name;
    // Readers map files: an element must lie at a multiple of its size.
    EXPECT_EQ(a.offset % kernels::DtypeBytes(a.dtype), 0u) << name;
    EXPECT_TRUE(TensorBytes(*files, name) == TensorBytes(*memory, name))
        << name;
  }
  EXPECT_EQ(*files->Fingerprint(), *memory->Fingerprint());
  EXPECT_GT(memory->bytes_read(), 1'000'000u);
}

TEST(SyntheticCheckpointTest, SeedsAndExponentsGiveOtherModels) {
  std::set<std::string> fingerprints;
  const std::vector<std::string> models = {
      "synth:tiny", "synth:tiny,seed=1", "synth:tiny,zipf=1", "synth:r1-slice"};
  for (const std::string& model : models) {
    const auto fingerprint = Open(model)->Fingerprint();
    ASSERT_TRUE(fingerprint.ok()) << fingerprint.status();
    fingerprints.insert(*fingerprint);
  }
  EXPECT_EQ(fingerprints.size(), models.size());
  const std::string gate = "model.layers.1.mlp.gate.weight";
  EXPECT_NE(TensorBytes(*Open("synth:tiny"), gate),
            TensorBytes(*Open("synth:tiny,seed=1"), gate));
  EXPECT_EQ(TensorBytes(*Open("synth:tiny"), gate),
            TensorBytes(*Open("synth:tiny,zipf=1"), gate));
  const std::string bias = "model.layers.1.mlp.gate.e_score_correction_bias";
  EXPECT_NE(TensorBytes(*Open("synth:tiny"), bias),
            TensorBytes(*Open("synth:tiny,zipf=1"), bias));
}

// Every number finite, products of deviation about 1 / sqrt(columns).
TEST(SyntheticCheckpointTest, WeightsAreFiniteAndOfTheRightSize) {
  const auto checkpoint = Open("synth:tiny");
  for (const std::string& name : checkpoint->Names()) {
    for (const float value : TensorFloats(*checkpoint, name)) {
      ASSERT_TRUE(std::isfinite(value)) << name;
    }
  }
  const std::string up = "model.layers.0.mlp.up_proj.weight";  // [320, 160]
  const std::vector<float> codes = TensorFloats(*checkpoint, up);
  const std::vector<float> scales =
      TensorFloats(*checkpoint, up + "_scale_inv");
  ASSERT_EQ(scales.size(), 3u * 2u);
  std::vector<float> weights(codes.size());
  for (size_t i = 0; i < codes.size(); ++i) {
    weights[i] = codes[i] * scales[i / 160 / 128 * 2 + i % 160 / 128];
  }
  // Six scales within 25 % of their middle: the mean square deviates by 12 %.
  EXPECT_NEAR(RootMeanSquare(weights), 1 / std::sqrt(160),
              0.25 / std::sqrt(160));
  EXPECT_NEAR(
      RootMeanSquare(TensorFloats(*checkpoint, "model.embed_tokens.weight")), 1,
      0.02);
  EXPECT_EQ(TensorBytes(*checkpoint, "model.layers.3.embed_tokens.weight"),
            TensorBytes(*checkpoint, "model.embed_tokens.weight"));
  EXPECT_EQ(TensorBytes(*checkpoint, "model.layers.3.shared_head.head.weight"),
            TensorBytes(*checkpoint, "lm_head.weight"));
}

TEST(SyntheticCheckpointTest, ReadsPartsOfALargeTensor) {
  const auto checkpoint = Open("synth:r1-slice,seed=9");
  const auto info =
      checkpoint->Find("model.layers.2.mlp.experts.31.up_proj.weight");
  ASSERT_TRUE(info.ok()) << info.status();
  EXPECT_EQ((*info)->shape, (std::vector<int64_t>{2048, 7168}));
  std::string bytes(10'000, '\0');
  const uint64_t begin = 14'000'001;
  ASSERT_TRUE(checkpoint->Read(**info, begin, bytes.size(), bytes.data()).ok());
  for (const size_t offset : {0, 1, 2, 3, 4, 5, 4097, 9999}) {
    char byte = 0;
    ASSERT_TRUE(checkpoint->Read(**info, begin + offset, 1, &byte).ok());
    EXPECT_EQ(byte, bytes[offset]) << offset;
  }
  EXPECT_EQ(checkpoint->Read(**info, (*info)->bytes, 1, bytes.data()).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(checkpoint->Find("model.layers.3.enorm.weight").status().code(),
            absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace ringfleet::cluster
