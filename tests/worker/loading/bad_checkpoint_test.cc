// SPDX-License-Identifier: Apache-2.0
// Loads of checkpoints that are not what they should be: each ends with an
// error that names tensor, place and value.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cluster/checkpoint/checkpoint_files.h"
#include "cluster/checkpoint/open_model.h"
#include "tests/testing/checkpoint_writer.h"
#include "tests/testing/restrictions.h"
#include "tests/testing/sanitized.h"
#include "worker/loading/shard_loader.h"

namespace ringfleet::worker {
namespace {

using cluster::Checkpoint;
using cluster::MeshShape;
using cluster::ModelSpec;
using kernels::Dtype;
using kernels::WeightForm;
using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::TestTensor;

absl::Status SilentProgress(uint64_t, uint64_t) { return absl::OkStatus(); }

// A small model whose tensors a test spoils before it is written.
class BadCheckpointTest : public ::testing::Test {
 protected:
  BadCheckpointTest()
      : spec_(testing::TinyV3Spec()),
        tensors_(testing::RandomTensors(spec_, Dtype::kF8E4M3, 5)) {}

  TestTensor& Tensor(const std::string& name) {
    for (TestTensor& tensor : tensors_) {
      if (tensor.name == name) return tensor;
    }
    ADD_FAILURE() << name;
    return tensors_[0];
  }

  void Remove(const std::string& name) {
    const size_t before = tensors_.size();
    tensors_.erase(
        std::remove_if(tensors_.begin(), tensors_.end(),
                       [&](const auto& t) { return t.name == name; }),
        tensors_.end());
    EXPECT_EQ(tensors_.size() + 1, before) << name;
  }

  void SetFloat(const std::string& name, size_t index, float value) {
    TestTensor& tensor = Tensor(name);
    ASSERT_EQ(tensor.dtype, "F32");
    std::memcpy(tensor.data.data() + 4 * index, &value, 4);
  }

  void SetBf16(const std::string& name, size_t index, float value) {
    TestTensor& tensor = Tensor(name);
    ASSERT_EQ(tensor.dtype, "BF16");
    const uint16_t bits = kernels::FloatToBf16(value);
    std::memcpy(tensor.data.data() + 2 * index, &bits, 2);
  }

  absl::Status Load(const LoadOptions& options = {}, int threads = 2,
                    const MeshShape& mesh = {}, int rank = 0) {
    const testing::TempDir dir;
    testing::WriteCheckpoint(dir.path(), testing::ConfigJson(spec_), tensors_,
                             2);
    const auto checkpoint = cluster::OpenCheckpoint(dir.path());
    if (!checkpoint.ok()) return checkpoint.status();
    const auto plan = cluster::PlanShard(spec_, mesh, rank);
    if (!plan.ok()) return plan.status();
    kernels::ThreadPool pool(threads);
    return LoadShard(**checkpoint, spec_, *plan, options, pool, SilentProgress)
        .status();
  }

  void ExpectLoad(absl::StatusCode code, const std::string& message,
                  const LoadOptions& options = {}) {
    const absl::Status status = Load(options);
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(message));
  }

  ModelSpec spec_;
  std::vector<TestTensor> tensors_;
};

TEST_F(BadCheckpointTest, TheSoundOneLoads) {
  EXPECT_TRUE(Load().ok()) << Load();
}

// A sanitizer sees enough in one tensor of five.
constexpr size_t kTensorStep = testing::kSanitized ? 5 : 1;

TEST_F(BadCheckpointTest, EveryMissingTensorIsNamed) {
  const std::string copies = "model.layers.3.";
  const std::vector<TestTensor> all = tensors_;
  for (size_t i = 0; i < all.size(); i += kTensorStep) {
    const TestTensor& tensor = all[i];
    tensors_ = all;
    Remove(tensor.name);
    // The copies of embedding and head are not read.
    if (tensor.name == copies + "embed_tokens.weight" ||
        tensor.name == copies + "shared_head.head.weight") {
      EXPECT_TRUE(Load().ok());
      continue;
    }
    const absl::Status status = Load();
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << tensor.name;
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("missing tensor " + tensor.name));
  }
}

