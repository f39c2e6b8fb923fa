// SPDX-License-Identifier: Apache-2.0
// What a shard consists of where that depends on the checkpoint: for the loader
// and for those who ask how large a shard will be.
#ifndef RINGFLEET_WORKER_LOADING_SHARD_PARTS_H_
#define RINGFLEET_WORKER_LOADING_SHARD_PARTS_H_

#include <cstdint>
#include <vector>

#include "cluster/checkpoint/safetensors.h"
#include "cluster/model/model_spec.h"
#include "kernels/products/weight_matrix.h"
#include "worker/loading/shard_loader.h"

namespace ringfleet::worker {

inline constexpr char kEmbedding[] = "model.embed_tokens.weight";

// Whether the multi-token prediction layer is loaded. Null: as in the
// published files.
bool HasMtp(const cluster::ModelSpec& spec, const LoadOptions& options,
            const cluster::Checkpoint* checkpoint);

// Rows are looked up, not multiplied, so nothing is gained by widening bf16.
kernels::WeightForm EmbeddingForm(const LoadOptions& options,
                                  const cluster::Checkpoint* checkpoint);

inline kernels::WeightForm ExpertForm(const LoadOptions& options) {
  return options.expert_form.value_or(options.form);
}

// The experts of this rank in a layer, ascending, and how many.
std::vector<int32_t> HeldExperts(const cluster::ShardPlan& plan,
                                 const LoadOptions& options, int layer);
size_t CountHeldExperts(const cluster::ShardPlan& plan,
                        const LoadOptions& options, int layer);

}  // namespace ringfleet::worker

#endif  // RINGFLEET_WORKER_LOADING_SHARD_PARTS_H_
