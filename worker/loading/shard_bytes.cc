// SPDX-License-Identifier: Apache-2.0
// How large a shard will be.
#include <limits>
#include <numeric>
#include <string>

#include "absl/strings/str_cat.h"
#include "worker/loading/shard_loader.h"
#include "worker/loading/shard_parts.h"

namespace ringfleet::worker {

using cluster::Checkpoint;
using cluster::ModelSpec;
using cluster::ShardPlan;
using kernels::WeightForm;
using kernels::WeightMatrix;

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

WeightForm EmbeddingForm(const LoadOptions& options,
                         const Checkpoint* checkpoint) {
  if (options.form != WeightForm::kF32 || checkpoint == nullptr) {
    return WeightForm::kBf16Rows;
  }
  const auto info = checkpoint->Find(kEmbedding);
  return !info.ok() || (*info)->dtype == kernels::Dtype::kBf16
             ? WeightForm::kBf16Rows
             : WeightForm::kF32Rows;
}

size_t CountHeldExperts(const ShardPlan& plan, const LoadOptions& options,
                        int layer) {
  if (options.experts == nullptr) return plan.experts.size();
  return options.experts->Held(layer, plan.expert_place).size();
}

std::vector<int32_t> HeldExperts(const ShardPlan& plan,
                                 const LoadOptions& options, int layer) {
  if (options.experts != nullptr) {
    const auto held = options.experts->Held(layer, plan.expert_place);
    return {held.begin(), held.end()};
  }
  std::vector<int32_t> held(plan.experts.size());
  std::iota(held.begin(), held.end(), plan.experts.begin);
  return held;
}

namespace {

// Adds up sizes; sticks to the maximum instead of overflowing.
class Tally {
 public:
  void Matrices(uint64_t count, WeightForm form, uint64_t rows,
                uint64_t columns) {
    Add(count, WeightMatrix::Bytes(form, rows, columns));
  }
  void Vectors(uint64_t count, uint64_t size) {
    Add(count, WeightMatrix::Bytes(WeightForm::kF32Rows, 1, size));
  }
  uint64_t total() const { return total_; }

 private:
  void Add(uint64_t count, uint64_t bytes) {
    uint64_t product = 0;
    if (__builtin_mul_overflow(count, bytes, &product) ||
        __builtin_add_overflow(total_, product, &total_)) {
      total_ = std::numeric_limits<uint64_t>::max();
    }
  }

  uint64_t total_ = 0;
};

void AddLayer(const ModelSpec& spec, const ShardPlan& plan,
              const LoadOptions& options, int layer, bool is_moe,
              Tally* tally) {
  const WeightForm form = options.form;
  const uint64_t hidden = spec.hidden_size;
  const uint64_t heads = plan.heads.size();
  const uint64_t q_rank = spec.q_lora_rank;
  const uint64_t kv_rank = spec.kv_lora_rank;
  tally->Vectors(2, hidden);
  tally->Matrices(1, form, q_rank, hidden);  // q_a, where there is one.
  tally->Vectors(1, q_rank);
  tally->Matrices(1, form, heads * spec.qk_head_dim(),
                  q_rank > 0 ? q_rank : hidden);
  tally->Matrices(1, form, spec.cache_row(), hidden);
  tally->Vectors(1, kv_rank);
  tally->Matrices(1, form, heads * (spec.qk_nope_head_dim + spec.v_head_dim),
                  kv_rank);
  tally->Matrices(1, form, heads * kv_rank, spec.qk_nope_head_dim);
  tally->Matrices(1, form, hidden, heads * spec.v_head_dim);
  const auto mlps = [&](uint64_t count, WeightForm of, uint64_t width) {
    tally->Matrices(2 * count, of, width, hidden);
    tally->Matrices(count, of, hidden, width);
  };
  if (!is_moe) return mlps(1, form, plan.dense_columns.size());
  tally->Matrices(1, WeightForm::kF32Rows, spec.n_routed_experts, hidden);
  if (spec.topk_method == cluster::TopkMethod::kNoauxTc) {
    tally->Vectors(1, spec.n_routed_experts);
  }
  mlps(CountHeldExperts(plan, options, layer), ExpertForm(options),
       plan.expert_columns.size());
  mlps(1, form, plan.shared_columns.size());
}

}  // namespace

uint64_t ShardBytes(const ModelSpec& spec, const ShardPlan& plan,
                    const LoadOptions& options, const Checkpoint* checkpoint) {
  const uint64_t hidden = spec.hidden_size;
  Tally tally;
  tally.Matrices(1, EmbeddingForm(options, checkpoint), spec.vocab_size,
                 hidden);
  for (int i = 0; i < spec.num_hidden_layers; ++i) {
    AddLayer(spec, plan, options, i, spec.IsMoeLayer(i), &tally);
  }
  tally.Vectors(1, hidden);
  tally.Matrices(1, options.form, plan.vocab.size(), hidden);
  if (HasMtp(spec, options, checkpoint)) {
    tally.Vectors(3, hidden);
    tally.Matrices(1, options.form, hidden, 2 * hidden);
    AddLayer(spec, plan, options, spec.num_hidden_layers,
             spec.n_routed_experts > 0, &tally);
  }
  return tally.total();
}

}  // namespace ringfleet::worker
