// SPDX-License-Identifier: Apache-2.0
// Loads of quantised checkpoints: codes and scales stay those of the files, and
// float32 gets the values that they stand for.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "cluster/checkpoint/open_model.h"
#include "cluster/model/model_tensors.h"
#include "cluster/model/shard_sizes.h"
#include "kernels/products/quantize.h"
#include "tests/testing/bundled_model.h"
#include "tests/testing/checkpoint_writer.h"
#include "tests/testing/quantized_tensors.h"
#include "tests/testing/sanitized.h"
#include "worker/loading/shard_loader.h"

namespace ringfleet::worker {
namespace {

using cluster::Checkpoint;
using cluster::MeshShape;
using cluster::ModelSpec;
using cluster::ModelTensor;
using cluster::QuantMethod;
using cluster::ShardPlan;
using cluster::TensorRole;
using kernels::Dtype;
using kernels::WeightForm;
using kernels::WeightMatrix;
using ::testing::HasSubstr;
using testing::QuantizedForm;
using testing::QuantizedTensors;
using testing::TestTensor;

absl::Status NoProgress(uint64_t, uint64_t) { return absl::OkStatus(); }

std::string RawBytes(const Checkpoint& checkpoint, const std::string& name) {
  const auto info = checkpoint.Find(name);
  EXPECT_TRUE(info.ok()) << info.status();
  std::string bytes((*info)->bytes, '\0');
  EXPECT_TRUE(checkpoint.Read(**info, 0, bytes.size(), bytes.data()).ok());
  return bytes;
}

template <typename Value>
Value At(const std::string& bytes, size_t index) {
  Value value;
  std::memcpy(&value, bytes.data() + index * sizeof(value), sizeof(value));
  return value;
}

// A matrix of a rank that has codes of the file, and their place there.
struct CodeMatrix {
  std::string name;  // Of the tensor, with ".weight".
  const ModelTensor* tensor = nullptr;
  const WeightMatrix* matrix = nullptr;
};

// The matrices of layer `layer` that the table calls quantised.
std::vector<CodeMatrix> CodeMatrices(const cluster::TensorGroup& group,
                                     const std::vector<int32_t>& held,
                                     const LayerWeights& layer) {
  std::vector<CodeMatrix> matrices;
  for (const auto& [tensor, index] : cluster::InOrder(group, held.size())) {
    const MlpWeights* expert = index < 0 ? nullptr : &layer.moe.experts[index];
    const WeightMatrix* matrix = nullptr;
    switch (tensor->role) {
      case TensorRole::kQA:
        matrix = &layer.attention.q_a;
        break;
      case TensorRole::kQB:
        matrix = &layer.attention.q_b;
        break;
      case TensorRole::kKvA:
        matrix = &layer.attention.kv_a;
        break;
      case TensorRole::kKvB:
        matrix = &layer.attention.kv_b;
        break;
      case TensorRole::kO:
        matrix = &layer.attention.o;
        break;
      case TensorRole::kDenseGate:
        matrix = &layer.dense.gate;
        break;
      case TensorRole::kDenseUp:
        matrix = &layer.dense.up;
        break;
      case TensorRole::kDenseDown:
        matrix = &layer.dense.down;
        break;
      case TensorRole::kExpertGate:
        matrix = &expert->gate;
        break;
      case TensorRole::kExpertUp:
        matrix = &expert->up;
        break;
      case TensorRole::kExpertDown:
        matrix = &expert->down;
        break;
      case TensorRole::kSharedGate:
        matrix = &layer.moe.shared.gate;
        break;
      case TensorRole::kSharedUp:
        matrix = &layer.moe.shared.up;
        break;
      case TensorRole::kSharedDown:
        matrix = &layer.moe.shared.down;
        break;
      default:
        continue;
    }
    matrices.push_back({cluster::TensorName(group.prefix, *tensor,
                                            index < 0 ? 0 : held[index]),
                        tensor, matrix});
  }
  return matrices;
}

// Holds every code and scale of a matrix in int4 against the file.
void ExpectInt4Codes(const Checkpoint& checkpoint, const CodeMatrix& code,
                     const cluster::LocalSlice& slice) {
  ASSERT_EQ(code.matrix->form(), WeightForm::kInt4) << code.name;
  const std::string packed = RawBytes(checkpoint, code.name + "_packed");
  const std::string scales = RawBytes(checkpoint, code.name + "_scale");
  const int64_t columns = code.tensor->columns;
  int wrong = 0;
  for (int i = 0; i < slice.rows.size(); ++i) {
    const uint8_t* panel = code.matrix->Panel(i / kernels::kPanelRows);
    const size_t lane = i % kernels::kPanelRows;
    for (int j = 0; j < slice.columns.size(); ++j) {
      const int64_t at =
          (slice.rows.begin + i) * columns + slice.columns.begin + j;
      const uint8_t* group =
          panel + j / kernels::kInt4Group * kernels::kInt4GroupBytes;
      const size_t in_group = j % kernels::kInt4Group;
      const uint8_t pair =
          group[kernels::kInt4ScaleBytes + in_group / 8 * kernels::kStepBytes +
                lane * 4 + in_group % 4];
      const int got = in_group / 4 % 2 == 0 ? pair & 15 : pair >> 4;
      const int want =
          static_cast<uint8_t>(packed[at / 2]) >> (at % 2 * 4) & 15;
      uint16_t scale;
      std::memcpy(&scale, group + lane * sizeof(scale), sizeof(scale));
      wrong += got != want || scale != At<uint16_t>(scales, at / 32);
    }
  }
  EXPECT_EQ(wrong, 0) << code.name;
}

// Expects the codes and scales of an int8 matrix to equal the file's.
void ExpectInt8Codes(const Checkpoint& checkpoint, const CodeMatrix& code,
                     const cluster::LocalSlice& slice) {
  ASSERT_EQ(code.matrix->form(), WeightForm::kInt8) << code.name;
  const std::string codes = RawBytes(checkpoint, code.name);
  const std::string scales = RawBytes(checkpoint, code.name + "_scale");
  const int steps = (slice.columns.size() + 3) / 4;
  int wrong = 0;
  for (int i = 0; i < slice.rows.size() && steps > 0; ++i) {
    const uint8_t* panel = code.matrix->Panel(i / kernels::kPanelRows);
    const size_t lane = i % kernels::kPanelRows;
    for (int j = 0; j < slice.columns.size(); ++j) {
      const int64_t at = (slice.rows.begin + i) * code.tensor->columns +
                         slice.columns.begin + j;
      const uint8_t got =
          panel[j / 4 * kernels::kStepBytes + lane * 4 + j % 4] ^ 0x80;
      wrong += got != static_cast<uint8_t>(codes[at]);
    }
    float scale;
    std::memcpy(&scale, panel + steps * kernels::kStepBytes + lane * 4, 4);
    wrong += scale != At<float>(scales, slice.rows.begin + i);
  }
  EXPECT_EQ(wrong, 0) << code.name;
}

std::vector<MeshShape> SplitMeshes() {
  if (testing::kSanitized) return {{1, 1, 3}, {1, 2, 2}};
  return {{}, {1, 1, 3}, {1, 2, 2}, {2, 1, 2}};
}

void ExpectFilesCodes(const std::string& model, const LoadOptions& options) {
  const std::string dir = testing::BundledModel(model);
  const auto spec = cluster::LoadModelSpec(dir);
  ASSERT_TRUE(spec.ok()) << spec.status();
  const auto raw = cluster::OpenCheckpoint(dir).value();
  kernels::ThreadPool pool(2);
  for (const MeshShape& mesh : SplitMeshes()) {
    for (const ShardPlan& plan : cluster::PlanAllShards(*spec, mesh)) {
      SCOPED_TRACE(absl::StrCat(model, " rank ", plan.rank, " of ", mesh.data,
                                "x", mesh.expert, "x", mesh.tensor));
      const auto checkpoint = cluster::OpenCheckpoint(dir).value();
      const auto weights =
          LoadShard(*checkpoint, *spec, plan, options, pool, NoProgress);
      ASSERT_TRUE(weights.ok()) << weights.status();
      EXPECT_EQ(weights->bytes,
                ShardBytes(*spec, plan, options, checkpoint.get()));
      if (mesh.world_size() == 1) {
        // Every tensor is read once.
        uint64_t bytes = 0;
        for (const std::string& name : raw->Names()) {
          if (!cluster::SkipReason(*spec, name).empty()) continue;
          const bool copy = absl::StrContains(name, ".embed_tokens.") !=
                            absl::StartsWith(name, "model.embed");
          if (copy || absl::StrContains(name, "shared_head.head")) continue;
          bytes += raw->Find(name).value()->bytes;
        }
        EXPECT_EQ(checkpoint->bytes_read(), bytes);
      }
      for (int layer = 0; layer < spec->num_hidden_layers; ++layer) {
        const cluster::TensorGroup group =
            cluster::TensorsOfLayer(*spec, layer);
        const std::vector<int32_t> held =
            group.is_moe ? cluster::HeldExperts(plan, nullptr, layer)
                         : std::vector<int32_t>();
        for (const CodeMatrix& code :
             CodeMatrices(group, held, weights->layers[layer])) {
          const cluster::LocalSlice slice =
              cluster::LocalSliceOf(*code.tensor, *spec, plan);
          ASSERT_EQ(code.matrix->rows(), slice.rows.size());
          ASSERT_EQ(code.matrix->columns(), slice.columns.size());
          if (code.tensor->is_int4) {
            ExpectInt4Codes(*raw, code, slice);
          } else if (spec->quantization.method == QuantMethod::kInt8Channel) {
            ExpectInt8Codes(*raw, code, slice);
          } else {
            EXPECT_EQ(code.matrix->form(), WeightForm::kInt8);
          }
        }
      }
    }
  }
}

constexpr LoadOptions kNative = {.form = WeightForm::kInt8, .native = true};

TEST(QuantizedShardTest, KimisInt4StaysWhatItIsInEverySplit) {
  ExpectFilesCodes("tiny-kimi", kNative);
}

TEST(QuantizedShardTest, Int8ChannelsStayWhatTheyAreInEverySplit) {
  ExpectFilesCodes("tiny-int8-channel", kNative);
}

// A model with every size that int4 needs.
ModelSpec SpecOf(QuantMethod method, int block_rows = 0,
                 int block_columns = 0) {
  ModelSpec spec = testing::TinyV3Spec();
  spec.num_hidden_layers = 2;
  spec.hidden_size = 64;
  spec.moe_intermediate_size = 96;
  spec.quantization.method = method;
  if (method == QuantMethod::kInt4) {
    for (const TensorRole role :
         {TensorRole::kExpertGate, TensorRole::kExpertUp,
          TensorRole::kExpertDown}) {
      spec.quantization.int4_roles |= 1u << static_cast<int>(role);
      spec.quantization.int4_mtp_roles |= 1u << static_cast<int>(role);
    }
  }
  spec.weight_block_rows = block_rows;
  spec.weight_block_columns = block_columns;
  return spec;
}

struct LoadedParts {
  Weights weights;
  std::vector<PackedPart> parts;
};

absl::StatusOr<LoadedParts> LoadParts(const std::string& dir,
                                      const ModelSpec& spec,
                                      const ShardPlan& plan,
                                      const LoadOptions& options) {
  kernels::ThreadPool pool(2);
  const auto checkpoint = cluster::OpenCheckpoint(dir);
  if (!checkpoint.ok()) return checkpoint.status();
  LoadedParts loaded;
  auto weights = LoadShard(**checkpoint, spec, plan, options, pool, NoProgress,
                           &loaded.parts);
  if (!weights.ok()) return weights.status();
  loaded.weights = *std::move(weights);
  return loaded;
}

struct EncodingCase {
  std::string name;
  ModelSpec spec;
  QuantizedForm form;
};

std::vector<EncodingCase> EncodingCases() {
  return {
      {"int4", SpecOf(QuantMethod::kInt4), {}},
      {"int8_channel", SpecOf(QuantMethod::kInt8Channel), {}},
      {"int8_blocks", SpecOf(QuantMethod::kInt8Blocks, 16, 24), {}},
      {"fp8_tensor", SpecOf(QuantMethod::kFp8), {}},
      {"fp8_tensor_bf16", SpecOf(QuantMethod::kFp8), {.scales = Dtype::kBf16}},
      {"fp8_experts", SpecOf(QuantMethod::kFp8), {.stacked = true}},
      {"fp8_blocks_e8m0",
       SpecOf(QuantMethod::kFp8, 16, 24),
       {.scales = Dtype::kF8E8M0}},
      {"fp8_stacked_blocks",
       SpecOf(QuantMethod::kFp8, 16, 24),
       {.stacked = true}},
      {"bf16_experts", SpecOf(QuantMethod::kNone), {.stacked = true}},
  };
}

class EncodingTest : public ::testing::TestWithParam<EncodingCase> {
 protected:
  EncodingTest()
      : spec_(GetParam().spec),
        made_(MakeQuantized(spec_, GetParam().form, 3)) {
    testing::WriteCheckpoint(stored_.path(), testing::ConfigJson(spec_),
                             made_.stored, 3);
    plain_spec_ = spec_;
    plain_spec_.quantization.method = QuantMethod::kNone;
    testing::WriteCheckpoint(plain_.path(), testing::ConfigJson(plain_spec_),
                             made_.plain, 2);
  }

