// SPDX-License-Identifier: Apache-2.0
// Calls of the Worker service that read a checkpoint without disturbing loads
// and runs.
#include <algorithm>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "cluster/checkpoint/checkpoint_files.h"
#include "cluster/process/log.h"
#include "cluster/process/process_limits.h"
#include "cluster/process/status.h"
#include "cluster/process/status_macros.h"
#include "cluster/rpc/cancellable_calls.h"
#include "cluster/synthetic/synthetic_model.h"
#include "worker/execution/cancellation_watch.h"
#include "worker/loading/describe_checkpoint.h"
#include "worker/loading/host.h"
#include "worker/service/worker_service.h"

namespace ringfleet::worker {

grpc::Status WorkerService::DescribeCheckpoint(
    grpc::ServerContext* context, const v1::DescribeCheckpointRequest* request,
    grpc::ServerWriter<v1::CheckpointFacts>* writer) {
  const cluster::ActiveCalls::Scope scope(&calls_);
  if (const absl::Status fenced = fence_.Check(*context); !fenced.ok()) {
    return cluster::ToGrpc(fenced);
  }
  return cluster::ToGrpc(worker::DescribeCheckpoint(
      *request, default_threads_,
      [&](const v1::CheckpointFacts& facts) -> absl::Status {
        if (stopping()) {
          return absl::UnavailableError("the worker was stopped");
        }
        if (context->IsCancelled() || !writer->Write(facts)) {
          return absl::CancelledError("checkpoint: the caller went away");
        }
        return absl::OkStatus();
      }));
}

grpc::Status WorkerService::FindCheckpoint(
    grpc::ServerContext* context, const v1::FindCheckpointRequest* request,
    v1::FindCheckpointResponse* response) {
  if (const absl::Status fenced = fence_.Check(*context); !fenced.ok()) {
    return cluster::ToGrpc(fenced);
  }
  const std::string& model = request->model_path();
  if (cluster::IsSyntheticModel(model)) return grpc::Status::OK;
  const absl::Status found = cluster::ListCheckpointFiles(model).status();
  response->set_complete(found.ok());
  if (found.ok()) files_.Serve(model);
  if (absl::IsNotFound(found)) {
    response->set_missing(std::string(found.message()));
  }
  return grpc::Status::OK;
}

grpc::Status WorkerService::PrepareExperts(
    grpc::ServerContext* context, const v1::PrepareExpertsRequest* request,
    grpc::ServerWriter<v1::PrepareExpertsProgress>* writer) {
  const cluster::ActiveCalls::Scope scope(&calls_);
  if (prepares_experts_.exchange(true)) {
    return cluster::ToGrpc(absl::FailedPreconditionError(
        "experts: another move is being prepared"));
  }
  const absl::Status status = PrepareInEpoch(context, *request, writer);
  prepares_experts_ = false;
  if (!status.ok()) {
    RF_LOG(kError, "preparing experts failed: ", status.message());
  }
  return cluster::ToGrpc(status);
}

absl::Status WorkerService::PrepareInEpoch(
    grpc::ServerContext* context, const v1::PrepareExpertsRequest& request,
    grpc::ServerWriter<v1::PrepareExpertsProgress>* writer) {
  RF_RETURN_IF_ERROR(fence_.Check(*context));
  std::shared_ptr<WorkerEpoch> epoch;
  {
    MutexLock lock(&mu_);
    epoch = epoch_;
  }
  if (epoch == nullptr || epoch->id() != request.epoch()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "experts: epoch ", request.epoch(), " is not connected here"));
  }
  if (request.move() == 0) {
    return absl::InvalidArgumentError("experts: move 0, want a number");
  }
  if (saver_.busy()) {
    return absl::FailedPreconditionError(
        "experts: the packed shard is still being written");
  }
  cluster::CancellableCalls fetching;
  const CancellationWatch watch(context, [&fetching] { fetching.Cancel(); });
  v1::PrepareExpertsProgress progress;
  RF_RETURN_IF_ERROR(epoch->PrepareExperts(
      request.move(), request.layout(),
      std::min(AvailableMemoryBytes(), cluster::AvailableAddressSpaceBytes()),
      coordinator_, &fetching,
      [&](uint64_t done, uint64_t total) -> absl::Status {
        if (stopping()) {
          return absl::UnavailableError("the worker was stopped");
        }
        progress.set_bytes_done(done);
        progress.set_bytes_total(total);
        if (context->IsCancelled() || !writer->Write(progress)) {
          return absl::CancelledError("experts: the coordinator went away");
        }
        return absl::OkStatus();
      }));
  progress.set_done(true);
  writer->Write(progress);
  return absl::OkStatus();
}

}  // namespace ringfleet::worker
