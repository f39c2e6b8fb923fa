// SPDX-License-Identifier: Apache-2.0
#include "worker/loading/shard_loader.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cluster/model/model_tensors.h"
#include "cluster/model/shard_sizes.h"
#include "cluster/model/stored_tensor.h"
#include "cluster/model/unread_tensors.h"
#include "cluster/process/status_macros.h"
#include "kernels/check.h"
#include "worker/loading/tensor_reader.h"

namespace ringfleet::worker {
namespace {

using cluster::MemoryForm;
using cluster::ModelSpec;
using cluster::ModelTensor;
using cluster::ShardPlan;
using cluster::TensorGroup;
using cluster::TensorRole;
using cluster::TensorSlice;
using cluster::TensorSource;
using kernels::WeightForm;
using kernels::WeightMatrix;

// Floats of kv_b that are held at a time to be transposed: 8 MiB, 16 heads of
// the published models.
constexpr int64_t kMaxHeldFloats = int64_t{2} << 20;

constexpr char kEmbedding[] = "model.embed_tokens.weight";

// True if the multi-token prediction layer is loaded. Without a source: as in
// the published files.
bool LoadsMtp(const ModelSpec& spec, const LoadOptions& options,
              const TensorSource* source) {
  if (!options.mtp || spec.num_nextn_predict_layers == 0) return false;
  if (source == nullptr) return true;
  const std::string layer = cluster::LayerPrefix(spec.num_hidden_layers);
  return source->Contains(absl::StrCat(layer, "eh_proj.weight")) ||
         source->Contains(absl::StrCat(layer, "enorm.weight")) ||
         source->Contains(absl::StrCat(layer, "hnorm.weight"));
}

cluster::WeightForms FormsFor(const LoadOptions& options,
                              const TensorSource* source) {
  cluster::WeightForms forms = {
      .products = options.form,
      .experts = options.expert_form.value_or(options.form),
      .native = options.native};
  // Rows are looked up, not multiplied, so nothing is gained by widening bf16.
  const bool f32 = options.form == WeightForm::kF32 ||
                   options.form == WeightForm::kReference;
  if (f32 && source != nullptr) {
    const auto info = source->Find(kEmbedding);
    if (info.ok() && (*info)->dtype != kernels::Dtype::kBf16) {
      forms.embedding = WeightForm::kF32Rows;
    }
  }
  return forms;
}

// Where a tensor goes: one of the two is set.
struct Destination {
  WeightMatrix* matrix = nullptr;
  std::vector<float>* vector = nullptr;
};

// `layer` is null for a tensor of no layer; `mtp` is null outside of the
// multi-token prediction layer; `expert` is null for a tensor of no expert.
Destination DestinationOf(TensorRole role, Weights* weights,
                          LayerWeights* layer, MtpWeights* mtp,
                          MlpWeights* expert) {
  switch (role) {
    case TensorRole::kEmbedding:
      return {.matrix = &weights->embedding};
    case TensorRole::kFinalNorm:
      return {.vector = &weights->final_norm};
    case TensorRole::kHead:
      return {.matrix = &weights->head};
    case TensorRole::kInputNorm:
      return {.vector = &layer->input_norm};
    case TensorRole::kPostAttentionNorm:
      return {.vector = &layer->post_attention_norm};
    case TensorRole::kQA:
      return {.matrix = &layer->attention.q_a};
    case TensorRole::kQANorm:
      return {.vector = &layer->attention.q_a_norm};
    case TensorRole::kQB:
      return {.matrix = &layer->attention.q_b};
    case TensorRole::kKvA:
      return {.matrix = &layer->attention.kv_a};
    case TensorRole::kKvANorm:
      return {.vector = &layer->attention.kv_a_norm};
    case TensorRole::kKvB:
      return {.matrix = &layer->attention.kv_b};
    case TensorRole::kO:
      return {.matrix = &layer->attention.o};
    case TensorRole::kDenseGate:
      return {.matrix = &layer->dense.gate};
    case TensorRole::kDenseUp:
      return {.matrix = &layer->dense.up};
    case TensorRole::kDenseDown:
      return {.matrix = &layer->dense.down};
    case TensorRole::kRouter:
      return {.matrix = &layer->moe.router};
    case TensorRole::kRouterBias:
      return {.vector = &layer->moe.router_bias};
    case TensorRole::kExpertGate:
      return {.matrix = &expert->gate};
    case TensorRole::kExpertUp:
      return {.matrix = &expert->up};
    case TensorRole::kExpertDown:
      return {.matrix = &expert->down};
    case TensorRole::kSharedGate:
      return {.matrix = &layer->moe.shared.gate};
    case TensorRole::kSharedUp:
      return {.matrix = &layer->moe.shared.up};
    case TensorRole::kSharedDown:
      return {.matrix = &layer->moe.shared.down};
    case TensorRole::kMtpEmbeddingNorm:
      return {.vector = &mtp->enorm};
    case TensorRole::kMtpHiddenNorm:
      return {.vector = &mtp->hnorm};
    case TensorRole::kMtpProjection:
      return {.matrix = &mtp->eh_proj};
    case TensorRole::kMtpHeadNorm:
      return {.vector = &mtp->head_norm};
    case TensorRole::kMtpEmbeddingCopy:
    case TensorRole::kMtpHeadCopy:
      break;
  }
  RF_CHECK(false);  // Not loaded.
}

class Loader {
 public:
  Loader(const TensorSource& source, const ModelSpec& spec,
         const ShardPlan& plan, const LoadOptions& options,
         kernels::ThreadPool& pool, LoadProgressCallback progress,
         uint64_t bytes_total, const PackedShard* packed,
         std::vector<PackedPart>* parts)
      : source_(source),
        spec_(spec),
        plan_(plan),
        options_(options),
        forms_(FormsFor(options, &source)),
        pool_(pool),
        progress_(progress),
        packed_(packed),
        parts_(parts),
        bytes_total_(bytes_total),
        arena_(bytes_total),
        reader_(source, pool,
                [this](uint64_t bytes) { return Advance(bytes); }) {}