  // Forms that keep no code of the encoding.
  std::vector<LoadOptions> RoundingForms() const {
    const LoadOptions f32 = {.form = WeightForm::kF32};
    switch (spec_.quantization.method) {
      case QuantMethod::kInt4:
        return {f32, {.form = WeightForm::kInt8}};
      case QuantMethod::kInt8Channel:
      case QuantMethod::kInt8Blocks:
        return {f32,
                {.form = WeightForm::kBf16, .expert_form = WeightForm::kInt4}};
      default:
        return {f32,
                {.form = WeightForm::kInt8, .expert_form = WeightForm::kInt4}};
    }
  }

  void ExpectEqualParts(const LoadedParts& got, const LoadedParts& want) {
    ASSERT_EQ(got.parts.size(), want.parts.size());
    for (size_t i = 0; i < got.parts.size(); ++i) {
      const PackedPart& a = got.parts[i];
      const PackedPart& b = want.parts[i];
      ASSERT_EQ(a.form, b.form) << a.name;
      ASSERT_EQ(a.bytes, b.bytes) << a.name;
      ASSERT_EQ(std::memcmp(a.data, b.data, a.bytes), 0)
          << a.name << " as " << kernels::WeightFormName(a.form);
    }
  }

  const ModelSpec spec_;
  ModelSpec plain_spec_;
  const QuantizedTensors made_;
  const testing::TempDir stored_, plain_;
};

TEST_P(EncodingTest, FormsHaveTheValuesOfTheCodes) {
  const auto read = cluster::LoadModelSpec(stored_.path());
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->quantization, spec_.quantization);
  EXPECT_EQ(read->weight_block_rows, spec_.weight_block_rows);

