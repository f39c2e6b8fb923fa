// SPDX-License-Identifier: Apache-2.0
// The load that an epoch asks of a rank.
#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "cluster/model/expert_layout.h"
#include "coordinator/fleet/fleet_epoch.h"

namespace ringfleet::coordinator {
namespace {

// Part of a host's available memory for weights and cache. The rest is for
// buffers, the runtime and other memory that grows.
constexpr double kMemoryShare = 0.9;

uint64_t MemoryLimit(const FleetOptions& options,
                     const std::vector<Member>& members, size_t rank) {
  if (rank < options.memory_gib.size() && options.memory_gib[rank] > 0) {
    return static_cast<uint64_t>(options.memory_gib[rank] * (1ull << 30));
  }
  return static_cast<uint64_t>(
      static_cast<double>(ShareOf(members, rank, &Member::memory)) *
      kMemoryShare);
}

// Returns the threads that a rank shall use; 0: its own choice.
uint32_t ThreadsOf(const FleetOptions& options,
                   const std::vector<Member>& members, size_t rank) {
  if (options.settings.threads() != 0) return options.settings.threads();
  if (members[rank].cpus.empty()) return 0;
  return static_cast<uint32_t>(
      std::clamp<uint64_t>(ShareOf(members, rank, &Member::cpus), 1, 1024));
}

}  // namespace

v1::LoadRequest MakeLoadRequest(const FleetOptions& options,
                                const std::vector<Member>& members, int rank) {
  const v1::FleetSettings& settings = options.settings;
  const cluster::ExpertLayout& layout = options.layout;
  v1::LoadRequest request;
  request.set_model_path(settings.model());
  request.set_dtype(settings.dtype());
  request.set_cache_dtype(settings.cache_type());
  v1::Mesh* mesh = request.mutable_layout()->mutable_mesh();
  mesh->set_data(options.mesh.data);
  mesh->set_expert(options.mesh.expert);
  mesh->set_tensor(options.mesh.tensor);
  request.mutable_layout()->set_rank(rank);
  *request.mutable_layout()->mutable_experts() =
      layout.Difference(cluster::ExpertLayout(
          layout.num_layers(), layout.num_experts(), layout.num_coordinates()));
  request.set_context(settings.context());
  request.set_slots(options.GroupSlots());
  request.set_cache_positions(settings.cache_positions());
  request.set_without_mtp(settings.without_mtp());
  request.set_dense_attention(settings.attention() == v1::ATTENTION_FORM_DENSE);
  request.set_memory_limit_bytes(MemoryLimit(options, members, rank));
  request.set_reference(settings.reference());
  request.set_prefill_strategy(settings.prefill_strategy());
  request.set_threads(ThreadsOf(options, members, rank));
  request.set_shard_cache(settings.cache_dir());
  request.set_await_shard_cache(options.await_shard_cache);
  return request;
}

}  // namespace ringfleet::coordinator
