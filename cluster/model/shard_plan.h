// SPDX-License-Identifier: Apache-2.0
// The slice of every weight that a rank owns. Splits are as even as integers
// allow, for any number of ranks. A rank may own no head, expert or column.
#ifndef RINGFLEET_CLUSTER_MODEL_SHARD_PLAN_H_
#define RINGFLEET_CLUSTER_MODEL_SHARD_PLAN_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "cluster/model/mesh.h"
#include "cluster/model/model_spec.h"

namespace ringfleet::cluster {

// The integers from `begin` to end - 1.
struct Range {
  int begin = 0;
  int end = 0;
  int size() const { return end - begin; }
  bool operator==(const Range&) const = default;
};

// Returns a / b, rounded up. Requires a >= 0 and b > 0.
constexpr int64_t CeilDivide(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Returns part `index`, from 0, of `total` items cut into `parts`:
// [floor(index * total / parts), floor((index + 1) * total / parts)).
Range SplitRange(int total, int parts, int index);

// The parts of the model that one rank owns. A data group has its own sequences
// and caches, and a copy of all weights but the experts. The table says over
// which axes each weight is split:
//
//   heads, shared expert, dense layers, vocabulary   over expert x tensor
//   experts, by an ExpertLayout                      over data x expert
//   columns of an expert                             over tensor
//   q_a, kv_a, router, norms, embedding              replicated
//
// A split over heads splits the rows of q_b (or q_proj) and kv_b, and the
// columns of o_proj. Columns of int4 networks are split between groups of
// kInt4GroupSize, so that parts may differ by a group, and a rank may have
// none.
struct ShardPlan {
  MeshShape mesh;
  int rank = 0;
  int data_group = 0;
  Range heads;
  int expert_coordinate = 0;  // On data x expert.
  Range experts;              // In a layout with one replica of each expert.
  Range expert_columns;       // In moe_intermediate_size.
  Range shared_columns;       // In n_shared_experts * moe_intermediate_size.
  Range dense_columns;        // In intermediate_size.
  Range vocab;
};

// Returns the part `index` of an expert's moe_intermediate_size columns that
// are cut into `parts`.
Range SplitExpert(const ModelSpec& spec, int parts, int index);

// Returns the plan of one rank. INVALID_ARGUMENT: a rank outside the mesh, or
// an axis below 1.
absl::StatusOr<ShardPlan> PlanShard(const ModelSpec& spec,
                                    const MeshShape& mesh, int rank);

// Returns the plans of all ranks. PlanShard must accept the mesh.
std::vector<ShardPlan> PlanAllShards(const ModelSpec& spec,
                                     const MeshShape& mesh);

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_MODEL_SHARD_PLAN_H_