  // Splits stay those of the quantised model.
  plain_spec_.quantization.int4_roles = spec_.quantization.int4_roles;
  for (const LoadOptions& options : RoundingForms()) {
    for (const int rank : {1, 2}) {
      const ShardPlan plan =
          cluster::PlanShard(spec_, {.expert = 2, .tensor = 2}, rank).value();
      const auto got = LoadParts(stored_.path(), spec_, plan, options);
      const auto want = LoadParts(plain_.path(), plain_spec_, plan, options);
      ASSERT_TRUE(got.ok()) << got.status();
      ASSERT_TRUE(want.ok()) << want.status();
      ASSERT_NO_FATAL_FAILURE(ExpectEqualParts(*got, *want));
    }
  }

  // An expert that is loaded alone is the shard's.
  const ShardPlan plan = cluster::PlanShard(spec_, {.tensor = 2}, 1).value();
  const auto shard = LoadParts(stored_.path(), spec_, plan, kNative);
  ASSERT_TRUE(shard.ok()) << shard.status();
  kernels::ThreadPool pool(1);
  const auto checkpoint = cluster::OpenCheckpoint(stored_.path()).value();
  const auto expert = LoadExpert(*checkpoint, spec_, plan, kNative,
                                 /*layer=*/1, /*expert=*/5, pool);
  ASSERT_TRUE(expert.ok()) << expert.status();
  const MlpWeights& held = shard->weights.layers[1].moe.experts[5];
  for (const auto& [a, b] :
       {std::pair(&expert->gate, &held.gate), std::pair(&expert->up, &held.up),
        std::pair(&expert->down, &held.down)}) {
    ASSERT_EQ(a->bytes(), b->bytes());
    EXPECT_EQ(a->form(), shard->weights.layers[1].moe.expert_form);
    EXPECT_EQ(std::memcmp(a->data(), b->data(), a->bytes()), 0);
  }
}

INSTANTIATE_TEST_SUITE_P(All, EncodingTest,
                         ::testing::ValuesIn(EncodingCases()),
                         [](const auto& info) { return info.param.name; });

// A quantised checkpoint that a test spoils.
class BadCodesTest : public ::testing::Test {
 protected:
  void Use(const ModelSpec& spec, const QuantizedForm& form = {}) {
    spec_ = spec;
    tensors_ = MakeQuantized(spec, form, 3).stored;
  }
  TestTensor& Tensor(const std::string& name) {
    for (TestTensor& tensor : tensors_) {
      if (tensor.name == name) return tensor;
    }
    ADD_FAILURE() << name;
    return tensors_[0];
  }
  void Remove(const std::string& name) {
    EXPECT_EQ(
        std::erase_if(tensors_, [&](const auto& t) { return t.name == name; }),
        1u);
  }
  // Loads, and puts the tensors back.
  std::string Problem() {
    const testing::TempDir dir;
    testing::WriteCheckpoint(dir.path(), testing::ConfigJson(spec_), tensors_,
                             2);
    const auto loaded = LoadParts(
        dir.path(), spec_, cluster::PlanShard(spec_, {}, 0).value(), kNative);
    EXPECT_TRUE(absl::IsDataLoss(loaded.status())) << loaded.status();
    return std::string(loaded.status().message());
  }

