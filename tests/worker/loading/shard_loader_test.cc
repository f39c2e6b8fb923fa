// SPDX-License-Identifier: Apache-2.0
#include "worker/loading/shard_loader.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cluster/checkpoint/open_model.h"
#include "kernels/check.h"
#include "tests/testing/checkpoint_writer.h"
#include "tests/testing/sanitized.h"

namespace ringfleet::worker {
namespace {

using cluster::Checkpoint;
using cluster::MeshShape;
using cluster::ModelSpec;
using cluster::ShardPlan;
using kernels::Dtype;
using kernels::WeightForm;
using kernels::WeightMatrix;
using testing::TestTensor;

absl::Status Ignore(uint64_t, uint64_t) { return absl::OkStatus(); }

Dtype DtypeOf(const TestTensor& tensor) {
  if (tensor.dtype == "F32") return Dtype::kF32;
  if (tensor.dtype == "BF16") return Dtype::kBf16;
  if (tensor.dtype == "F16") return Dtype::kF16;
  EXPECT_EQ(tensor.dtype, "F8_E4M3");
  return Dtype::kF8E4M3;
}

// A whole tensor, widened and dequantised element by element.
struct Whole {
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t element_bytes = 0;
  int64_t block_rows = 0;  // 0: no scales.
  int64_t block_columns = 0;
  std::vector<float> values;
};

std::map<std::string, Whole> Wholes(const ModelSpec& spec,
                                    const std::vector<TestTensor>& tensors) {
  std::map<std::string, const TestTensor*> by_name;
  for (const TestTensor& tensor : tensors) by_name[tensor.name] = &tensor;
  std::map<std::string, Whole> wholes;
  for (const TestTensor& tensor : tensors) {
    Whole whole;
    whole.rows = tensor.shape.size() == 1 ? 1 : tensor.shape[0];
    whole.columns = tensor.shape.back();
    whole.element_bytes = kernels::DtypeBytes(DtypeOf(tensor));
    whole.values.resize(whole.rows * whole.columns);
    kernels::ToFloat(DtypeOf(tensor), tensor.data.data(), whole.values.size(),
                     whole.values.data());
    if (DtypeOf(tensor) == Dtype::kF8E4M3) {
      whole.block_rows = spec.weight_block_rows;
      whole.block_columns = spec.weight_block_columns;
      const TestTensor& scales = *by_name.at(tensor.name + "_scale_inv");
      for (int64_t i = 0; i < whole.rows; ++i) {
        for (int64_t j = 0; j < whole.columns; ++j) {
          float scale;
          std::memcpy(
              &scale,
              scales.data.data() + 4 * (i / whole.block_rows * scales.shape[1] +
                                        j / whole.block_columns),
              4);
          whole.values[i * whole.columns + j] *= scale;
        }
      }
    }
    wholes[tensor.name] = std::move(whole);
  }
  return wholes;
}

// Loads every rank of a mesh and holds each weight against the place in the
// whole tensor where the sizes of the ranks before it say that it begins. So
// the slices, put side by side, are the whole. Counts what a rank must read.
class ShardChecker {
 public:
  ShardChecker(const ModelSpec& spec, const std::vector<TestTensor>& tensors,
               const LoadOptions& options)
      : spec_(spec), options_(options), wholes_(Wholes(spec, tensors)) {}

