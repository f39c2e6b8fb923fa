// SPDX-License-Identifier: Apache-2.0
// The worker as a member of a fleet: its reports to the coordinator, and the
// change of the coordinator that it serves.
#include <memory>
#include <utility>

#include "cluster/process/process_limits.h"
#include "worker/service/worker_service.h"

namespace ringfleet::worker {

void WorkerService::BeginRegistration(v1::RegisterRequest* request) {
  fence_.BeginRegistration();
  MutexLock lock(&mu_);
  request->set_last_epoch(last_epoch_);
  request->clear_held();
  if (shard_ == nullptr) return;
  v1::HeldShard* const held = request->mutable_held();
  held->set_fingerprint(shard_->fingerprint);
  *held->mutable_request() = shard_->request;
  held->mutable_request()->clear_sources();
  const cluster::ExpertLayout layout =
      epoch_ == nullptr ? shard_->layout : epoch_->layout();
  *held->mutable_request()->mutable_layout()->mutable_experts() =
      layout.Difference(cluster::ExpertLayout(
          layout.num_layers(), layout.num_experts(), layout.num_coordinates()));
}

void WorkerService::EndRegistration(const std::string& coordinator_id) {
  MutexLock lock(&mu_);
  fence_.EndRegistration(coordinator_id);
  if (holder_ == nullptr) return;
  const absl::Status superseded = fence_.CheckNow(*holder_);
  if (superseded.ok()) return;
  if (take_over_ != nullptr) {
    take_over_(superseded);
  } else {
    holder_->TryCancel();
  }
  // Wakes a step or a Connect that waits for peers.
  endpoint_->Interrupt(superseded);
}

void WorkerService::SetOnRunEnd(std::function<void()> on_end) {
  MutexLock lock(&mu_);
  on_run_end_ = std::move(on_end);
}

void WorkerService::AddFigures(bool with_experts,
                               v1::HeartbeatRequest* heartbeat) {
  heartbeat->set_last_epoch(last_epoch_);
  v1::WorkerFigures* const figures = heartbeat->mutable_figures();
  figures->set_memory_bytes(cluster::ResidentBytes());
  flight_->AddTo(figures);
  if (!with_experts) return;
  std::shared_ptr<ExpertStatistics> statistics;
  {
    MutexLock lock(&mu_);
    statistics = statistics_;
  }
  if (statistics == nullptr) return;
  v1::StatisticsResponse response;
  statistics->Read(/*reset=*/false, &response);
  for (v1::ExpertCounts& layer : *response.mutable_layers()) {
    layer.clear_tokens();
    *heartbeat->add_experts() = std::move(layer);
  }
}

}  // namespace ringfleet::worker