  ModelSpec spec_;
  std::vector<TestTensor> tensors_;
};

TEST_F(BadCodesTest, Int4NamesWhatIsWrong) {
  const std::string name = "model.layers.1.mlp.experts.3.up_proj.weight";
  Use(SpecOf(QuantMethod::kInt4));  // up_proj [96, 64]
  const std::vector<TestTensor> sound = tensors_;
  for (const auto& [suffix, what] :
       {std::pair("_packed", "the codes"), std::pair("_scale", "the scales"),
        std::pair("_shape", "the shape")}) {
    tensors_ = sound;
    Remove(name + suffix);
    EXPECT_EQ(Problem(), absl::StrCat("missing tensor ", name, suffix, ", ",
                                      what, " of an int4 weight"));
  }
  tensors_ = sound;
  Tensor(name + "_packed").shape = {8, 96};
  EXPECT_EQ(Problem(), name + "_packed: shape [8, 96], want [96, 8]");
  tensors_ = sound;
  Tensor(name + "_packed").dtype = "F32";
  EXPECT_EQ(Problem(), name + "_packed: dtype f32, want int32");
  tensors_ = sound;
  Tensor(name + "_scale").shape = {2, 96};
  EXPECT_EQ(Problem(), name + "_scale: bf16 [2, 96], want bf16 [96, 2]");
  tensors_ = sound;
  Tensor(name + "_scale").dtype = "F16";
  EXPECT_EQ(Problem(), name + "_scale: f16 [96, 2], want bf16 [96, 2]");
  tensors_ = sound;
  Tensor(name + "_scale").data[2 * 7 + 1] = 0x7f;
  Tensor(name + "_scale").data[2 * 7] = static_cast<char>(0xc0);
  EXPECT_THAT(Problem(), HasSubstr(name + "_scale: nan at [3, 1], want a "
                                          "finite number, not negative"));
  tensors_ = sound;
  Tensor(name + "_shape").data[0] = 95;
  EXPECT_THAT(Problem(),
              HasSubstr(name + "_shape: values [95, 64], want [96, 64]"));
  tensors_ = sound;
  Tensor(name + "_shape").shape = {2, 1};
  EXPECT_EQ(Problem(), name + "_shape: shape [2, 1], want [2]");
  tensors_ = sound;
  Tensor(name + "_shape") =
      testing::MakeTensor(name + "_shape", Dtype::kF32, {2}, {96, 64});
  EXPECT_EQ(Problem(), name + "_shape: dtype f32, want int32 or int64");
  // Floats in place of codes, or beside them.
  tensors_ = sound;
  tensors_.push_back(testing::MakeTensor(name, Dtype::kBf16, {96, 64},
                                         std::vector<float>(96 * 64)));
  EXPECT_THAT(Problem(), HasSubstr(name + ": nothing reads this tensor"));
  // Zero points, and an order of groups.
  for (const char* other : {"_zero_point", "_g_idx"}) {
    tensors_ = sound;
    tensors_.push_back({name + other, "I32", {1}, std::string(4, '\0')});
    EXPECT_THAT(Problem(),
                HasSubstr(name + other + ": nothing reads this tensor"));
  }
}

TEST_F(BadCodesTest, Int8NamesWhatIsWrong) {
  const std::string name = "model.layers.0.mlp.up_proj.weight";
  Use(SpecOf(QuantMethod::kInt8Channel));  // [72, 64]
  const std::vector<TestTensor> sound = tensors_;
  Remove(name + "_scale");
  EXPECT_EQ(Problem(),
            "missing tensor " + name + "_scale, the scales of an int8 weight");
  tensors_ = sound;
  Tensor(name + "_scale").shape = {72};
  EXPECT_EQ(Problem(), name + "_scale: f32 [72], want f32 [72, 1]");
  tensors_ = sound;
  Tensor(name + "_scale").data[4 * 5 + 3] = static_cast<char>(0xff);
  Tensor(name + "_scale").data[4 * 5 + 2] = static_cast<char>(0xc0);
  EXPECT_THAT(Problem(), HasSubstr(name + "_scale: nan at [5, 0]"));
  tensors_ = sound;
  Tensor(name).dtype = "F8_E4M3";
  EXPECT_EQ(Problem(), name + ": dtype f8_e4m3, want f32, bf16, f16 or int8");
  tensors_ = sound;
  Tensor("model.layers.1.mlp.gate.weight").dtype = "I8";
  Tensor("model.layers.1.mlp.gate.weight").data.resize(8 * 64);
  EXPECT_THAT(Problem(), HasSubstr("mlp.gate.weight: dtype int8, want f32, "
                                   "bf16 or f16"));
}

TEST_F(BadCodesTest, ScalesOfTensorsAndExpertsNameWhatIsWrong) {
  const std::string name = "model.layers.1.mlp.experts.gate_up_proj";
  const std::string plain = "model.layers.0.mlp.up_proj.weight_scale_inv";
  Use(SpecOf(QuantMethod::kFp8), {.stacked = true});
  const std::vector<TestTensor> sound = tensors_;
  Remove(name + "_scale_inv");
  EXPECT_EQ(Problem(), "missing tensor " + name +
                           "_scale_inv, the scales of an f8_e4m3 weight");
  tensors_ = sound;
  Tensor(name + "_scale_inv").shape = {8};
  EXPECT_EQ(Problem(), name + "_scale_inv: f32 [8], want f32 [8, 1, 1]");
  tensors_ = sound;
  Tensor(name).shape = {8, 64, 192};
  EXPECT_EQ(Problem(), name + ": shape [8, 64, 192], want [8, 192, 64]");
  tensors_ = sound;
  Tensor(plain) = testing::MakeTensor(plain, Dtype::kF32, {2}, {1, 1});
  EXPECT_EQ(Problem(), plain + ": f32 [2], want f32 []");
  // One number in a list, and another name of the scale.
  tensors_ = sound;
  Tensor(plain).shape = {1};
  Tensor("model.layers.0.mlp.gate_proj.weight_scale_inv").name =
      "model.layers.0.mlp.gate_proj.weight_scale";
  Remove("model.norm.weight");
  EXPECT_EQ(Problem(), "missing tensor model.norm.weight");
  // Rows of an expert that blocks do not divide.
  Use(SpecOf(QuantMethod::kFp8, 36, 24));
  tensors_.push_back(testing::MakeTensor(name, Dtype::kF8E4M3, {8, 192, 64},
                                         std::vector<float>(8 * 192 * 64)));
  tensors_.push_back(testing::MakeTensor(name + "_scale_inv", Dtype::kF32,
                                         {8, 6, 3},
                                         std::vector<float>(8 * 6 * 3)));
  std::erase_if(tensors_, [](const TestTensor& tensor) {
    return tensor.name.starts_with("model.layers.1.mlp.experts.0.gate") ||
           tensor.name.starts_with("model.layers.1.mlp.experts.0.up");
  });
  EXPECT_EQ(Problem(), name +
                           ": 192 rows of each expert, want a multiple of "
                           "36, the rows of weight_block_size");
}

TEST_F(BadCodesTest, AScaleOfE8M0MayBeNoNaN) {
  const std::string name = "model.layers.0.mlp.up_proj.weight_scale_inv";
  Use(SpecOf(QuantMethod::kFp8, 16, 16), {.scales = Dtype::kF8E8M0});
  Tensor(name).data[5] = static_cast<char>(0xff);
  EXPECT_THAT(Problem(), HasSubstr(name + ": nan at [1, 1]"));
}

}  // namespace
}  // namespace ringfleet::worker
