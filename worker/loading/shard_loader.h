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
  // Form of the matrices that multiply.
  kernels::WeightForm form = kernels::WeightForm::kBf16;
  // Form of the routed experts' matrices. Unset: `form`.
  std::optional<kernels::WeightForm> expert_form;
  // True: WeightForms::native.
  bool native = false;
  // Experts that each rank holds. Null: the experts of ShardPlan::experts.
  const cluster::ExpertLayout* experts = nullptr;
  // True: load the multi-token prediction layer if the model has one
  // (num_nextn_predict_layers > 0) and the checkpoint holds it.
  bool mtp = true;
};

// Called on the loading thread with the number of bytes of Weights::bytes that
// are filled, from 0 to bytes_total. A non-OK status stops the load. The load
// returns the status.
using LoadProgressCallback =
    absl::FunctionRef<absl::Status(uint64_t bytes_done, uint64_t bytes_total)>;

// Loads a rank's part of each tensor of model_tensors.h by `plan`. Reads the
// slices that the rank holds, the scales of their fp8 blocks, and nothing else.
// Each value is rounded at most once, to options.form or options.expert_form.
// Codes of int8 with a scale for each output, and of int4, stay what they are
// where the form is theirs. W_UK transposed is rounded from the values of kv_b.
// `plan` must be made for `spec`.
//
// Allocates Weights::bytes, and besides at most 24 MiB plus 4 MiB per thread of
// `pool` at any time.
//
// Sets `parts`, if not null, to the matrices of a packed shard. `parts` refers
// to the memory of the weights. `parts` stays valid while the weights live,
// also if the weights are moved.
//
// Errors: those of cluster::CheckAllRead, before the first weight is read.
// Those of TensorReader. A status from `progress`.
absl::StatusOr<Weights> LoadShard(const cluster::TensorSource& source,
                                  const cluster::ModelSpec& spec,
                                  const cluster::ShardPlan& plan,
                                  const LoadOptions& options,
                                  kernels::ThreadPool& pool,
                                  LoadProgressCallback progress,
                                  std::vector<PackedPart>* parts = nullptr);

// Returns weights equal to those of LoadShard, from a packed shard. The
// matrices keep the shard mapped. Reads only the headers of the checkpoint.
// Requires a shard that PackedShard::Verify has checked.
//
// Errors: DATA_LOSS: a matrix of the shard is not the expected one. Those of
// cluster::CheckAllRead.
absl::StatusOr<Weights> MapShard(const PackedShard& packed,
                                 const cluster::TensorSource& source,
                                 const cluster::ModelSpec& spec,
                                 const cluster::ShardPlan& plan,
                                 const LoadOptions& options,
                                 kernels::ThreadPool& pool);

// Loads one routed expert, with the bytes that LoadShard would give it. Layers
// count from 0. The multi-token prediction layer comes after the main model's
// last layer.
//
// Errors: those of TensorReader.
absl::StatusOr<MlpWeights> LoadExpert(const cluster::TensorSource& source,
                                      const cluster::ModelSpec& spec,
                                      const cluster::ShardPlan& plan,
                                      const LoadOptions& options, int layer,
                                      int expert, kernels::ThreadPool& pool);

// Returns the Weights::bytes that LoadShard would give. Two facts depend on the
// checkpoint: the dtype of the embedding, and the presence of the multi-token
// prediction layer. Without `source`, the embedding is taken for bf16 and the
// layer for present, as in the published files. Saturates.
uint64_t ShardBytes(const cluster::ModelSpec& spec,
                    const cluster::ShardPlan& plan, const LoadOptions& options,
                    const cluster::TensorSource* source = nullptr);

}  // namespace ringfleet::worker

#endif  // RINGFLEET_WORKER_LOADING_SHARD_LOADER_H_
