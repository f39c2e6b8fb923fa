// SPDX-License-Identifier: Apache-2.0
#include "worker/service/connection_terms.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "cluster/process/status.h"
#include "cluster/process/status_macros.h"
#include "cluster/rpc/host_address.h"
#include "cluster/wire/frame.h"
#include "kernels/attention/latent_cache.h"

namespace ringfleet::worker {

absl::StatusOr<ConnectionTerms> CheckTerms(const v1::ConnectRequest& request,
                                           const LoadedShard& shard) {
  ConnectionTerms terms;
  const int world = shard.plan.mesh.world_size();
  if (request.addresses_size() != world) {
    return absl::InvalidArgumentError(absl::StrCat(
        "connect: ", request.addresses_size(), " addresses, want ", world));
  }
  for (const std::string& address : request.addresses()) {
    RF_RETURN_IF_ERROR(
        Annotate(cluster::ParseAddress(address).status(), "connect"));
  }
  if (request.context() < 1 ||
      request.context() > static_cast<uint32_t>(shard.context)) {
    return absl::InvalidArgumentError(
        absl::StrCat("connect: context of ", request.context(),
                     " positions, want 1 to ", shard.context));
  }
  terms.cache_blocks = request.cache_blocks() == 0
                           ? shard.cache_blocks
                           : static_cast<int>(std::min<uint32_t>(
                                 request.cache_blocks(), 1u << 30));
  const int64_t least = kernels::CacheBlocks(request.context());
  if (terms.cache_blocks < least || terms.cache_blocks > shard.cache_blocks) {
    return absl::InvalidArgumentError(
        absl::StrCat("connect: cache of ", request.cache_blocks(),
                     " blocks, want ", least, " to ", shard.cache_blocks));
  }
  if (shard.plan.mesh.data > 1 &&
      request.prefill_strategy() == v1::PREFILL_STRATEGY_WEIGHT_GATHER) {
    return absl::InvalidArgumentError(
        absl::StrCat("connect: weights are gathered within one data group, "
                     "want 1, there are ",
                     shard.plan.mesh.data));
  }
  RF_ASSIGN_OR_RETURN(terms.wire, cluster::WireFromProto(request.wire()));
  if (!request.algorithm_table().empty()) {
    RF_ASSIGN_OR_RETURN(terms.table, cluster::AlgorithmTable::FromJson(
                                         request.algorithm_table()));
  }
  if (!request.tile_table().empty()) {
    RF_ASSIGN_OR_RETURN(terms.tiles,
                        cluster::TileTable::FromJson(request.tile_table()));
  }
  if (!(request.expert_capacity() >= 0)) {
    return absl::InvalidArgumentError(absl::StrCat("connect: expert capacity ",
                                                   request.expert_capacity(),
                                                   ", want 0 or more"));
  }
  if (request.reproducible() &&
      (request.expert_capacity() > 0 ||
       request.prefill_strategy() == v1::PREFILL_STRATEGY_WEIGHT_GATHER ||
       terms.table != terms.table.InRankOrder())) {
    return absl::InvalidArgumentError(
        "connect: reproducible, want expert capacity 0, no weight_gather, and "
        "an algorithm table that sums in rank order");
  }
  if (request.epoch() < 1 || request.epoch() > cluster::kMaxEpoch) {
    return absl::InvalidArgumentError(
        absl::StrCat("connect: epoch ", request.epoch(), ", want 1 to ",
                     cluster::kMaxEpoch));
  }
  return terms;
}

}  // namespace ringfleet::worker
