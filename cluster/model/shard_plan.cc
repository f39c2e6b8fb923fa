// SPDX-License-Identifier: Apache-2.0
#include "cluster/model/shard_plan.h"

#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "cluster/model/model_tensors.h"
#include "kernels/check.h"

namespace ringfleet::cluster {

Range SplitRange(int total, int parts, int index) {
  RF_CHECK(total >= 0 && parts >= 1 && index >= 0 && index < parts);
  const auto border = [&](int64_t i) {
    return static_cast<int>(i * total / parts);
  };
  return {border(index), border(index + 1)};
}

namespace {

// SplitRange in whole groups if the tensor that has the columns is int4.
Range SplitColumns(const ModelSpec& spec, TensorRole role, int total, int parts,
                   int index) {
  if (!spec.quantization.IsInt4(role, /*mtp=*/false) &&
      !spec.quantization.IsInt4(role, /*mtp=*/true)) {
    return SplitRange(total, parts, index);
  }
  const Range groups = SplitRange(total / kInt4GroupSize, parts, index);
  return {groups.begin * kInt4GroupSize, groups.end * kInt4GroupSize};
}

}  // namespace

Range SplitExpert(const ModelSpec& spec, int parts, int index) {
  return SplitColumns(spec, TensorRole::kExpertDown, spec.moe_intermediate_size,
                      parts, index);
}

absl::StatusOr<ShardPlan> PlanShard(const ModelSpec& spec,
                                    const MeshShape& mesh, int rank) {
  // Far above any fleet, and low enough that the product can't overflow.
  constexpr int kMaxAxis = 1 << 10;
  const auto axis_ok = [](int size) { return size >= 1 && size <= kMaxAxis; };
  if (!axis_ok(mesh.data) || !axis_ok(mesh.expert) || !axis_ok(mesh.tensor)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "mesh data ", mesh.data, " x expert ", mesh.expert, " x tensor ",
        mesh.tensor, ": want every axis in 1 to ", kMaxAxis));
  }
  if (rank < 0 || rank >= mesh.world_size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "rank ", rank, ": want 0 to ", mesh.world_size() - 1, " (mesh data ",
        mesh.data, " x expert ", mesh.expert, " x tensor ", mesh.tensor, ")"));
  }
  const int group_size = mesh.group_size();
  const int index = rank % group_size;
  const int tensor_index = rank % mesh.tensor;
  ShardPlan plan;
  plan.mesh = mesh;
  plan.rank = rank;
  plan.data_group = rank / group_size;
  plan.expert_coordinate = rank / mesh.tensor;
  plan.heads = SplitRange(spec.num_attention_heads, group_size, index);
  plan.experts = SplitRange(spec.n_routed_experts, mesh.num_coordinates(),
                            plan.expert_coordinate);
  plan.expert_columns = SplitExpert(spec, mesh.tensor, tensor_index);
  plan.shared_columns = SplitColumns(
      spec, TensorRole::kSharedDown,
      spec.n_shared_experts * spec.moe_intermediate_size, group_size, index);
  plan.dense_columns = SplitColumns(spec, TensorRole::kDenseDown,
                                    spec.intermediate_size, group_size, index);
  plan.vocab = SplitRange(spec.vocab_size, group_size, index);
  return plan;
}

std::vector<ShardPlan> PlanAllShards(const ModelSpec& spec,
                                     const MeshShape& mesh) {
  std::vector<ShardPlan> plans;
  for (int rank = 0; rank < mesh.world_size(); ++rank) {
    plans.push_back(PlanShard(spec, mesh, rank).value());
  }
  return plans;
}

}  // namespace ringfleet::cluster
