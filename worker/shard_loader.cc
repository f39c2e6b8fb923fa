// SPDX-License-Identifier: Apache-2.0
#include "worker/shard_loader.h"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cluster/status_macros.h"
#include "worker/tensor_reader.h"

namespace ringfleet::worker {
namespace {

using cluster::Checkpoint;
using cluster::ModelSpec;
using cluster::Range;
using cluster::ShardPlan;
using kernels::Dtype;
using kernels::WeightMatrix;

constexpr char kEmbedding[] = "model.embed_tokens.weight";

bool HasMtp(const ModelSpec& spec, const LoadOptions& options,
            const Checkpoint* checkpoint) {
  if (!options.mtp || spec.num_nextn_predict_layers == 0) return false;
  if (checkpoint == nullptr) return true;
  const std::string layer =
      absl::StrCat("model.layers.", spec.num_hidden_layers, ".");
  return checkpoint->Contains(absl::StrCat(layer, "eh_proj.weight")) ||
         checkpoint->Contains(absl::StrCat(layer, "enorm.weight")) ||
         checkpoint->Contains(absl::StrCat(layer, "hnorm.weight"));
}

// Rows are looked up, not multiplied, so nothing is gained by widening bf16.
Dtype EmbeddingDtype(const LoadOptions& options, const Checkpoint* checkpoint) {
  if (options.dtype == Dtype::kBf16 || checkpoint == nullptr) {
    return Dtype::kBf16;
  }
  const auto info = checkpoint->Find(kEmbedding);
  return !info.ok() || (*info)->dtype == Dtype::kBf16 ? Dtype::kBf16
                                                      : Dtype::kF32;
}

Range Scale(Range range, int factor) {
  return {range.begin * factor, range.end * factor};
}

// W_UK of each head, transposed: row h * r + i, column j takes row
// h * (dn + dv) + j, column i of kv_b.
absl::StatusOr<WeightMatrix> TransposeUk(const ModelSpec& spec,
                                         const WeightMatrix& kv_b,
                                         kernels::ThreadPool& pool) {
  constexpr size_t kTile = 16;  // Rows of kv_b at a time: 64 B of each result.
  const size_t rank = spec.kv_lora_rank;
  const size_t nope = spec.qk_nope_head_dim;
  const size_t head_rows = nope + spec.v_head_dim;
  const size_t heads = kv_b.rows() / head_rows;
  RF_ASSIGN_OR_RETURN(WeightMatrix uk,
                      WeightMatrix::Create(kv_b.dtype(), heads * rank, nope));
  pool.ParallelFor(heads, 1, [&](size_t begin, size_t end) {
    std::vector<float> rows(kTile * rank);
    for (size_t head = begin; head < end; ++head) {
      for (size_t j = 0; j < nope; j += kTile) {
        const size_t count = std::min(kTile, nope - j);
        for (size_t k = 0; k < count; ++k) {
          kv_b.GetRow(head * head_rows + j + k, rows.data() + k * rank);
        }
        for (size_t i = 0; i < rank; ++i) {
          float column[kTile];
          for (size_t k = 0; k < count; ++k) column[k] = rows[k * rank + i];
          uk.Set(head * rank + i, j, column, count);
        }
      }
    }
  });
  return uk;
}

class Loader {
 public:
  Loader(const Checkpoint& checkpoint, const ModelSpec& spec,
         const ShardPlan& plan, const LoadOptions& options,
         kernels::ThreadPool& pool, LoadProgressCallback progress)
      : checkpoint_(checkpoint),
        spec_(spec),
        plan_(plan),
        options_(options),
        pool_(pool),
        progress_(progress),
        bytes_total_(ShardBytes(spec, plan, options, &checkpoint)),
        reader_(checkpoint, spec, pool,
                [this](uint64_t bytes) { return Advance(bytes); }) {}