  absl::Status Load(Weights* weights) {
    const bool mtp = LoadsMtp(spec_, options_, &source_);
    const int used_layers = spec_.num_hidden_layers + (mtp ? 1 : 0);
    RF_RETURN_IF_ERROR(cluster::CheckAllRead(spec_, source_, used_layers));
    RF_RETURN_IF_ERROR(Advance(0));
    weights->layers.resize(spec_.num_hidden_layers);
    for (const TensorGroup& group : cluster::AllTensors(spec_)) {
      if (group.layer >= used_layers) continue;
      RF_RETURN_IF_ERROR(Group(group, weights));
    }
    weights->bytes = bytes_done_;
    if (packed_ != nullptr && next_ != packed_->size()) {
      return absl::DataLossError(absl::StrCat(
          packed_->path(), ": ", packed_->size(), " matrices, want ", next_));
    }
    return absl::OkStatus();
  }

  absl::Status Expert(const TensorGroup& group, int expert, MlpWeights* out) {
    for (const ModelTensor& tensor : group.tensors) {
      if (!tensor.each_expert()) continue;
      const Destination destination =
          DestinationOf(tensor.role, /*weights=*/nullptr, /*layer=*/nullptr,
                        /*mtp=*/nullptr, out);
      RF_RETURN_IF_ERROR(
          Tensor(group, tensor, expert, destination, /*layer=*/nullptr));
    }
    return absl::OkStatus();
  }

 private:
  absl::Status Advance(uint64_t bytes) {
    bytes_done_ += bytes;
    return progress_(bytes_done_, bytes_total_);
  }