  void Check(const std::string& dir, const MeshShape& mesh, int threads) {
    SCOPED_TRACE(absl::StrCat("expert ", mesh.expert, " tensor ", mesh.tensor,
                              " threads ", threads));
    kernels::ThreadPool pool(threads);
    ranks_.clear();
    for (int rank = 0; rank < mesh.world_size(); ++rank) {
      // Opened for each, so that bytes_read is this rank's.
      const auto checkpoint = cluster::OpenCheckpoint(dir);
      ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
      const auto plan = cluster::PlanShard(spec_, mesh, rank);
      ASSERT_TRUE(plan.ok()) << plan.status();
      auto weights =
          LoadShard(**checkpoint, spec_, *plan, options_, pool, Ignore);
      ASSERT_TRUE(weights.ok()) << weights.status();
      EXPECT_EQ(weights->bytes,
                ShardBytes(spec_, *plan, options_, checkpoint->get()));
      ranks_.push_back({.weights = *std::move(weights),
                        .bytes_read = (*checkpoint)->bytes_read()});
    }
    mesh_ = mesh;
    CheckReplicated(
        "model.embed_tokens.weight",
        [](auto& w) -> auto& { return w.embedding; });
    CheckVector(
        "model.norm.weight", [](auto& w) -> auto& { return w.final_norm; });
    CheckSplit(
        spec_.tie_word_embeddings ? "model.embed_tokens.weight"
                                  : "lm_head.weight",
        /*by_rows=*/true, [](auto& w) -> auto& { return w.head; });
    for (int i = 0; i < spec_.num_hidden_layers; ++i) {
      CheckLayer(
          absl::StrCat("model.layers.", i, "."),
          spec_.IsMoeLayer(i), [i](const Weights& w) -> auto& {
            return w.layers[i];
          });
    }
    if (spec_.num_nextn_predict_layers > 0) {
      const std::string prefix =
          absl::StrCat("model.layers.", spec_.num_hidden_layers, ".");
      CheckLayer(
          prefix, true,
          [](const Weights& w) -> auto& { return w.mtp.at(0).layer; });
      CheckVector(
          prefix + "enorm.weight",
          [](auto& w) -> auto& { return w.mtp.at(0).enorm; });
      CheckVector(
          prefix + "hnorm.weight",
          [](auto& w) -> auto& { return w.mtp.at(0).hnorm; });
      CheckVector(
          prefix + "shared_head.norm.weight",
          [](auto& w) -> auto& { return w.mtp.at(0).head_norm; });
      CheckReplicated(
          prefix + "eh_proj.weight",
          [](auto& w) -> auto& { return w.mtp.at(0).eh_proj; });
    }
    for (const Rank& rank : ranks_) {
      EXPECT_EQ(rank.weights.bytes, rank.bytes_seen);
      EXPECT_EQ(rank.bytes_read, rank.bytes_needed);
    }
  }

 private:
  struct Rank {
    Weights weights;
    uint64_t bytes_read = 0;
    uint64_t bytes_seen = 0;    // Of weights that were checked.
    uint64_t bytes_needed = 0;  // Of the checkpoint, to make them.
  };
  using MatrixOf = std::function<const WeightMatrix&(const Weights&)>;
  using VectorOf = std::function<const std::vector<float>&(const Weights&)>;
  using LayerOf = std::function<const LayerWeights&(const Weights&)>;

  const Whole& Find(const std::string& name) {
    const auto it = wholes_.find(name);
    EXPECT_NE(it, wholes_.end()) << name;
    return it->second;
  }

  void CountRead(const Whole& whole, int64_t row, int64_t rows, int64_t column,
                 int64_t columns, Rank* rank) {
    if (rows == 0 || columns == 0) return;
    rank->bytes_needed += rows * columns * whole.element_bytes;
    if (whole.block_rows == 0) return;
    rank->bytes_needed +=
        sizeof(float) *
        ((row + rows - 1) / whole.block_rows - row / whole.block_rows + 1) *
        ((column + columns - 1) / whole.block_columns -
         column / whole.block_columns + 1);
  }

  // `matrix` is what stands at [row, column] of the whole.
  void CheckBlock(const std::string& name, const WeightMatrix& matrix,
                  int64_t row, int64_t column, Rank* rank) {
    const Whole& whole = Find(name);
    const int64_t rows = matrix.rows(), columns = matrix.columns();
    ASSERT_LE(row + rows, whole.rows) << name;
    ASSERT_LE(column + columns, whole.columns) << name;
    std::vector<float> got(columns), want(columns);
    WeightMatrix rounded(matrix.form(), 1, columns);
    for (int64_t i = 0; i < rows; ++i) {
      matrix.GetRow(i, got.data());
      if (columns > 0) {
        rounded.SetRow(0, &whole.values[(row + i) * whole.columns + column]);
      }
      rounded.GetRow(0, want.data());
      ASSERT_EQ(got, want) << name << " row " << row + i;
    }
    rank->bytes_seen += matrix.bytes();
    CountRead(whole, row, rows, column, columns, rank);
  }

  void CheckReplicated(const std::string& name, const MatrixOf& matrix) {
    for (Rank& rank : ranks_) {
      const WeightMatrix& m = matrix(rank.weights);
      EXPECT_EQ(static_cast<int64_t>(m.rows()), Find(name).rows) << name;
      EXPECT_EQ(static_cast<int64_t>(m.columns()), Find(name).columns) << name;
      CheckBlock(name, m, 0, 0, &rank);
    }
  }