  absl::Status Load(Weights* weights) {
    RF_RETURN_IF_ERROR(Advance(0));
    const int hidden = spec_.hidden_size;
    RF_RETURN_IF_ERROR(Matrix({.name = kEmbedding,
                               .shape = {spec_.vocab_size, hidden},
                               .rows = {0, spec_.vocab_size},
                               .columns = {0, hidden}},
                              EmbeddingDtype(options_, &checkpoint_),
                              &weights->embedding));
    weights->layers.resize(spec_.num_hidden_layers);
    for (int i = 0; i < spec_.num_hidden_layers; ++i) {
      RF_RETURN_IF_ERROR(Layer(absl::StrCat("model.layers.", i, "."),
                               spec_.IsMoeLayer(i), &weights->layers[i]));
    }
    RF_RETURN_IF_ERROR(
        Vector("model.norm.weight", hidden, &weights->final_norm));
    RF_RETURN_IF_ERROR(Matrix(
        {.name = spec_.tie_word_embeddings ? kEmbedding : "lm_head.weight",
         .shape = {spec_.vocab_size, hidden},
         .rows = plan_.vocab,
         .columns = {0, hidden}},
        options_.dtype, &weights->head));
    if (HasMtp(spec_, options_, &checkpoint_)) {
      RF_RETURN_IF_ERROR(Mtp(&weights->mtp.emplace_back()));
    }
    weights->bytes = bytes_done_;
    return absl::OkStatus();
  }

 private:
  absl::Status Advance(uint64_t bytes) {
    bytes_done_ += bytes;
    return progress_(bytes_done_, bytes_total_);
  }

  absl::Status Matrix(const TensorSlice& slice, Dtype dtype,
                      WeightMatrix* matrix) {
    RF_ASSIGN_OR_RETURN(*matrix, reader_.ReadMatrix(slice, dtype));
    return absl::OkStatus();
  }

  // The rows `rows` of a product [num_rows, num_columns].
  absl::Status Rows(std::string name, int num_rows, Range rows, int num_columns,
                    WeightMatrix* matrix) {
    return Matrix({.name = std::move(name),
                   .shape = {num_rows, num_columns},
                   .rows = rows,
                   .columns = {0, num_columns},
                   .may_be_fp8 = true},
                  options_.dtype, matrix);
  }

  absl::Status Columns(std::string name, int num_rows, int num_columns,
                       Range columns, WeightMatrix* matrix) {
    return Matrix({.name = std::move(name),
                   .shape = {num_rows, num_columns},
                   .rows = {0, num_rows},
                   .columns = columns,
                   .may_be_fp8 = true},
                  options_.dtype, matrix);
  }

  absl::Status Vector(std::string name, int size, std::vector<float>* vector) {
    RF_ASSIGN_OR_RETURN(*vector, reader_.ReadFloats({.name = std::move(name),
                                                     .shape = {size},
                                                     .rows = {0, 1},
                                                     .columns = {0, size}}));
    return absl::OkStatus();
  }

  absl::Status Attention(const std::string& prefix, AttentionWeights* out) {
    const int hidden = spec_.hidden_size;
    const int heads = spec_.num_attention_heads;
    const int q_dim = spec_.qk_head_dim();
    const int kv_dim = spec_.qk_nope_head_dim + spec_.v_head_dim;
    const int q_rank = spec_.q_lora_rank;
    const int kv_rank = spec_.kv_lora_rank;
    const auto name = [&prefix](absl::string_view part) {
      return absl::StrCat(prefix, part, ".weight");
    };
    if (q_rank > 0) {
      RF_RETURN_IF_ERROR(
          Rows(name("q_a_proj"), q_rank, {0, q_rank}, hidden, &out->q_a));
      RF_RETURN_IF_ERROR(Vector(name("q_a_layernorm"), q_rank, &out->q_a_norm));
    }
    RF_RETURN_IF_ERROR(Rows(name(q_rank > 0 ? "q_b_proj" : "q_proj"),
                            heads * q_dim, Scale(plan_.heads, q_dim),
                            q_rank > 0 ? q_rank : hidden, &out->q_b));
    RF_RETURN_IF_ERROR(Rows(name("kv_a_proj_with_mqa"), spec_.cache_row(),
                            {0, spec_.cache_row()}, hidden, &out->kv_a));
    RF_RETURN_IF_ERROR(
        Vector(name("kv_a_layernorm"), kv_rank, &out->kv_a_norm));
    RF_RETURN_IF_ERROR(Rows(name("kv_b_proj"), heads * kv_dim,
                            Scale(plan_.heads, kv_dim), kv_rank, &out->kv_b));
    RF_ASSIGN_OR_RETURN(out->uk_transposed,
                        TransposeUk(spec_, out->kv_b, pool_));
    RF_RETURN_IF_ERROR(Advance(out->uk_transposed.bytes()));
    return Columns(name("o_proj"), hidden, heads * spec_.v_head_dim,
                   Scale(plan_.heads, spec_.v_head_dim), &out->o);
  }