TEST_F(BadCheckpointTest, EveryWrongShapeIsNamed) {
  const std::string copies = "model.layers.3.";
  const std::vector<TestTensor> all = tensors_;
  for (size_t i = 0; i < all.size(); i += kTensorStep) {
    if (all[i].name == copies + "embed_tokens.weight" ||
        all[i].name == copies + "shared_head.head.weight") {
      continue;
    }
    tensors_ = all;
    tensors_[i].shape.push_back(1);  // As many elements.
    const absl::Status status = Load();
    EXPECT_TRUE(absl::IsDataLoss(status)) << all[i].name << " " << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(all[i].name));
    EXPECT_THAT(std::string(status.message()), HasSubstr("want "));
  }
}

TEST_F(BadCheckpointTest, TensorsThatNothingReadsAreNamed) {
  const std::vector<TestTensor> all = tensors_;
  for (const char* name : {"model.layers.3.self_attn.q_a_proj.bias",
                           "model.layers.1.self_attn.indexer.wk.weight"}) {
    tensors_ = all;
    tensors_.push_back(testing::MakeTensor(name, Dtype::kBf16, {1}, {0}));
    ExpectLoad(absl::StatusCode::kDataLoss,
               absl::StrCat(name, ": nothing reads this tensor"));
  }
  // The multi-token prediction layer is not used then.
  tensors_ = all;
  tensors_.push_back(
      testing::MakeTensor("model.layers.3.bias", Dtype::kBf16, {1}, {0}));
  EXPECT_TRUE(Load({.mtp = false}).ok());
  // fp8 checkpoints have static scales of activations, which are not needed.
  tensors_ = all;
  tensors_.push_back(testing::MakeTensor(
      "model.layers.0.mlp.up_proj.input_scale", Dtype::kF32, {1}, {0.5f}));
  EXPECT_TRUE(Load().ok());
}

TEST_F(BadCheckpointTest, ShapeMessageShowsBoth) {
  TestTensor& kv_b = Tensor("model.layers.1.self_attn.kv_b_proj.weight");
  ASSERT_EQ(kv_b.shape, (std::vector<int64_t>{132, 20}));
  kv_b.shape = {66, 40};
  ExpectLoad(absl::StatusCode::kDataLoss,
             "model.layers.1.self_attn.kv_b_proj.weight: shape [66, 40], want "
             "[132, 20]");
}

TEST_F(BadCheckpointTest, WrongDtypesAreNamed) {
  Tensor("model.layers.0.mlp.up_proj.weight").dtype = "I8";
  ExpectLoad(absl::StatusCode::kDataLoss,
             "model.layers.0.mlp.up_proj.weight: dtype int8, want f32, bf16, "
             "f16 or f8_e4m3");
}

TEST_F(BadCheckpointTest, NormsRoutersAndHeadsAreNeverFp8) {
  const std::vector<TestTensor> all = tensors_;
  for (const char* name :
       {"model.norm.weight", "model.layers.1.mlp.gate.weight", "lm_head.weight",
        "model.embed_tokens.weight", "model.layers.3.eh_proj.weight"}) {
    tensors_ = all;
    TestTensor& tensor = Tensor(name);
    tensor.dtype = "F8_E4M3";
    tensor.data.resize(tensor.data.size() / 2);
    ExpectLoad(absl::StatusCode::kDataLoss,
               absl::StrCat(name, ": dtype f8_e4m3"));
  }
}

TEST_F(BadCheckpointTest, Fp8NeedsAQuantizationConfig) {
  spec_.quantization.method = cluster::QuantMethod::kNone;
  ExpectLoad(absl::StatusCode::kDataLoss, "no quantization_config");
}