  void CheckVector(const std::string& name, const VectorOf& vector) {
    for (Rank& rank : ranks_) {
      EXPECT_EQ(vector(rank.weights), Find(name).values) << name;
      rank.bytes_seen += 4 * vector(rank.weights).size();
      CountRead(Find(name), 0, 1, 0, vector(rank.weights).size(), &rank);
    }
  }

  void CheckSplit(const std::string& name, bool by_rows,
                  const MatrixOf& matrix) {
    int64_t next = 0;
    for (Rank& rank : ranks_) {
      const WeightMatrix& m = matrix(rank.weights);
      EXPECT_EQ(static_cast<int64_t>(by_rows ? m.columns() : m.rows()),
                by_rows ? Find(name).columns : Find(name).rows)
          << name;
      EXPECT_EQ(m.form(), options_.form);
      CheckBlock(name, m, by_rows ? next : 0, by_rows ? 0 : next, &rank);
      next += by_rows ? m.rows() : m.columns();
    }
    EXPECT_EQ(next, by_rows ? Find(name).rows : Find(name).columns) << name;
  }

  void CheckMlp(const std::string& prefix,
                const std::function<const MlpWeights&(const Weights&)>& mlp) {
    CheckSplit(
        prefix + "gate_proj.weight",
        true, [&](auto& w) -> auto& { return mlp(w).gate; });
    CheckSplit(
        prefix + "up_proj.weight",
        true, [&](auto& w) -> auto& { return mlp(w).up; });
    CheckSplit(
        prefix + "down_proj.weight",
        false, [&](auto& w) -> auto& { return mlp(w).down; });
  }

  void CheckExperts(const std::string& prefix, const LayerOf& layer) {
    int expert = 0;
    for (int y = 0; y < mesh_.expert; ++y) {
      const size_t count =
          layer(ranks_[y * mesh_.tensor].weights).moe.experts.size();
      for (size_t e = 0; e < count; ++e, ++expert) {
        const std::string name = absl::StrCat(prefix, "experts.", expert, ".");
        int64_t next = 0;
        for (int z = 0; z < mesh_.tensor; ++z) {
          Rank& rank = ranks_[y * mesh_.tensor + z];
          const auto& experts = layer(rank.weights).moe.experts;
          ASSERT_EQ(experts.size(), count);
          CheckBlock(name + "gate_proj.weight", experts[e].gate, next, 0,
                     &rank);
          CheckBlock(name + "up_proj.weight", experts[e].up, next, 0, &rank);
          CheckBlock(name + "down_proj.weight", experts[e].down, 0, next,
                     &rank);
          EXPECT_EQ(experts[e].gate.rows(), experts[e].down.columns());
          EXPECT_EQ(experts[e].gate.rows(), experts[e].up.rows());
          next += experts[e].gate.rows();
        }
        EXPECT_EQ(next, spec_.moe_intermediate_size);
      }
    }
    EXPECT_EQ(expert, spec_.n_routed_experts);
  }

  void CheckTransposedUk(const std::string& name, const LayerOf& layer) {
    size_t first_head = 0;
    const size_t rank_size = spec_.kv_lora_rank;
    const size_t nope = spec_.qk_nope_head_dim;
    const size_t head_rows = nope + spec_.v_head_dim;
    for (Rank& rank : ranks_) {
      const AttentionWeights& attention = layer(rank.weights).attention;
      const WeightMatrix& uk = attention.uk_transposed;
      const size_t heads = attention.kv_b.rows() / head_rows;
      ASSERT_EQ(uk.rows(), heads * rank_size);
      ASSERT_EQ(uk.columns(), nope);
      const Whole& whole = Find(name);
      std::vector<float> got(nope), want(nope);
      WeightMatrix rounded(uk.form(), 1, nope);
      for (size_t h = 0; h < heads; ++h) {
        for (size_t i = 0; i < rank_size; ++i) {
          for (size_t j = 0; j < nope; ++j) {
            want[j] =
                whole
                    .values[((first_head + h) * head_rows + j) * rank_size + i];
          }
          rounded.SetRow(0, want.data());
          rounded.GetRow(0, want.data());
          uk.GetRow(h * rank_size + i, got.data());
          ASSERT_EQ(got, want) << h << " " << i;
        }
      }
      first_head += heads;
      rank.bytes_seen += uk.bytes();
    }
  }