  absl::Status Mlp(const std::string& prefix, int width, Range columns,
                   MlpWeights* out) {
    const int hidden = spec_.hidden_size;
    RF_RETURN_IF_ERROR(Rows(absl::StrCat(prefix, "gate_proj.weight"), width,
                            columns, hidden, &out->gate));
    RF_RETURN_IF_ERROR(Rows(absl::StrCat(prefix, "up_proj.weight"), width,
                            columns, hidden, &out->up));
    return Columns(absl::StrCat(prefix, "down_proj.weight"), hidden, width,
                   columns, &out->down);
  }

  absl::Status Moe(const std::string& prefix, MoeWeights* out) {
    const int experts = spec_.n_routed_experts;
    const int hidden = spec_.hidden_size;
    RF_ASSIGN_OR_RETURN(
        out->router,
        reader_.ReadMatrix({.name = absl::StrCat(prefix, "gate.weight"),
                            .shape = {experts, hidden},
                            .rows = {0, experts},
                            .columns = {0, hidden}},
                           kernels::Dtype::kF32));
    if (spec_.topk_method == cluster::TopkMethod::kNoauxTc) {
      RF_RETURN_IF_ERROR(
          Vector(absl::StrCat(prefix, "gate.e_score_correction_bias"), experts,
                 &out->router_bias));
    }
    out->experts.resize(plan_.experts.size());
    for (int e = plan_.experts.begin; e < plan_.experts.end; ++e) {
      RF_RETURN_IF_ERROR(Mlp(absl::StrCat(prefix, "experts.", e, "."),
                             spec_.moe_intermediate_size, plan_.expert_columns,
                             &out->experts[e - plan_.experts.begin]));
    }
    if (spec_.n_shared_experts == 0) {
      out->shared.gate = WeightMatrix(options_.dtype, 0, hidden);
      out->shared.up = WeightMatrix(options_.dtype, 0, hidden);
      out->shared.down = WeightMatrix(options_.dtype, hidden, 0);
      return absl::OkStatus();
    }
    return Mlp(absl::StrCat(prefix, "shared_experts."),
               spec_.n_shared_experts * spec_.moe_intermediate_size,
               plan_.shared_columns, &out->shared);
  }

  absl::Status Layer(const std::string& prefix, bool is_moe,
                     LayerWeights* out) {
    RF_RETURN_IF_ERROR(Vector(absl::StrCat(prefix, "input_layernorm.weight"),
                              spec_.hidden_size, &out->input_norm));
    RF_RETURN_IF_ERROR(
        Vector(absl::StrCat(prefix, "post_attention_layernorm.weight"),
               spec_.hidden_size, &out->post_attention_norm));
    RF_RETURN_IF_ERROR(
        Attention(absl::StrCat(prefix, "self_attn."), &out->attention));
    out->is_moe = is_moe;
    const std::string mlp = absl::StrCat(prefix, "mlp.");
    if (is_moe) return Moe(mlp, &out->moe);
    return Mlp(mlp, spec_.intermediate_size, plan_.dense_columns, &out->dense);
  }

  absl::Status Mtp(MtpWeights* out) {
    const std::string prefix =
        absl::StrCat("model.layers.", spec_.num_hidden_layers, ".");
    const int hidden = spec_.hidden_size;
    RF_RETURN_IF_ERROR(
        Vector(absl::StrCat(prefix, "enorm.weight"), hidden, &out->enorm));
    RF_RETURN_IF_ERROR(
        Vector(absl::StrCat(prefix, "hnorm.weight"), hidden, &out->hnorm));
    RF_RETURN_IF_ERROR(Matrix({.name = absl::StrCat(prefix, "eh_proj.weight"),
                               .shape = {hidden, 2 * hidden},
                               .rows = {0, hidden},
                               .columns = {0, 2 * hidden}},
                              options_.dtype, &out->eh_proj));
    RF_RETURN_IF_ERROR(Layer(prefix, spec_.n_routed_experts > 0, &out->layer));
    return Vector(absl::StrCat(prefix, "shared_head.norm.weight"), hidden,
                  &out->head_norm);
  }