TEST_F(BadCheckpointTest, ScalesOfAnotherBlockSizeAreRejected) {
  spec_.weight_block_rows = 17;
  ExpectLoad(absl::StatusCode::kDataLoss, "_scale_inv: f32 [");
}

TEST_F(BadCheckpointTest, ScalesMustBeFloat32) {
  TestTensor& scales = Tensor("model.layers.0.mlp.up_proj.weight_scale_inv");
  scales.dtype = "BF16";
  scales.data.resize(scales.data.size() / 2);
  ExpectLoad(absl::StatusCode::kDataLoss,
             "model.layers.0.mlp.up_proj.weight_scale_inv: bf16");
}

TEST_F(BadCheckpointTest, ScalesMustBeFiniteAndNotNegative) {
  // up_proj [72, 40]: scales [5, 3].
  const std::string name = "model.layers.0.mlp.up_proj.weight_scale_inv";
  for (const auto& [value, text] : std::vector<std::pair<float, std::string>>{
           {std::nanf(""), "nan"},
           {std::numeric_limits<float>::infinity(), "inf"},
           {-0.5f, "-0.5"}}) {
    SetFloat(name, 7, value);
    ExpectLoad(absl::StatusCode::kDataLoss,
               absl::StrCat(name, ": ", text, " at [2, 1]"));
  }
  SetFloat(name, 7, 0);  // A block of zeros.
  EXPECT_TRUE(Load().ok());
}

TEST_F(BadCheckpointTest, ProductsThatOverflowAreRejected) {
  Tensor("model.layers.0.mlp.up_proj.weight").data[40 * 33 + 17] = 0x7e;
  SetFloat("model.layers.0.mlp.up_proj.weight_scale_inv", 7, 1e36f);
  for (const WeightForm form : {WeightForm::kBf16, WeightForm::kInt8}) {
    ExpectLoad(absl::StatusCode::kDataLoss,
               "model.layers.0.mlp.up_proj.weight: ", {.form = form});
  }
}

TEST_F(BadCheckpointTest, NanCodesAreNamedWithTheirPlace) {
  const std::string name = "model.layers.2.mlp.experts.3.down_proj.weight";
  for (const int code : {0x7f, 0xff}) {
    Tensor(name).data[28 * 5 + 19] = static_cast<char>(code);
    for (const WeightForm form : {WeightForm::kBf16, WeightForm::kInt8}) {
      ExpectLoad(
          absl::StatusCode::kDataLoss,
          absl::StrCat(name, ": NaN code 0x", absl::Hex(code), " at [5, 19]"),
          {.form = form});
    }
  }
  // The rank that owns the other half of the columns is not concerned.
  EXPECT_TRUE(Load({}, 1, {.tensor = 2}, 0).ok());
  EXPECT_EQ(Load({}, 1, {.tensor = 2}, 1).code(), absl::StatusCode::kDataLoss);
}

TEST_F(BadCheckpointTest, ValuesMustBeFinite) {
  const std::vector<TestTensor> all = tensors_;
  for (const float value : {std::nanf(""), INFINITY, -INFINITY}) {
    tensors_ = all;
    SetBf16("model.layers.1.mlp.gate.weight", 2 * 40 + 7, value);
    ExpectLoad(absl::StatusCode::kDataLoss, "model.layers.1.mlp.gate.weight: ");
    ExpectLoad(absl::StatusCode::kDataLoss, " at [2, 7]");
    tensors_ = all;
    SetBf16("model.norm.weight", 11, value);
    ExpectLoad(absl::StatusCode::kDataLoss, " at [11]");
    tensors_ = all;
    SetFloat("model.layers.1.mlp.gate.e_score_correction_bias", 3, value);
    ExpectLoad(absl::StatusCode::kDataLoss, "e_score_correction_bias");
    tensors_ = all;
    SetBf16("lm_head.weight", 100 * 40, value);
    ExpectLoad(absl::StatusCode::kDataLoss, "lm_head.weight: ");
  }
}