  void CheckLayer(const std::string& prefix, bool is_moe,
                  const LayerOf& layer) {
    CheckVector(
        prefix + "input_layernorm.weight", [&](auto& w) -> auto& {
          return layer(w).input_norm;
        });
    CheckVector(
        prefix + "post_attention_layernorm.weight", [&](auto& w) -> auto& {
          return layer(w).post_attention_norm;
        });
    const std::string self = prefix + "self_attn.";
    if (spec_.q_lora_rank > 0) {
      CheckReplicated(
          self + "q_a_proj.weight", [&](auto& w) -> auto& {
            return layer(w).attention.q_a;
          });
      CheckVector(
          self + "q_a_layernorm.weight", [&](auto& w) -> auto& {
            return layer(w).attention.q_a_norm;
          });
    }
    CheckSplit(
        self + (spec_.q_lora_rank > 0 ? "q_b_proj.weight" : "q_proj.weight"),
        true, [&](auto& w) -> auto& { return layer(w).attention.q_b; });
    CheckReplicated(
        self + "kv_a_proj_with_mqa.weight", [&](auto& w) -> auto& {
          return layer(w).attention.kv_a;
        });
    CheckVector(
        self + "kv_a_layernorm.weight", [&](auto& w) -> auto& {
          return layer(w).attention.kv_a_norm;
        });
    CheckSplit(
        self + "kv_b_proj.weight",
        true, [&](auto& w) -> auto& { return layer(w).attention.kv_b; });
    CheckTransposedUk(self + "kv_b_proj.weight", layer);
    CheckSplit(
        self + "o_proj.weight",
        false, [&](auto& w) -> auto& { return layer(w).attention.o; });
    for (const Rank& rank : ranks_) {
      EXPECT_EQ(layer(rank.weights).is_moe, is_moe);
    }
    if (!is_moe) {
      CheckMlp(
          prefix + "mlp.", [&](auto& w) -> auto& { return layer(w).dense; });
      return;
    }
    CheckVectorOfMatrix(prefix + "mlp.gate.weight", layer);
    if (spec_.has_router_bias()) {
      CheckVector(
          prefix + "mlp.gate.e_score_correction_bias", [&](auto& w) -> auto& {
            return layer(w).moe.router_bias;
          });
    }
    CheckExperts(prefix + "mlp.", layer);
    if (spec_.n_shared_experts > 0) {
      CheckMlp(
          prefix + "mlp.shared_experts.", [&](auto& w) -> auto& {
            return layer(w).moe.shared;
          });
    }
  }

  void CheckVectorOfMatrix(const std::string& name, const LayerOf& layer) {
    for (Rank& rank : ranks_) {
      const Whole& whole = Find(name);
      const kernels::WeightMatrix& router = layer(rank.weights).moe.router;
      std::vector<float> values(router.rows() * router.columns());
      for (size_t row = 0; row < router.rows(); ++row) {
        router.GetRow(row, values.data() + row * router.columns());
      }
      EXPECT_EQ(values, whole.values);
      rank.bytes_seen += 4 * whole.values.size();
      CountRead(whole, 0, whole.rows, 0, whole.columns, &rank);
    }
  }