  absl::Status Group(const TensorGroup& group, Weights* weights) {
    MtpWeights* mtp = nullptr;
    LayerWeights* layer = nullptr;
    if (group.layer >= spec_.num_hidden_layers) {
      mtp = &weights->mtp.emplace_back();
      layer = &mtp->layer;
    } else if (group.layer >= 0) {
      layer = &weights->layers[group.layer];
    }
    std::vector<int32_t> held;
    if (layer != nullptr) {
      layer->is_moe = group.is_moe;
      if (group.is_moe) {
        held = cluster::HeldExperts(plan_, options_.experts, group.layer);
        Prepare(group, held.size(), &layer->moe);
      }
    }
    for (const auto& [tensor, index] : cluster::InOrder(group, held.size())) {
      if (tensor->memory == MemoryForm::kNotLoaded) continue;
      MlpWeights* expert = index < 0 ? nullptr : &layer->moe.experts[index];
      RF_RETURN_IF_ERROR(Tensor(
          group, *tensor, index < 0 ? 0 : held[index],
          DestinationOf(tensor->role, weights, layer, mtp, expert), layer));
    }
    return absl::OkStatus();
  }

  void Prepare(const TensorGroup& group, size_t num_experts,
               MoeWeights* moe) const {
    const size_t hidden = spec_.hidden_size;
    moe->experts.resize(num_experts);
    for (const ModelTensor& tensor : group.tensors) {
      if (tensor.each_expert()) {
        moe->expert_form = cluster::FormOf(tensor, forms_);
      }
    }
    if (spec_.n_shared_experts > 0) return;
    moe->shared.gate = WeightMatrix(forms_.products, 0, hidden);
    moe->shared.up = WeightMatrix(forms_.products, 0, hidden);
    moe->shared.down = WeightMatrix(forms_.products, hidden, 0);
  }

