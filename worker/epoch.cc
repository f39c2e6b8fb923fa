// SPDX-License-Identifier: Apache-2.0
#include "worker/epoch.h"

#include <numeric>
#include <utility>
#include <vector>

namespace ringfleet::worker {
namespace {

// The communicator of all ranks. Mesh axes get their own, with other ids.
constexpr uint32_t kWorldGroup = 0;

cluster::Group WorldGroup(int world_size) {
  cluster::Group group;
  group.id = kWorldGroup;
  group.ranks.resize(world_size);
  std::iota(group.ranks.begin(), group.ranks.end(), 0);
  return group;
}

}  // namespace

Epoch::Instance::Instance(LoadedShard& shard, const Weights& weights,
                          kernels::Dtype cache_dtype,
                          TimedCommunicator& communicator, cluster::Wire wire,
                          int context)
    : cache(cache_dtype, Model::CacheLayers(shard.spec, weights),
            shard.spec.kv_lora_rank, shard.spec.qk_rope_head_dim, shard.slots,
            context),
      model(shard.spec, shard.plan, weights, *shard.pool, cache, communicator,
            wire) {}

Epoch::Epoch(uint64_t epoch, std::shared_ptr<LoadedShard> shard,
             std::shared_ptr<ExpertStatistics> statistics,
             std::unique_ptr<cluster::Transport> transport, cluster::Wire wire,
             absl::Duration collective_timeout, int context)
    : shard_(std::move(shard)),
      statistics_(std::move(statistics)),
      transport_(std::move(transport)),
      communicator_(transport_.get(),
                    WorldGroup(shard_->plan.mesh.world_size())),
      timed_(&communicator_, collective_timeout),
      main_(*shard_, shard_->weights, shard_->dtype, timed_, wire, context),
      executor_(epoch, {&main_.model, &main_.cache},
                shard_->reference.has_value()
                    ? ModelInstance{&reference_
                                         .emplace(*shard_, *shard_->reference,
                                                  kernels::Dtype::kF32, timed_,
                                                  cluster::Wire::kF32, context)
                                         .model,
                                    &reference_->cache}
                    : ModelInstance{},
                shard_->slots) {}

Epoch::~Epoch() {
  // First of all: payload on its way to a peer lies in the models' buffers.
  transport_.reset();
}

absl::Status Epoch::Step(const v1::StepPlan& plan, v1::StepResult* result) {
  absl::Status status = executor_.Step(plan, result);
  if (status.ok()) {
    statistics_->AddStep(main_.model.expert_counts());
  } else {
    transport_->Abort(status);
  }
  return status;
}

uint64_t Epoch::cache_bytes() const {
  return main_.cache.bytes() +
         (reference_.has_value() ? reference_->cache.bytes() : 0);
}

}  // namespace ringfleet::worker
