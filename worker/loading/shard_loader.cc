// SPDX-License-Identifier: Apache-2.0
#include "worker/loading/shard_loader.h"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cluster/process/status_macros.h"
#include "worker/loading/shard_parts.h"
#include "worker/loading/tensor_reader.h"

namespace ringfleet::worker {
namespace {

using cluster::Checkpoint;
using cluster::ModelSpec;
using cluster::Range;
using cluster::ShardPlan;
using kernels::WeightForm;
using kernels::WeightMatrix;

Range Scale(Range range, int factor) {
  return {range.begin * factor, range.end * factor};
}

// Floats of kv_b that are held at a time to be transposed: 8 MiB, 16 heads of
// the published models.
constexpr int64_t kMaxHeldFloats = int64_t{2} << 20;

class Loader {
 public:
  Loader(const Checkpoint& checkpoint, const ModelSpec& spec,
         const ShardPlan& plan, const LoadOptions& options,
         kernels::ThreadPool& pool, LoadProgressCallback progress,
         uint64_t bytes_total, const PackedShard* packed,
         std::vector<PackedPart>* parts)
      : checkpoint_(checkpoint),
        spec_(spec),
        plan_(plan),
        options_(options),
        pool_(pool),
        progress_(progress),
        packed_(packed),
        parts_(parts),
        bytes_total_(bytes_total),
        arena_(bytes_total),
        reader_(checkpoint, spec, pool,
                [this](uint64_t bytes) { return Advance(bytes); }) {}

  absl::Status Load(Weights* weights) {
    RF_RETURN_IF_ERROR(Advance(0));
    const int hidden = spec_.hidden_size;
    RF_RETURN_IF_ERROR(Matrix({.name = kEmbedding,
                               .shape = {spec_.vocab_size, hidden},
                               .rows = {0, spec_.vocab_size},
                               .columns = {0, hidden}},
                              EmbeddingForm(options_, &checkpoint_),
                              &weights->embedding));
    weights->layers.resize(spec_.num_hidden_layers);
    for (int i = 0; i < spec_.num_hidden_layers; ++i) {
      RF_RETURN_IF_ERROR(Layer(i, spec_.IsMoeLayer(i), &weights->layers[i]));
    }
    RF_RETURN_IF_ERROR(
        Vector("model.norm.weight", hidden, &weights->final_norm));
    RF_RETURN_IF_ERROR(Matrix(
        {.name = spec_.tie_word_embeddings ? kEmbedding : "lm_head.weight",
         .shape = {spec_.vocab_size, hidden},
         .rows = plan_.vocab,
         .columns = {0, hidden}},
        options_.form, &weights->head));
    if (HasMtp(spec_, options_, &checkpoint_)) {
      RF_RETURN_IF_ERROR(Mtp(&weights->mtp.emplace_back()));
    }
    weights->bytes = bytes_done_;
    if (packed_ != nullptr && next_ != packed_->size()) {
      return absl::DataLossError(absl::StrCat(
          packed_->path(), ": ", packed_->size(), " matrices, want ", next_));
    }
    return absl::OkStatus();
  }

  absl::Status Expert(int layer, int expert, MlpWeights* out) {
    return Mlp(absl::StrCat(LayerPrefix(layer), "mlp.experts.", expert, "."),
               spec_.moe_intermediate_size, plan_.expert_columns,
               ExpertForm(options_), out);
  }

 private:
  static std::string LayerPrefix(int layer) {
    return absl::StrCat("model.layers.", layer, ".");
  }

  absl::Status Advance(uint64_t bytes) {
    bytes_done_ += bytes;
    return progress_(bytes_done_, bytes_total_);
  }

  absl::Status Matrix(const TensorSlice& slice, WeightForm form,
                      WeightMatrix* matrix) {
    if (packed_ != nullptr) {
      return Take(slice.name, form, slice.rows.size(), slice.columns.size(),
                  matrix);
    }
    RF_ASSIGN_OR_RETURN(*matrix, reader_.ReadMatrix(slice, form, arena_));
    Note(slice.name, *matrix);
    return absl::OkStatus();
  }

  // The next matrix of the packed shard.
  absl::Status Take(absl::string_view name, WeightForm form, int64_t rows,
                    int64_t columns, WeightMatrix* matrix) {
    if (next_ == packed_->size()) {
      return absl::DataLossError(
          absl::StrCat(packed_->path(), ": ends before ", name));
    }
    RF_ASSIGN_OR_RETURN(*matrix,
                        packed_->Matrix(next_++, name, form, rows, columns));
    return Advance(matrix->bytes());
  }