  const ModelSpec spec_;
  const LoadOptions options_;
  const std::map<std::string, Whole> wholes_;
  MeshShape mesh_;
  std::vector<Rank> ranks_;
};

std::vector<MeshShape> Meshes() {
  std::vector<MeshShape> meshes;
  for (int size = 1; size <= 8; ++size) {
    for (int expert = 1; expert <= size; ++expert) {
      if (size % expert == 0) {
        meshes.push_back({.expert = expert, .tensor = size / expert});
      }
    }
  }
  return meshes;
}

void CheckTiling(const ModelSpec& spec, Dtype stored,
                 const LoadOptions& loaded) {
  const testing::TempDir dir;
  const auto tensors = testing::RandomTensors(spec, stored, /*seed=*/7);
  testing::WriteCheckpoint(dir.path(), testing::ConfigJson(spec), tensors, 3);
  ShardChecker checker(spec, tensors, loaded);
  for (const MeshShape& mesh : Meshes()) {
    checker.Check(dir.path(), mesh, /*threads=*/1 + mesh.world_size() % 3);
  }
}

// Blocks of 16 x 16 and borders at 12, 18, 22, 28, ...: nearly every slice
// begins inside a block.
TEST(ShardLoaderTest, Fp8ShardsTileEveryWeight) {
  CheckTiling(testing::TinyV3Spec(), Dtype::kF8E4M3,
              {.form = WeightForm::kBf16});
}

TEST(ShardLoaderTest, Fp8ShardsTileEveryWeightInFloat32) {
  CheckTiling(testing::TinyV3Spec(), Dtype::kF8E4M3,
              {.form = WeightForm::kF32});
}

TEST(ShardLoaderTest, OblongFp8BlocksScaleTheirOwnElements) {
  ModelSpec spec = testing::TinyV3Spec();
  spec.weight_block_rows = 5;
  spec.weight_block_columns = 9;
  CheckTiling(spec, Dtype::kF8E4M3, {.form = WeightForm::kF32});
}

TEST(ShardLoaderTest, Bf16ShardsTileEveryWeight) {
  CheckTiling(testing::TinyV2Spec(), Dtype::kBf16, {.form = WeightForm::kBf16});
  CheckTiling(testing::TinyV2LiteSpec(), Dtype::kBf16,
              {.form = WeightForm::kF32});
}

TEST(ShardLoaderTest, Float16AndFloat32ShardsTileEveryWeight) {
  CheckTiling(testing::TinyV2LiteSpec(), Dtype::kF16,
              {.form = WeightForm::kBf16});
  CheckTiling(testing::TinyV2Spec(), Dtype::kF32, {.form = WeightForm::kBf16});
  CheckTiling(testing::TinyV2Spec(), Dtype::kF32, {.form = WeightForm::kF32});
}

TEST(ShardLoaderTest, IntegerShardsTileEveryWeight) {
  CheckTiling(testing::TinyV3Spec(), Dtype::kF8E4M3,
              {.form = WeightForm::kInt8});
  CheckTiling(testing::TinyV3Spec(), Dtype::kF8E4M3,
              {.form = WeightForm::kInt4});
}

TEST(ShardLoaderTest, RoutedExpertsMayBeNarrowerThanTheRest) {
  CheckTiling(testing::TinyV2Spec(), Dtype::kBf16,
              {.form = WeightForm::kInt8, .expert_form = WeightForm::kInt4});
}

TEST(ShardLoaderTest, DenseModelsAndTiedHeadsLoad) {
  ModelSpec spec = testing::TinyV2LiteSpec();
  spec.n_routed_experts = 0;
  spec.n_shared_experts = 0;
  spec.moe_intermediate_size = 0;
  spec.tie_word_embeddings = true;
  CheckTiling(spec, Dtype::kBf16, {.form = WeightForm::kBf16});
}

TEST(ShardLoaderTest, ModelsWithoutSharedExpertsHaveOneOfWidthZero) {
  ModelSpec spec = testing::TinyV2Spec();
  spec.n_shared_experts = 0;
  CheckTiling(spec, Dtype::kBf16, {.form = WeightForm::kBf16});
  const testing::TempDir dir;
  testing::WriteRandomModel(dir.path(), spec, Dtype::kBf16, 1);
  const auto checkpoint = cluster::OpenCheckpoint(dir.path());
  kernels::ThreadPool pool(1);
  const auto weights =
      LoadShard(**checkpoint, spec, *PlanShard(spec, {}, 0), {}, pool, Ignore);
  ASSERT_TRUE(weights.ok()) << weights.status();
  const MlpWeights& shared = weights->layers[1].moe.shared;
  EXPECT_EQ(shared.gate.rows(), 0u);
  EXPECT_EQ(shared.gate.columns(), 40u);
  EXPECT_EQ(shared.down.rows(), 40u);
  EXPECT_EQ(shared.down.columns(), 0u);
}

// A world larger than any axis: many ranks own nothing of a weight.
TEST(ShardLoaderTest, RanksWithoutAShareLoadEmptyMatrices) {
  const ModelSpec spec = testing::TinyV3Spec();
  const testing::TempDir dir;
  const auto tensors = testing::RandomTensors(spec, Dtype::kF8E4M3, 3);
  testing::WriteCheckpoint(dir.path(), testing::ConfigJson(spec), tensors, 2);
  ShardChecker checker(spec, tensors, {.form = WeightForm::kBf16});
  checker.Check(dir.path(), {.expert = 11, .tensor = 1}, 1);
  checker.Check(dir.path(), {.expert = 1, .tensor = 30}, 2);
}

// Real dimensions of a block: 576 rows are 4.5 blocks of 128.
TEST(ShardLoaderTest, PartialBlocksAtTheEdgeUseTheConfiguredBlockSize) {
  ModelSpec spec = testing::TinyV3Spec();
  spec.num_hidden_layers = 1;
  spec.num_nextn_predict_layers = 0;
  spec.hidden_size = 200;
  spec.kv_lora_rank = 512;
  spec.qk_rope_head_dim = 64;
  spec.weight_block_rows = 128;
  spec.weight_block_columns = 128;
  CheckTiling(spec, Dtype::kF8E4M3, {.form = WeightForm::kBf16});
}

TEST(ShardLoaderTest, BundledModelsLoadAtEveryWorldSize) {
  for (const std::string name : {"tiny-v3", "tiny-v2", "tiny-v2-lite"}) {
    const std::string dir = absl::StrCat(RINGFLEET_TEST_MODELS, "/", name);
    const auto spec = cluster::LoadModelSpec(dir);
    ASSERT_TRUE(spec.ok()) << spec.status();
    const auto checkpoint = cluster::OpenCheckpoint(dir);
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
    std::vector<TestTensor> tensors;
    for (const std::string& tensor : (*checkpoint)->Names()) {
      const auto info = (*checkpoint)->Find(tensor);
      ASSERT_TRUE(info.ok()) << info.status();
      std::string data((*info)->bytes, '\0');
      ASSERT_TRUE(
          (*checkpoint)->Read(**info, 0, data.size(), data.data()).ok());
      const std::map<Dtype, std::string> names = {{Dtype::kF32, "F32"},
                                                  {Dtype::kBf16, "BF16"},
                                                  {Dtype::kF16, "F16"},
                                                  {Dtype::kF8E4M3, "F8_E4M3"}};
      tensors.push_back(
          {tensor, names.at((*info)->dtype), (*info)->shape, std::move(data)});
    }
    ShardChecker checker(*spec, tensors, {.form = WeightForm::kBf16});
    for (int size = 1; size <= 8; size += testing::kSanitized ? 3 : 1) {
      checker.Check(dir, {.tensor = size}, 2);
    }
    checker.Check(dir, {.expert = 3, .tensor = 2}, 2);
    checker.Check(dir, {.expert = 8}, 2);
  }
}

// Rows and tensors larger than the read buffer.
TEST(ShardLoaderTest, RowsLargerThanTheReadBufferLoad) {
  ModelSpec spec = testing::TinyV2LiteSpec();
  spec.num_hidden_layers = 1;
  spec.first_k_dense_replace = 1;
  spec.hidden_size = 2;
  spec.intermediate_size = 300000;  // down: 1.2 MB a row in float32.
  const testing::TempDir dir;
  const auto tensors = testing::RandomTensors(spec, Dtype::kF32, 3);
  testing::WriteCheckpoint(dir.path(), testing::ConfigJson(spec), tensors, 2);
  ShardChecker checker(spec, tensors, {.form = WeightForm::kBf16});
  checker.Check(dir.path(), {}, 2);
  checker.Check(dir.path(), {.tensor = 3}, 1);
}

TEST(ShardLoaderProgressTest, RunsFromZeroToTheTotalAndCanStopTheLoad) {
  const ModelSpec spec = testing::TinyV3Spec();
  const testing::TempDir dir;
  testing::WriteRandomModel(dir.path(), spec, Dtype::kF8E4M3, 1);
  const auto checkpoint = cluster::OpenCheckpoint(dir.path());
  ASSERT_TRUE(checkpoint.ok());
  const ShardPlan plan = *PlanShard(spec, {.tensor = 3}, 1);
  kernels::ThreadPool pool(2);
  std::vector<uint64_t> done;
  uint64_t total = 0;
  const auto weights = LoadShard(**checkpoint, spec, plan, {}, pool,
                                 [&](uint64_t bytes, uint64_t bytes_total) {
                                   done.push_back(bytes);
                                   total = bytes_total;
                                   return absl::OkStatus();
                                 });
  ASSERT_TRUE(weights.ok()) << weights.status();
  EXPECT_EQ(done.front(), 0u);
  EXPECT_TRUE(std::is_sorted(done.begin(), done.end()));
  EXPECT_EQ(done.back(), total);
  EXPECT_EQ(total, weights->bytes);
  EXPECT_EQ(total, ShardBytes(spec, plan, {}));
  for (size_t stop = 1; stop <= done.size(); stop += 5) {
    size_t calls = 0;
    const auto status =
        LoadShard(**checkpoint, spec, plan, {}, pool, [&](uint64_t, uint64_t) {
          return ++calls == stop ? absl::CancelledError("enough")
                                 : absl::OkStatus();
        }).status();
    EXPECT_EQ(status, absl::CancelledError("enough"));
    EXPECT_EQ(calls, stop);
  }
}

TEST(ShardLoaderMtpTest, IsLoadedWhereWantedAndPresent) {
  const ModelSpec spec = testing::TinyV3Spec();
  const ShardPlan plan = *PlanShard(spec, {}, 0);
  kernels::ThreadPool pool(1);
  std::vector<TestTensor> tensors =
      testing::RandomTensors(spec, Dtype::kF8E4M3, 1);
  const testing::TempDir dir;
  testing::WriteCheckpoint(dir.path(), testing::ConfigJson(spec), tensors, 2);
  auto checkpoint = cluster::OpenCheckpoint(dir.path());
  ASSERT_TRUE(checkpoint.ok());
  auto weights = LoadShard(**checkpoint, spec, plan, {}, pool, Ignore);
  ASSERT_TRUE(weights.ok()) << weights.status();
  EXPECT_EQ(weights->mtp.size(), 1u);
  const LoadOptions without = {.mtp = false};
  weights = LoadShard(**checkpoint, spec, plan, without, pool, Ignore);
  ASSERT_TRUE(weights.ok()) << weights.status();
  EXPECT_TRUE(weights->mtp.empty());
  EXPECT_EQ(weights->bytes, ShardBytes(spec, plan, without));

  tensors.erase(std::remove_if(tensors.begin(), tensors.end(),
                               [](const TestTensor& tensor) {
                                 return tensor.name.rfind("model.layers.3.",
                                                          0) == 0;
                               }),
                tensors.end());
  const testing::TempDir other;
  testing::WriteCheckpoint(other.path(), testing::ConfigJson(spec), tensors, 2);
  checkpoint = cluster::OpenCheckpoint(other.path());
  ASSERT_TRUE(checkpoint.ok());
  weights = LoadShard(**checkpoint, spec, plan, {}, pool, Ignore);
  ASSERT_TRUE(weights.ok()) << weights.status();
  EXPECT_TRUE(weights->mtp.empty());
  EXPECT_EQ(weights->bytes, ShardBytes(spec, plan, {}, checkpoint->get()));
}

TEST(ShardLoaderTest, AFloat32EmbeddingIsKeptWhenProductsAreFloat32) {
  const ModelSpec spec = testing::TinyV2Spec();
  const ShardPlan plan = *PlanShard(spec, {}, 0);
  std::vector<TestTensor> tensors =
      testing::RandomTensors(spec, Dtype::kBf16, 1);
  ASSERT_EQ(tensors[0].name, "model.embed_tokens.weight");
  std::vector<float> values(101 * 40, 0.1f);  // Not a bf16.
  tensors[0] =
      testing::MakeTensor(tensors[0].name, Dtype::kF32, {101, 40}, values);
  const testing::TempDir dir;
  testing::WriteCheckpoint(dir.path(), testing::ConfigJson(spec), tensors, 2);
  const auto checkpoint = cluster::OpenCheckpoint(dir.path());
  ASSERT_TRUE(checkpoint.ok());
  kernels::ThreadPool pool(1);
  for (const WeightForm form : {WeightForm::kF32, WeightForm::kBf16}) {
    const LoadOptions options = {.form = form};
    const auto weights =
        LoadShard(**checkpoint, spec, plan, options, pool, Ignore);
    ASSERT_TRUE(weights.ok()) << weights.status();
    EXPECT_EQ(weights->embedding.form(), form == WeightForm::kF32
                                             ? WeightForm::kF32Rows
                                             : WeightForm::kBf16Rows);
    EXPECT_EQ(weights->bytes,
              ShardBytes(spec, plan, options, checkpoint->get()));
    std::vector<float> row(40);
    weights->embedding.GetRow(3, row.data());
    EXPECT_EQ(row[0],
              form == WeightForm::kF32 ? 0.1f : kernels::RoundToBf16(0.1f));
  }
}

// R1's shares in bf16: 671 026 419 200 parameters in all, of which each rank
// holds the replicated ones and its part of the others.
TEST(ShardBytesTest, AddsUpToThePublishedParameterCount) {
  ModelSpec spec = testing::TinyV3Spec();
  spec.vocab_size = 129280;
  spec.hidden_size = 7168;
  spec.num_hidden_layers = 61;
  spec.num_attention_heads = 128;
  spec.q_lora_rank = 1536;
  spec.kv_lora_rank = 512;
  spec.qk_nope_head_dim = 128;
  spec.qk_rope_head_dim = 64;
  spec.v_head_dim = 128;
  spec.intermediate_size = 18432;
  spec.moe_intermediate_size = 2048;
  spec.n_routed_experts = 256;
  spec.num_experts_per_tok = 8;
  spec.first_k_dense_replace = 3;
  const LoadOptions options = {.form = WeightForm::kBf16, .mtp = false};
  const uint64_t all = ShardBytes(spec, *PlanShard(spec, {}, 0), options);
  const uint64_t float32 = 106445312u + 1006592u;  // Routers, norms.
  const uint64_t transposed = uint64_t{61} * 128 * 512 * 128;
  EXPECT_EQ(all, 2 * (uint64_t{671026419200} + transposed + float32));
  uint64_t sum = 0;
  for (int rank = 0; rank < 16; ++rank) {
    sum += ShardBytes(spec, *PlanShard(spec, {.expert = 4, .tensor = 4}, rank),
                      options);
  }
  const uint64_t replicated =
      2 * (uint64_t{926679040} + 61u * 15138816u) + 4 * float32;
  // A rank's 8080 rows of the head are 126 panels of 64 and a quarter.
  const uint64_t padding = uint64_t{16} * 48 * 7168 * 2;
  EXPECT_EQ(sum, all + 15 * replicated + padding);
}

TEST(ShardBytesTest, SaturatesAtImpossibleSizes) {
  ModelSpec spec = testing::TinyV3Spec();
  spec.hidden_size = 1 << 20;
  spec.moe_intermediate_size = 1 << 22;
  spec.n_routed_experts = 1 << 14;
  spec.num_hidden_layers = 1 << 12;
  EXPECT_EQ(ShardBytes(spec, *PlanShard(spec, {}, 0), {}), UINT64_MAX);
}

// Lowers the limit of the address space (ulimit -v) to what is mapped and
// `more` bytes, while in scope.
class AddressSpaceLimit {
 public:
  explicit AddressSpaceLimit(uint64_t more) {
    RF_CHECK(getrlimit(RLIMIT_AS, &old_) == 0);
    uint64_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    rlimit limit = old_;
    limit.rlim_cur = pages * sysconf(_SC_PAGESIZE) + more;
    RF_CHECK(setrlimit(RLIMIT_AS, &limit) == 0);
  }
  ~AddressSpaceLimit() { setrlimit(RLIMIT_AS, &old_); }

 private:
  rlimit old_ = {};
};

TEST(ShardLoaderTest, AMatrixThatDoesNotFitIsAnErrorWithItsSize) {
  if (testing::kSanitized) {
    GTEST_SKIP() << "a sanitizer's shadow is beyond every limit";
  }
  ModelSpec spec = testing::TinyV2LiteSpec();
  spec.vocab_size = 1 << 18;
  spec.hidden_size = 1 << 13;
  const testing::TempDir dir;
  testing::WriteHollowModel(dir.path(), spec);
  const auto checkpoint = cluster::OpenCheckpoint(dir.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  const auto plan = cluster::PlanShard(spec, {}, /*rank=*/0);
  ASSERT_TRUE(plan.ok()) << plan.status();
  kernels::ThreadPool pool(1);
  const AddressSpaceLimit limit(uint64_t{1} << 30);
  EXPECT_EQ(LoadShard(**checkpoint, spec, *plan, {}, pool, Ignore).status(),
            absl::ResourceExhaustedError(
                "model.embed_tokens.weight: memory: the system refuses "
                "4294967296 bytes"));
}

}  // namespace
}  // namespace ringfleet::worker