  const Checkpoint& checkpoint_;
  const ModelSpec& spec_;
  const ShardPlan& plan_;
  const LoadOptions& options_;
  kernels::ThreadPool& pool_;
  const LoadProgressCallback progress_;
  const uint64_t bytes_total_;
  uint64_t bytes_done_ = 0;
  TensorReader reader_;
};

// Adds up sizes; sticks to the maximum instead of overflowing.
class Tally {
 public:
  void Add(uint64_t count, uint64_t rows, uint64_t columns, uint64_t bytes) {
    uint64_t product = 0;
    if (__builtin_mul_overflow(rows, columns, &product) ||
        __builtin_mul_overflow(product, count, &product) ||
        __builtin_mul_overflow(product, bytes, &product) ||
        __builtin_add_overflow(total_, product, &total_)) {
      total_ = std::numeric_limits<uint64_t>::max();
      overflow_ = true;
    }
  }
  uint64_t total() const {
    return overflow_ ? std::numeric_limits<uint64_t>::max() : total_;
  }

 private:
  uint64_t total_ = 0;
  bool overflow_ = false;
};

void AddLayer(const ModelSpec& spec, const ShardPlan& plan, uint64_t element,
              bool is_moe, Tally* tally) {
  const uint64_t hidden = spec.hidden_size;
  const uint64_t heads = plan.heads.size();
  const uint64_t q_rank = spec.q_lora_rank;
  const uint64_t kv_rank = spec.kv_lora_rank;
  tally->Add(2, 1, hidden, sizeof(float));  // Norms.
  tally->Add(1, q_rank, hidden, element);   // q_a, where there is one.
  tally->Add(1, 1, q_rank, sizeof(float));
  tally->Add(heads, spec.qk_head_dim(), q_rank > 0 ? q_rank : hidden, element);
  tally->Add(1, spec.cache_row(), hidden, element);
  tally->Add(1, 1, kv_rank, sizeof(float));
  tally->Add(heads, spec.qk_nope_head_dim + spec.v_head_dim, kv_rank, element);
  tally->Add(heads, spec.qk_nope_head_dim, kv_rank, element);  // Transposed.
  tally->Add(heads, spec.v_head_dim, hidden, element);
  if (!is_moe) {
    tally->Add(3, plan.dense_columns.size(), hidden, element);
    return;
  }
  tally->Add(1, spec.n_routed_experts, hidden, sizeof(float));
  if (spec.topk_method == cluster::TopkMethod::kNoauxTc) {
    tally->Add(1, 1, spec.n_routed_experts, sizeof(float));
  }
  tally->Add(3 * static_cast<uint64_t>(plan.experts.size()),
             plan.expert_columns.size(), hidden, element);
  tally->Add(3, plan.shared_columns.size(), hidden, element);
}

}  // namespace

absl::StatusOr<Weights> LoadShard(const Checkpoint& checkpoint,
                                  const ModelSpec& spec, const ShardPlan& plan,
                                  const LoadOptions& options,
                                  kernels::ThreadPool& pool,
                                  LoadProgressCallback progress) {
  if (options.dtype != Dtype::kF32 && options.dtype != Dtype::kBf16) {
    return absl::InvalidArgumentError(
        absl::StrCat("weights of dtype ", kernels::DtypeName(options.dtype),
                     ": want f32 or bf16"));
  }
  Weights weights;
  Loader loader(checkpoint, spec, plan, options, pool, progress);
  RF_RETURN_IF_ERROR(loader.Load(&weights));
  return weights;
}

uint64_t ShardBytes(const ModelSpec& spec, const ShardPlan& plan,
                    const LoadOptions& options, const Checkpoint* checkpoint) {
  const uint64_t element = kernels::DtypeBytes(options.dtype);
  const uint64_t hidden = spec.hidden_size;
  Tally tally;
  tally.Add(1, spec.vocab_size, hidden,
            kernels::DtypeBytes(EmbeddingDtype(options, checkpoint)));
  for (int i = 0; i < spec.num_hidden_layers; ++i) {
    AddLayer(spec, plan, element, spec.IsMoeLayer(i), &tally);
  }
  tally.Add(1, 1, hidden, sizeof(float));
  tally.Add(1, plan.vocab.size(), hidden, element);
  if (HasMtp(spec, options, checkpoint)) {
    tally.Add(3, 1, hidden, sizeof(float));
    tally.Add(2, hidden, hidden, element);
    AddLayer(spec, plan, element, spec.n_routed_experts > 0, &tally);
  }
  return tally.total();
}

}  // namespace ringfleet::worker