  absl::Status Tensor(const TensorGroup& group, const ModelTensor& tensor,
                      int expert, const Destination& destination,
                      LayerWeights* layer) {
    const TensorSlice slice =
        cluster::SliceOf(source_, spec_, group, tensor, expert,
                         cluster::LocalSliceOf(tensor, spec_, plan_));
    if (tensor.memory == MemoryForm::kVector) {
      return Vector(slice, destination.vector);
    }
    const WeightForm form = cluster::FormOf(tensor, forms_);
    if (tensor.memory == MemoryForm::kKeyValue) {
      return KeyValueProducts(slice, form, &layer->attention);
    }
    return Matrix(slice, form, destination.matrix);
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

  // kv_b, and W_UK of each head transposed: row h * r + i, column j takes row
  // h * (dn + dv) + j, column i of kv_b. Both are rounded from what is stored.
  absl::Status KeyValueProducts(const TensorSlice& slice, WeightForm form,
                                AttentionWeights* out) {
    const int64_t rank = spec_.kv_lora_rank;
    const int64_t nope = spec_.qk_nope_head_dim;
    const int64_t head_rows = nope + spec_.v_head_dim;
    const int64_t heads = plan_.heads.size();
    const std::string transposed =
        absl::StrCat(slice.name, " (W_UK transposed)");
    if (packed_ != nullptr) {
      RF_RETURN_IF_ERROR(
          Take(slice.name, form, heads * head_rows, rank, &out->kv_b));
      return Take(transposed, form, heads * rank, nope, &out->uk_transposed);
    }
    RF_ASSIGN_OR_RETURN(
        out->kv_b, WeightMatrix::Create(form, heads * head_rows, rank, arena_));
    RF_ASSIGN_OR_RETURN(out->uk_transposed,
                        WeightMatrix::Create(form, heads * rank, nope, arena_));
    const int64_t held = std::clamp<int64_t>(
        kMaxHeldFloats / (head_rows * rank), 1, std::max<int64_t>(heads, 1));
    std::vector<float> floats(heads == 0 ? 0 : held * head_rows * rank);
    for (int64_t head = 0; head < heads; head += held) {
      const int64_t count = std::min(held, heads - head);
      const int64_t first_row = head * head_rows;
      TensorSlice part = slice;
      part.rows.begin += static_cast<int>(first_row);
      part.rows.end = part.rows.begin + static_cast<int>(count * head_rows);
      RF_RETURN_IF_ERROR(reader_.ReadIntoMatrix(
          part, &out->kv_b, first_row, [&](int64_t row, const float* values) {
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
    Note(slice.name, out->kv_b);
    Note(transposed, out->uk_transposed);
    return Advance(out->kv_b.bytes() + out->uk_transposed.bytes());
  }

  absl::Status Vector(const TensorSlice& slice, std::vector<float>* vector) {
    if (packed_ != nullptr) {
      WeightMatrix matrix;
      RF_RETURN_IF_ERROR(Take(slice.name, WeightForm::kF32Rows, 1,
                              slice.columns.size(), &matrix));
      vector->resize(slice.columns.size());
      matrix.GetRow(0, vector->data());
      return absl::OkStatus();
    }
    RF_ASSIGN_OR_RETURN(*vector, reader_.ReadFloats(slice));
    if (parts_ != nullptr) {
      parts_->push_back({.name = slice.name,
                         .form = WeightForm::kF32Rows,
                         .rows = 1,
                         .columns = vector->size(),
                         .data = reinterpret_cast<const char*>(vector->data()),
                         .bytes = vector->size() * sizeof(float)});
    }
    return absl::OkStatus();
  }

  const TensorSource& source_;
  const ModelSpec& spec_;
  const ShardPlan& plan_;
  const LoadOptions& options_;
  const cluster::WeightForms forms_;
  kernels::ThreadPool& pool_;
  const LoadProgressCallback progress_;
  const PackedShard* const packed_;       // Instead of the checkpoint, or null.
  std::vector<PackedPart>* const parts_;  // Or null.
  size_t next_ = 0;                       // Matrix of packed_.
  const uint64_t bytes_total_;
  uint64_t bytes_done_ = 0;
  kernels::BufferArena arena_;
  TensorReader reader_;
};

}  // namespace

absl::StatusOr<Weights> LoadShard(const TensorSource& source,
                                  const ModelSpec& spec, const ShardPlan& plan,
                                  const LoadOptions& options,
                                  kernels::ThreadPool& pool,
                                  LoadProgressCallback progress,
                                  std::vector<PackedPart>* parts) {
  Weights weights;
  Loader loader(source, spec, plan, options, pool, progress,
                ShardBytes(spec, plan, options, &source),
                /*packed=*/nullptr, parts);
  RF_RETURN_IF_ERROR(loader.Load(&weights));
  return weights;
}

absl::StatusOr<MlpWeights> LoadExpert(const TensorSource& source,
                                      const ModelSpec& spec,
                                      const ShardPlan& plan,
                                      const LoadOptions& options, int layer,
                                      int expert, kernels::ThreadPool& pool) {
  MlpWeights weights;
  const auto silent = [](uint64_t, uint64_t) { return absl::OkStatus(); };
  // Each matrix in memory of its own, since the expert may move on.
  Loader loader(source, spec, plan, options, pool, silent,
                /*bytes_total=*/0, /*packed=*/nullptr, /*parts=*/nullptr);
  RF_RETURN_IF_ERROR(
      loader.Expert(cluster::TensorsOfLayer(spec, layer), expert, &weights));
  return weights;
}

absl::StatusOr<Weights> MapShard(const PackedShard& packed,
                                 const TensorSource& source,
                                 const ModelSpec& spec, const ShardPlan& plan,
                                 const LoadOptions& options,
                                 kernels::ThreadPool& pool) {
  Weights weights;
  const auto silent = [](uint64_t, uint64_t) { return absl::OkStatus(); };
  Loader loader(source, spec, plan, options, pool, silent,
                /*bytes_total=*/0, &packed, /*parts=*/nullptr);
  RF_RETURN_IF_ERROR(loader.Load(&weights));
  return weights;
}

uint64_t ShardBytes(const ModelSpec& spec, const ShardPlan& plan,
                    const LoadOptions& options, const TensorSource* source) {
  return cluster::ShardSizesOf(spec, plan, FormsFor(options, source),
                               options.experts, LoadsMtp(spec, options, source))
      .total();
}

}  // namespace ringfleet::worker