  void Note(absl::string_view name, const WeightMatrix& matrix) {
    if (parts_ == nullptr) return;
    parts_->push_back({.name = std::string(name),
                       .form = matrix.form(),
                       .rows = matrix.rows(),
                       .columns = matrix.columns(),
                       .data = matrix.data(),
                       .bytes = matrix.bytes()});
  }

  // The rows `rows` of a product [num_rows, num_columns].
  absl::Status Rows(std::string name, int num_rows, Range rows, int num_columns,
                    WeightForm form, WeightMatrix* matrix) {
    return Matrix({.name = std::move(name),
                   .shape = {num_rows, num_columns},
                   .rows = rows,
                   .columns = {0, num_columns},
                   .may_be_fp8 = true},
                  form, matrix);
  }

  absl::Status Columns(std::string name, int num_rows, int num_columns,
                       Range columns, WeightForm form, WeightMatrix* matrix) {
    return Matrix({.name = std::move(name),
                   .shape = {num_rows, num_columns},
                   .rows = {0, num_rows},
                   .columns = columns,
                   .may_be_fp8 = true},
                  form, matrix);
  }

  // kv_b, and W_UK of each head transposed: row h * r + i, column j takes row
  // h * (dn + dv) + j, column i of kv_b. Both are rounded from what is stored.
  absl::Status KeyValueProducts(const std::string& name,
                                AttentionWeights* out) {
    const int64_t rank = spec_.kv_lora_rank;
    const int64_t nope = spec_.qk_nope_head_dim;
    const int64_t head_rows = nope + spec_.v_head_dim;
    const int64_t heads = plan_.heads.size();
    const std::string transposed = absl::StrCat(name, " (W_UK transposed)");
    if (packed_ != nullptr) {
      RF_RETURN_IF_ERROR(
          Take(name, options_.form, heads * head_rows, rank, &out->kv_b));
      return Take(transposed, options_.form, heads * rank, nope,
                  &out->uk_transposed);
    }
    RF_ASSIGN_OR_RETURN(
        out->kv_b,
        WeightMatrix::Create(options_.form, heads * head_rows, rank, arena_));
    RF_ASSIGN_OR_RETURN(
        out->uk_transposed,
        WeightMatrix::Create(options_.form, heads * rank, nope, arena_));
    const int64_t held = std::clamp<int64_t>(
        kMaxHeldFloats / (head_rows * rank), 1, std::max<int64_t>(heads, 1));
    std::vector<float> floats(heads == 0 ? 0 : held * head_rows * rank);
    for (int64_t head = 0; head < heads; head += held) {
      const int64_t count = std::min(held, heads - head);
      const int64_t first_row = head * head_rows;
      const int begin =
          static_cast<int>(plan_.heads.begin * head_rows + first_row);
      RF_RETURN_IF_ERROR(reader_.ReadRows(
          {.name = name,
           .shape = {spec_.num_attention_heads * head_rows, rank},
           .rows = {begin, begin + static_cast<int>(count * head_rows)},
           .columns = {0, spec_.kv_lora_rank},
           .may_be_fp8 = true},
          options_.form, /*stored_bytes_per_row=*/0,
          [&](int64_t row, const float* values) {
            out->kv_b.SetRow(first_row + row, values);
            std::copy_n(values, rank, floats.data() + row * rank);
          }));
      pool_.ParallelFor(count * rank, 1, [&](size_t first, size_t last) {
        std::vector<float> column(nope);
        for (size_t i = first; i < last; ++i) {
          const float* uk = floats.data() + i / rank * head_rows * rank;
          for (int64_t j = 0; j < nope; ++j)
            column[j] = uk[j * rank + i % rank];
          out->uk_transposed.SetRow(head * rank + i, column.data());
        }
      });
    }
    Note(name, out->kv_b);
    Note(transposed, out->uk_transposed);
    return Advance(out->kv_b.bytes() + out->uk_transposed.bytes());
  }

