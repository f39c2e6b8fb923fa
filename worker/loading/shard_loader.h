// SPDX-License-Identifier: Apache-2.0
// Fills the Weights of one rank from a checkpoint.
#ifndef RINGFLEET_WORKER_LOADING_SHARD_LOADER_H_
#define RINGFLEET_WORKER_LOADING_SHARD_LOADER_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cluster/model/expert_layout.h"
#include "cluster/model/model_spec.h"
#include "cluster/model/shard_plan.h"
#include "cluster/model/tensor_source.h"
#include "kernels/products/weight_matrix.h"
#include "kernels/thread_pool.h"
#include "worker/loading/packed_shard.h"
#include "worker/model/weights.h"

namespace ringfleet::worker {

struct LoadOptions {
  kernels::WeightForm form = kernels::WeightForm::kBf16;  // For products.
  // For the routed experts' products; unset: `form`.
  std::optional<kernels::WeightForm> expert_form;
  // For the model's layers and the plan's mesh. Null: ShardPlan::experts.
  const cluster::ExpertLayout* experts = nullptr;
  // Load the multi-token prediction layer, where the model has one
  // (num_nextn_predict_layers > 0) and the checkpoint holds it.
  bool mtp = true;
};

// Told on the loading thread how much of Weights::bytes is filled, from 0 to
// bytes_total. A non-OK status stops the load, which returns it.
using LoadProgressCallback =
    absl::FunctionRef<absl::Status(uint64_t bytes_done, uint64_t bytes_total)>;

// Reads the rank's slices of the tensors of model_tensors.h and nothing else:
// its part of each tensor, and the scales of the fp8 blocks that it touches.
// Values are rounded once, to options.form. `plan` must be made for `spec`.
//
// Beyond Weights::bytes at most 4 MiB per thread of `pool` and 24 MiB are
// allocated at any time.
//
// `parts`, if not null, gets the matrices of a packed shard of these weights.
// It is valid while the weights live; they may be moved.
//
// Errors: those of TensorReader, and of cluster::CheckAllRead before a weight
// is read.
absl::StatusOr<Weights> LoadShard(const cluster::TensorSource& source,
                                  const cluster::ModelSpec& spec,
                                  const cluster::ShardPlan& plan,
                                  const LoadOptions& options,
                                  kernels::ThreadPool& pool,
                                  LoadProgressCallback progress,
                                  std::vector<PackedPart>* parts = nullptr);

// Takes the weights of LoadShard from a packed shard, which the matrices keep
// mapped. Only the headers of the checkpoint are used. Verify the shard first.
//
// Errors: DATA_LOSS: the shard holds something else. Those of
// cluster::CheckAllRead.
absl::StatusOr<Weights> MapShard(const PackedShard& packed,
                                 const cluster::TensorSource& source,
                                 const cluster::ModelSpec& spec,
                                 const cluster::ShardPlan& plan,
                                 const LoadOptions& options,
                                 kernels::ThreadPool& pool);

// One routed expert of a layer, as LoadShard would load it. The multi-token
// prediction layer is behind the others.
//
// Errors: those of TensorReader.
absl::StatusOr<MlpWeights> LoadExpert(const cluster::TensorSource& source,
                                      const cluster::ModelSpec& spec,
                                      const cluster::ShardPlan& plan,
                                      const LoadOptions& options, int layer,
                                      int expert, kernels::ThreadPool& pool);

// The Weights::bytes of a load. Two details depend on the checkpoint: the dtype
// of the embedding, and the presence of the multi-token prediction layer.
// Without a source they are those of published files: bf16, and present. Ends
// at the largest number instead of overflowing.
uint64_t ShardBytes(const cluster::ModelSpec& spec,
                    const cluster::ShardPlan& plan, const LoadOptions& options,
                    const cluster::TensorSource* source = nullptr);

}  // namespace ringfleet::worker

#endif  // RINGFLEET_WORKER_LOADING_SHARD_LOADER_H_
