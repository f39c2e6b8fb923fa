// SPDX-License-Identifier: Apache-2.0
// Calls of the Worker service that observe or measure beside loads and runs.
#include <memory>
#include <utility>

#include "cluster/process/status.h"
#include "cluster/process/status_macros.h"
#include "worker/execution/trace_chunks.h"
#include "worker/loading/host.h"
#include "worker/measuring/measure_memory.h"
#include "worker/service/worker_service.h"

namespace ringfleet::worker {

grpc::Status WorkerService::FlightRecords(
    grpc::ServerContext* context, const v1::FlightRecordsRequest* request,
    v1::FlightRecordsResponse* response) {
  flight_->Read(request->limit(), response);
  return grpc::Status::OK;
}

grpc::Status WorkerService::Trace(
    grpc::ServerContext* context,
    grpc::ServerReaderWriter<v1::TraceChunk, v1::TraceRequest>* stream) {
  const cluster::ActiveCalls::Scope scope(&calls_);
  if (const absl::Status fenced = fence_.Check(*context); !fenced.ok()) {
    return cluster::ToGrpc(fenced);
  }
  v1::TraceRequest request;
  if (!stream->Read(&request)) {
    return cluster::ToGrpc(
        absl::InvalidArgumentError("trace: no request, want one"));
  }
  // One trace at a time has memory here, from its first event to the last one
  // that is sent.
  {
    MutexLock lock(&mu_);
    if (tracing_ != nullptr) {
      return cluster::ToGrpc(
          absl::FailedPreconditionError("trace: another one is recorded"));
    }
    tracing_ = context;
    if (stopping_) context->TryCancel();
  }
  const absl::Status status = TraceAlone(context, request, stream);
  MutexLock lock(&mu_);
  tracing_ = nullptr;
  return cluster::ToGrpc(status);
}

absl::Status WorkerService::TraceAlone(
    grpc::ServerContext* context, v1::TraceRequest request,
    grpc::ServerReaderWriter<v1::TraceChunk, v1::TraceRequest>* stream) {
  RF_RETURN_IF_ERROR(trace_.Start(request.max_events() == 0
                                      ? cluster::TraceRecorder::kDefaultEvents
                                      : request.max_events()));
  stream->Write(v1::TraceChunk());
  while (stream->Read(&request)) {  // Until the caller ends its side.
  }
  const cluster::TraceRecorder::Trace trace = trace_.Stop();
  if (!context->IsCancelled()) {
    SendTrace(trace, [stream](const v1::TraceChunk& chunk) {
      return stream->Write(chunk);
    });
  }
  return absl::OkStatus();
}

grpc::Status WorkerService::Statistics(grpc::ServerContext* context,
                                       const v1::StatisticsRequest* request,
                                       v1::StatisticsResponse* response) {
  if (const absl::Status fenced = fence_.Check(*context); !fenced.ok()) {
    return cluster::ToGrpc(fenced);
  }
  std::shared_ptr<LoadedShard> shard;
  std::shared_ptr<ExpertStatistics> statistics;
  {
    MutexLock lock(&mu_);
    shard = shard_;
    statistics = statistics_;
    if (epoch_ != nullptr) response->set_cache_bytes(epoch_->cache_bytes());
  }
  if (shard == nullptr) return grpc::Status::OK;
  response->set_resident_bytes(shard->resident_bytes);
  response->set_fingerprint(shard->fingerprint);
  response->set_threads(static_cast<uint32_t>(shard->pool->threads()));
  response->set_cpu(CpuModel());
  statistics->Read(request->reset_expert_counts(), response);
  return grpc::Status::OK;
}

grpc::Status WorkerService::MeasureMemory(
    grpc::ServerContext* context,
    grpc::ServerReaderWriter<v1::MeasureMemoryResponse,
                             v1::MeasureMemoryRequest>* stream) {
  const cluster::ActiveCalls::Scope scope(&calls_);
  if (const absl::Status fenced = fence_.Check(*context); !fenced.ok()) {
    return cluster::ToGrpc(fenced);
  }
  v1::MeasureMemoryRequest request;
  if (!stream->Read(&request)) {
    return cluster::ToGrpc(
        absl::InvalidArgumentError("memory: no request, want one"));
  }
  if (measures_memory_.exchange(true)) {
    return cluster::ToGrpc(absl::FailedPreconditionError(
        "memory: another measurement of this worker runs"));
  }
  int threads = default_threads_;
  {
    MutexLock lock(&mu_);
    if (shard_ != nullptr) threads = shard_->pool->threads();
  }
  const auto measured = worker::MeasureMemory(
      request, threads,
      [stream] {
        v1::MeasureMemoryRequest start;
        return stream->Write(v1::MeasureMemoryResponse()) &&
               stream->Read(&start);
      },
      [this, context] {
        MutexLock lock(&mu_);
        return stopping_ || context->IsCancelled();
      });
  measures_memory_ = false;
  if (measured.ok()) stream->Write(*measured);
  return cluster::ToGrpc(measured.status());
}

}  // namespace ringfleet::worker