  absl::Status Vector(const std::string& name, int size,
                      std::vector<float>* vector) {
    if (packed_ != nullptr) {
      WeightMatrix matrix;
      RF_RETURN_IF_ERROR(Take(name, WeightForm::kF32Rows, 1, size, &matrix));
      vector->resize(size);
      matrix.GetRow(0, vector->data());
      return absl::OkStatus();
    }
    RF_ASSIGN_OR_RETURN(*vector, reader_.ReadFloats({.name = name,
                                                     .shape = {size},
                                                     .rows = {0, 1},
                                                     .columns = {0, size}}));
    if (parts_ != nullptr) {
      parts_->push_back({.name = name,
                         .form = WeightForm::kF32Rows,
                         .rows = 1,
                         .columns = vector->size(),
                         .data = reinterpret_cast<const char*>(vector->data()),
                         .bytes = vector->size() * sizeof(float)});
    }
    return absl::OkStatus();
  }

  absl::Status Attention(const std::string& prefix, AttentionWeights* out) {
    const int hidden = spec_.hidden_size;
    const int heads = spec_.num_attention_heads;
    const int q_dim = spec_.qk_head_dim();
    const int q_rank = spec_.q_lora_rank;
    const int kv_rank = spec_.kv_lora_rank;
    const auto name = [&prefix](absl::string_view part) {
      return absl::StrCat(prefix, part, ".weight");
    };
    if (q_rank > 0) {
      RF_RETURN_IF_ERROR(Rows(name("q_a_proj"), q_rank, {0, q_rank}, hidden,
                              options_.form, &out->q_a));
      RF_RETURN_IF_ERROR(Vector(name("q_a_layernorm"), q_rank, &out->q_a_norm));
    }
    RF_RETURN_IF_ERROR(Rows(name(q_rank > 0 ? "q_b_proj" : "q_proj"),
                            heads * q_dim, Scale(plan_.heads, q_dim),
                            q_rank > 0 ? q_rank : hidden, options_.form,
                            &out->q_b));
    RF_RETURN_IF_ERROR(Rows(name("kv_a_proj_with_mqa"), spec_.cache_row(),
                            {0, spec_.cache_row()}, hidden, options_.form,
                            &out->kv_a));
    RF_RETURN_IF_ERROR(
        Vector(name("kv_a_layernorm"), kv_rank, &out->kv_a_norm));
    RF_RETURN_IF_ERROR(KeyValueProducts(name("kv_b_proj"), out));
    return Columns(name("o_proj"), hidden, heads * spec_.v_head_dim,
                   Scale(plan_.heads, spec_.v_head_dim), options_.form,
                   &out->o);
  }

  absl::Status Mlp(const std::string& prefix, int width, Range columns,
                   WeightForm form, MlpWeights* out) {
    const int hidden = spec_.hidden_size;
    RF_RETURN_IF_ERROR(Rows(absl::StrCat(prefix, "gate_proj.weight"), width,
                            columns, hidden, form, &out->gate));
    RF_RETURN_IF_ERROR(Rows(absl::StrCat(prefix, "up_proj.weight"), width,
                            columns, hidden, form, &out->up));
    return Columns(absl::StrCat(prefix, "down_proj.weight"), hidden, width,
                   columns, form, &out->down);
  }

  absl::Status Moe(int layer, const std::string& prefix, MoeWeights* out) {
    const int experts = spec_.n_routed_experts;
    const int hidden = spec_.hidden_size;
    RF_RETURN_IF_ERROR(Matrix({.name = absl::StrCat(prefix, "gate.weight"),
                               .shape = {experts, hidden},
                               .rows = {0, experts},
                               .columns = {0, hidden}},
                              WeightForm::kF32Rows, &out->router));
    if (spec_.topk_method == cluster::TopkMethod::kNoauxTc) {
      RF_RETURN_IF_ERROR(
          Vector(absl::StrCat(prefix, "gate.e_score_correction_bias"), experts,
                 &out->router_bias));
    }
    const std::vector<int32_t> held = HeldExperts(plan_, options_, layer);
    out->experts.resize(held.size());
    out->expert_form = ExpertForm(options_);
    for (size_t i = 0; i < held.size(); ++i) {
      RF_RETURN_IF_ERROR(Expert(layer, held[i], &out->experts[i]));
    }
    if (spec_.n_shared_experts == 0) {
      out->shared.gate = WeightMatrix(options_.form, 0, hidden);
      out->shared.up = WeightMatrix(options_.form, 0, hidden);
      out->shared.down = WeightMatrix(options_.form, hidden, 0);
      return absl::OkStatus();
    }
    return Mlp(absl::StrCat(prefix, "shared_experts."),
               spec_.n_shared_experts * spec_.moe_intermediate_size,
               plan_.shared_columns, options_.form, &out->shared);
  }

