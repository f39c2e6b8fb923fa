// SPDX-License-Identifier: Apache-2.0
#include "worker/execution/worker_epoch.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "cluster/collectives/mesh_groups.h"
#include "cluster/process/status_macros.h"

namespace ringfleet::worker {
namespace {

absl::StatusOr<KvCache> MakeCache(const LoadedShard& shard,
                                  const Weights& weights, kernels::Dtype dtype,
                                  const EpochSettings& settings) {
  return KvCache::Create(dtype, Model::CacheLayers(shard.spec, weights),
                         shard.spec.kv_lora_rank, shard.spec.qk_rope_head_dim,
                         {.slots = shard.slots,
                          .context = settings.context,
                          .blocks = settings.cache_blocks});
}

// The reference rounds nothing on the wire and drops no routes.
ModelSettings ReferenceSettings(ModelSettings settings) {
  settings.wire = cluster::Wire::kF32;
  settings.expert_capacity = 0;
  return settings;
}

}  // namespace

absl::StatusOr<std::shared_ptr<WorkerEpoch>> WorkerEpoch::Create(
    uint64_t epoch, std::shared_ptr<LoadedShard> shard,
    std::shared_ptr<ExpertStatistics> statistics,
    std::unique_ptr<cluster::Transport> transport,
    cluster::AlgorithmTable table, cluster::FlightRecorder* recorder,
    cluster::TraceRecorder* trace, const EpochSettings& settings) {
  RF_ASSIGN_OR_RETURN(KvCache cache, MakeCache(*shard, shard->weights,
                                               shard->cache_dtype, settings));
  std::optional<KvCache> reference_cache;
  if (shard->reference.has_value()) {
    RF_ASSIGN_OR_RETURN(
        KvCache reserved,
        MakeCache(*shard, *shard->reference, kernels::Dtype::kF32, settings));
    reference_cache.emplace(std::move(reserved));
  }
  return std::shared_ptr<WorkerEpoch>(
      new WorkerEpoch(epoch, std::move(shard), std::move(statistics),
                      std::move(transport), std::move(table), recorder, trace,
                      settings, std::move(cache), std::move(reference_cache)));
}

WorkerEpoch::Instance::Instance(LoadedShard& shard, const Weights& weights,
                                KvCache reserved,
                                TimedCommunicator& communicator,
                                TimedCommunicator* data_axis,
                                const ModelSettings& settings)
    : cache(std::move(reserved)),
      model(shard.spec, shard.plan, shard.layout, weights, *shard.pool, cache,
            communicator, data_axis, settings) {}

WorkerEpoch::WorkerEpoch(uint64_t epoch, std::shared_ptr<LoadedShard> shard,
                         std::shared_ptr<ExpertStatistics> statistics,
                         std::unique_ptr<cluster::Transport> transport,
                         cluster::AlgorithmTable table,
                         cluster::FlightRecorder* recorder,
                         cluster::TraceRecorder* trace,
                         const EpochSettings& settings, KvCache cache,
                         std::optional<KvCache> reference_cache)
    : id_(epoch),
      shard_(std::move(shard)),
      recorder_(recorder),
      layout_(shard_->layout),
      statistics_(std::move(statistics)),
      transport_(std::move(transport)),
      communicator_(transport_.get(),
                    cluster::DataGroupOf(shard_->plan.mesh, shard_->plan.rank),
                    table, recorder, trace),
      timed_(&communicator_, settings.collective_timeout),
      data_communicator_(
          shard_->plan.mesh.data == 1
              ? nullptr
              : std::make_unique<cluster::GroupCommunicator>(
                    transport_.get(),
                    cluster::DataAxisOf(shard_->plan.mesh, shard_->plan.rank),
                    table, recorder, trace)),
      data_axis_(data_communicator_ == nullptr
                     ? nullptr
                     : std::make_unique<TimedCommunicator>(
                           data_communicator_.get(),
                           settings.collective_timeout,
                           TimedCommunicator::Use::kPlainExchanges)),
      main_(*shard_, shard_->weights, std::move(cache), timed_,
            data_axis_.get(), settings.model),
      executor_(
          epoch, {&main_.model, &main_.cache},
          reference_cache.has_value()
              ? ModelInstance{&reference_
                                   .emplace(*shard_, *shard_->reference,
                                            *std::move(reference_cache), timed_,
                                            data_axis_.get(),
                                            ReferenceSettings(settings.model))
                                   .model,
                              &reference_->cache}
              : ModelInstance{},
          shard_->slots, settings.prefill_strategy) {}

WorkerEpoch::~WorkerEpoch() {
  // The transport ends first: payload on its way to a peer lies in the models'
  // buffers.
  transport_.reset();
}

absl::Status WorkerEpoch::PrepareExperts(
    uint64_t number, const v1::ExpertLayout& changes, uint64_t available_bytes,
    const std::string& coordinator, cluster::CancellableCalls* fetching,
    absl::FunctionRef<absl::Status(uint64_t, uint64_t)> report) {
  for (const v1::ExpertLayer& layer : changes.layers()) {
    if (!HasExperts(shard_->weights, layer.layer())) {
      return absl::InvalidArgumentError(
          absl::StrCat("experts: layer ", layer.layer(), " has none"));
    }
  }
  cluster::ExpertLayout now;
  {
    std::optional<StagedWeights> old;  // Freed outside the lock.
    MutexLock lock(&mu_);
    now = layout_;
    old.swap(staged_);
  }
  cluster::ExpertLayout next = now;
  RF_RETURN_IF_ERROR(next.Merge(changes));
  const auto stop_early = [&](uint64_t done, uint64_t total) -> absl::Status {
    if (aborted_) return absl::CancelledError("experts: the epoch is over");
    return report(done, total);
  };
  RF_ASSIGN_OR_RETURN(StagedWeights staged,
                      StageExperts(*shard_, now, next, available_bytes,
                                   coordinator, fetching, stop_early));
  MutexLock lock(&mu_);
  staged_number_ = number;
  staged_ = std::move(staged);
  return absl::OkStatus();
}

absl::Status WorkerEpoch::SwitchTo(uint64_t number) {
  std::optional<StagedWeights> staged;
  {
    MutexLock lock(&mu_);
    if (!staged_.has_value() || staged_number_ != number) {
      return absl::FailedPreconditionError(
          absl::StrCat("experts: move ", number, " is not prepared here"));
    }
    staged.swap(staged_);
    layout_ = staged->main.layout;
  }
  const int coordinate = shard_->plan.expert_coordinate;
  cluster::ExpertLayout next = staged->main.layout;
  SwitchExperts(shard_->layout, coordinate, std::move(staged->main),
                &shard_->weights);
  uint64_t bytes = shard_->weights.bytes;
  if (staged->reference.has_value()) {
    SwitchExperts(shard_->layout, coordinate, *std::move(staged->reference),
                  &*shard_->reference);
    bytes += shard_->reference->bytes;
  }
  shard_->layout = std::move(next);
  shard_->resident_bytes = bytes;
  return absl::OkStatus();
}

absl::Status WorkerEpoch::Step(const v1::StepPlan& plan,
                               v1::StepResult* result) {
  absl::Status status;
  const uint64_t sent_before =
      recorder_ == nullptr ? 0 : recorder_->sent_bytes();
  if (plan.expert_move() != 0) status = SwitchTo(plan.expert_move());
  if (status.ok()) status = executor_.Step(plan, result);
  if (recorder_ != nullptr) {
    result->set_bytes_sent(recorder_->sent_bytes() - sent_before);
  }
  if (status.ok()) {
    statistics_->AddStep(main_.model.expert_counts(),
                         main_.model.dropped_counts());
  } else {
    transport_->Abort(status);
  }
  return status;
}

uint64_t WorkerEpoch::cache_bytes() const {
  return main_.cache.bytes() +
         (reference_.has_value() ? reference_->cache.bytes() : 0);
}

}  // namespace ringfleet::worker