// A float32 that is finite, but not after rounding to bf16.
TEST_F(BadCheckpointTest, ValuesMustStayFiniteInTheLoadedDtype) {
  const std::string name = "model.layers.3.eh_proj.weight";
  std::vector<float> values(40 * 80, 0.5f);
  values[80 + 3] = std::numeric_limits<float>::max();
  Tensor(name) = testing::MakeTensor(name, Dtype::kF32, {40, 80}, values);
  ExpectLoad(absl::StatusCode::kDataLoss, name);
  EXPECT_TRUE(Load({.form = WeightForm::kF32}).ok());
  values[80 + 3] = kernels::Bf16ToFloat(0x7f7f);  // The largest bf16.
  Tensor(name) = testing::MakeTensor(name, Dtype::kF32, {40, 80}, values);
  EXPECT_TRUE(Load().ok());
}

TEST_F(BadCheckpointTest, TheFirstBadElementIsNamedWhateverTheThreads) {
  // Enough rows for several calls of the pool.
  spec_.vocab_size = 20000;
  tensors_ = testing::RandomTensors(spec_, Dtype::kF8E4M3, 5);
  for (const size_t index :
       {19000 * 40 + 1, 9000 * 40 + 2, 5000 * 40 + 4, 2000 * 40 + 3}) {
    SetBf16("model.embed_tokens.weight", index, std::nanf(""));
  }
  for (int threads = 1; threads <= 4; ++threads) {
    EXPECT_THAT(std::string(Load({}, threads).message()),
                HasSubstr("model.embed_tokens.weight: nan at [2000, 3]"));
  }
}

// Each file of a checkpoint, and its folder. Nobody takes it for missing, which
// would be fetched from other hosts.
TEST_F(BadCheckpointTest, WhatMayNotBeReadIsNamed) {
  const testing::TempDir dir;
  testing::WriteCheckpoint(dir.path(), testing::ConfigJson(spec_), tensors_, 2);
  std::vector<std::string> paths = {dir.path()};
  for (const auto& entry : std::filesystem::directory_iterator(dir.path())) {
    paths.push_back(entry.path().string());
  }
  ASSERT_EQ(paths.size(), 5u);  // Two files, an index, a configuration.
  const testing::BoundByPermissions bound;
  for (const std::string& path : paths) {
    const auto before = std::filesystem::status(path).permissions();
    std::filesystem::permissions(path, std::filesystem::perms::none);
    const absl::Status opened = cluster::OpenCheckpoint(dir.path()).status();
    EXPECT_EQ(opened.code(), absl::StatusCode::kPermissionDenied) << opened;
    EXPECT_THAT(std::string(opened.message()),
                AllOf(HasSubstr(path), HasSubstr("Permission denied")));
    const absl::Status listed =
        cluster::ListCheckpointFiles(dir.path()).status();
    EXPECT_EQ(listed.code(), absl::StatusCode::kPermissionDenied) << listed;
    EXPECT_THAT(std::string(listed.message()),
                AllOf(HasSubstr(path), HasSubstr("Permission denied")));
    std::filesystem::permissions(path, before);
    EXPECT_TRUE(cluster::OpenCheckpoint(dir.path()).ok());
  }
}

TEST_F(BadCheckpointTest, AFileThatShrinksDuringTheLoadIsDataLoss) {
  const testing::TempDir dir;
  testing::WriteCheckpoint(dir.path(), testing::ConfigJson(spec_), tensors_, 1);
  const auto checkpoint = cluster::OpenCheckpoint(dir.path());
  ASSERT_TRUE(checkpoint.ok());
  kernels::ThreadPool pool(2);
  int calls = 0;
  const auto status =
      LoadShard(**checkpoint, spec_, *PlanShard(spec_, {}, 0), {}, pool,
                [&](uint64_t, uint64_t) {
                  if (++calls == 10) {
                    std::filesystem::resize_file(dir.File("model.safetensors"),
                                                 5000);
                  }
                  return absl::OkStatus();
                })
          .status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
}

}  // namespace
}  // namespace ringfleet::worker