  absl::Status Layer(int layer, bool is_moe, LayerWeights* out) {
    const std::string prefix = LayerPrefix(layer);
    RF_RETURN_IF_ERROR(Vector(absl::StrCat(prefix, "input_layernorm.weight"),
                              spec_.hidden_size, &out->input_norm));
    RF_RETURN_IF_ERROR(
        Vector(absl::StrCat(prefix, "post_attention_layernorm.weight"),
               spec_.hidden_size, &out->post_attention_norm));
    RF_RETURN_IF_ERROR(
        Attention(absl::StrCat(prefix, "self_attn."), &out->attention));
    out->is_moe = is_moe;
    const std::string mlp = absl::StrCat(prefix, "mlp.");
    if (is_moe) return Moe(layer, mlp, &out->moe);
    return Mlp(mlp, spec_.intermediate_size, plan_.dense_columns, options_.form,
               &out->dense);
  }

  absl::Status Mtp(MtpWeights* out) {
    const std::string prefix = LayerPrefix(spec_.num_hidden_layers);
    const int hidden = spec_.hidden_size;
    RF_RETURN_IF_ERROR(
        Vector(absl::StrCat(prefix, "enorm.weight"), hidden, &out->enorm));
    RF_RETURN_IF_ERROR(
        Vector(absl::StrCat(prefix, "hnorm.weight"), hidden, &out->hnorm));
    RF_RETURN_IF_ERROR(Matrix({.name = absl::StrCat(prefix, "eh_proj.weight"),
                               .shape = {hidden, 2 * hidden},
                               .rows = {0, hidden},
                               .columns = {0, 2 * hidden}},
                              options_.form, &out->eh_proj));
    RF_RETURN_IF_ERROR(Layer(spec_.num_hidden_layers,
                             spec_.n_routed_experts > 0, &out->layer));
    return Vector(absl::StrCat(prefix, "shared_head.norm.weight"), hidden,
                  &out->head_norm);
  }

  const Checkpoint& checkpoint_;
  const ModelSpec& spec_;
  const ShardPlan& plan_;
  const LoadOptions& options_;
  kernels::ThreadPool& pool_;
  const LoadProgressCallback progress_;
  const PackedShard* const packed_;       // Instead of the checkpoint, or null.
  std::vector<PackedPart>* const parts_;  // Or null.
  size_t next_ = 0;                       // Of packed_.
  const uint64_t bytes_total_;
  uint64_t bytes_done_ = 0;
  kernels::BufferArena arena_;
  TensorReader reader_;
};

}  // namespace

absl::StatusOr<Weights> LoadShard(const Checkpoint& checkpoint,
                                  const ModelSpec& spec, const ShardPlan& plan,
                                  const LoadOptions& options,
                                  kernels::ThreadPool& pool,
                                  LoadProgressCallback progress,
                                  std::vector<PackedPart>* parts) {
  Weights weights;
  Loader loader(checkpoint, spec, plan, options, pool, progress,
                ShardBytes(spec, plan, options, &checkpoint),
                /*packed=*/nullptr, parts);
  RF_RETURN_IF_ERROR(loader.Load(&weights));
  return weights;
}

absl::StatusOr<MlpWeights> LoadExpert(const Checkpoint& checkpoint,
                                      const ModelSpec& spec,
                                      const ShardPlan& plan,
                                      const LoadOptions& options, int layer,
                                      int expert, kernels::ThreadPool& pool) {
  MlpWeights weights;
  const auto silent = [](uint64_t, uint64_t) { return absl::OkStatus(); };
  // Each matrix in memory of its own, since the expert may move on.
  Loader loader(checkpoint, spec, plan, options, pool, silent,
                /*bytes_total=*/0, /*packed=*/nullptr, /*parts=*/nullptr);
  RF_RETURN_IF_ERROR(loader.Expert(layer, expert, &weights));
  return weights;
}

absl::StatusOr<Weights> MapShard(const PackedShard& packed,
                                 const Checkpoint& checkpoint,
                                 const ModelSpec& spec, const ShardPlan& plan,
                                 const LoadOptions& options,
                                 kernels::ThreadPool& pool) {
  Weights weights;
  const auto silent = [](uint64_t, uint64_t) { return absl::OkStatus(); };
  Loader loader(checkpoint, spec, plan, options, pool, silent,
                /*bytes_total=*/0, &packed, /*parts=*/nullptr);
  RF_RETURN_IF_ERROR(loader.Load(&weights));
  return weights;
}

}  // namespace ringfleet::worker
