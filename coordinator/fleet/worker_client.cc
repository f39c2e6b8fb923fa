// SPDX-License-Identifier: Apache-2.0
#include "coordinator/fleet/worker_client.h"

#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cluster/process/status.h"
#include "cluster/process/status_macros.h"
#include "cluster/rpc/channel.h"
#include "cluster/rpc/coordinator_id.h"

namespace ringfleet::coordinator {
namespace {

using Call = cluster::CancellableCalls::Scope;

std::shared_ptr<grpc::Channel> MakeChannel(const std::string& address) {
  grpc::ChannelArguments arguments = cluster::DirectArguments();
  arguments.SetMaxReceiveMessageSize(cluster::kMaxMessageBytes);
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  return cluster::OpenChannel(address, arguments);
}

}  // namespace

WorkerClient::WorkerClient(const std::string& address,
                           std::string coordinator_id)
    : coordinator_id_(std::move(coordinator_id)),
      channel_(MakeChannel(address)),
      stub_(v1::Worker::NewStub(channel_)),
      host_(v1::Host::NewStub(channel_)) {}

WorkerClient::~WorkerClient() {
  Cancel();
  if (reader_.joinable()) reader_.join();
}

void WorkerClient::Prepare(grpc::ClientContext& context,
                           cluster::Deadline deadline) {
  cluster::SetCoordinatorId(coordinator_id_, &context);
  std::call_once(first_call_, [this] { cluster::AwaitConnection(*channel_); });
  if (deadline.infinite()) return;
  context.set_deadline(std::chrono::system_clock::now() +
                       absl::ToChronoMicroseconds(deadline.Remaining()));
}

absl::StatusOr<v1::LoadProgress> WorkerClient::Load(
    const v1::LoadRequest& request, cluster::Deadline deadline,
    const std::function<void(const v1::LoadProgress&)>& on_progress) {
  grpc::ClientContext context;
  Prepare(context, deadline);
  const Call call(&calls_, &context);
  const auto reader = stub_->Load(&context, request);
  v1::LoadProgress progress;
  while (reader->Read(&progress)) on_progress(progress);
  const absl::Status status = cluster::FromGrpc(reader->Finish());
  if (!status.ok()) return status;
  if (!progress.done()) {
    return absl::InternalError("the load ended without a message of its end");
  }
  return progress;
}

absl::StatusOr<v1::FindCheckpointResponse> WorkerClient::FindCheckpoint(
    const v1::FindCheckpointRequest& request, cluster::Deadline deadline) {
  grpc::ClientContext context;
  Prepare(context, deadline);
  const Call call(&calls_, &context);
  v1::FindCheckpointResponse response;
  const grpc::Status status =
      stub_->FindCheckpoint(&context, request, &response);
  if (!status.ok()) return cluster::FromGrpc(status);
  return response;
}

absl::StatusOr<v1::CheckpointFacts> WorkerClient::DescribeCheckpoint(
    const v1::DescribeCheckpointRequest& request, cluster::Deadline deadline) {
  grpc::ClientContext context;
  Prepare(context, deadline);
  const Call call(&calls_, &context);
  const auto reader = stub_->DescribeCheckpoint(&context, request);
  v1::CheckpointFacts all;
  v1::CheckpointFacts facts;
  while (reader->Read(&facts)) all.MergeFrom(facts);
  const absl::Status status = cluster::FromGrpc(reader->Finish());
  if (!status.ok()) return status;
  return all;
}

absl::StatusOr<v1::ConnectResponse> WorkerClient::Connect(
    const v1::ConnectRequest& request, cluster::Deadline deadline) {
  grpc::ClientContext context;
  Prepare(context, deadline);
  const Call call(&calls_, &context);
  v1::ConnectResponse response;
  const grpc::Status status = stub_->Connect(&context, request, &response);
  if (!status.ok()) return cluster::FromGrpc(status);
  return response;
}

absl::Status WorkerClient::PrepareExperts(
    const v1::PrepareExpertsRequest& request, cluster::Deadline deadline,
    const std::function<bool(uint64_t)>& on_bytes) {
  grpc::ClientContext context;
  Prepare(context, deadline);
  const Call call(&calls_, &context);
  const auto reader = stub_->PrepareExperts(&context, request);
  v1::PrepareExpertsProgress progress;
  while (reader->Read(&progress)) {
    if (!on_bytes(progress.bytes_done())) context.TryCancel();
  }
  RF_RETURN_IF_ERROR(cluster::FromGrpc(reader->Finish()));
  if (!progress.done()) {
    return absl::InternalError("preparing experts ended without its message");
  }
  return absl::OkStatus();
}

absl::StatusOr<v1::StatisticsResponse> WorkerClient::Statistics(
    const v1::StatisticsRequest& request, cluster::Deadline deadline) {
  grpc::ClientContext context;
  Prepare(context, deadline);
  const Call call(&calls_, &context);
  v1::StatisticsResponse response;
  const grpc::Status status = stub_->Statistics(&context, request, &response);
  if (!status.ok()) return cluster::FromGrpc(status);
  return response;
}

absl::StatusOr<v1::ClockReading> WorkerClient::ReadClock(
    cluster::Deadline deadline) {
  grpc::ClientContext context;
  Prepare(context, deadline);
  const Call call(&calls_, &context);
  v1::ClockReading reading;
  const grpc::Status status =
      host_->ReadClock(&context, v1::ReadClockRequest(), &reading);
  if (!status.ok()) return cluster::FromGrpc(status);
  return reading;
}

absl::Status WorkerClient::Trace(
    const v1::TraceRequest& request, const std::function<bool()>& await_end,
    const std::function<absl::Status(v1::TraceChunk)>& on_chunk) {
  grpc::ClientContext context;
  cluster::SetCoordinatorId(coordinator_id_, &context);
  const Call call(&calls_, &context);
  const auto stream = stub_->Trace(&context);
  stream->Write(request);  // A failure shows in Read and Finish.
  v1::TraceChunk chunk;
  absl::Status taken;
  const bool recorded = stream->Read(&chunk);
  if (recorded) {
    if (!await_end()) context.TryCancel();
    stream->WritesDone();
    while (stream->Read(&chunk)) {
      if (taken.ok()) taken = on_chunk(std::move(chunk));
    }
  }
  const absl::Status status = cluster::FromGrpc(stream->Finish());
  if (status.ok() && !recorded) {
    return absl::InternalError("the trace ended before it began");
  }
  return taken.ok() ? status : taken;
}

absl::StatusOr<v1::MeasureMemoryResponse> WorkerClient::MeasureMemory(
    const v1::MeasureMemoryRequest& request, cluster::Deadline deadline,
    const std::function<void()>& await_others) {
  grpc::ClientContext context;
  Prepare(context, deadline);
  const Call call(&calls_, &context);
  const auto stream = stub_->MeasureMemory(&context);
  stream->Write(request);  // A failure shows in Read and Finish.
  v1::MeasureMemoryResponse response;
  int received = 0;
  while (stream->Read(&response)) {
    if (received++ > 0) continue;
    await_others();
    stream->Write(request);
    stream->WritesDone();
  }
  const absl::Status status = cluster::FromGrpc(stream->Finish());
  if (!status.ok()) return status;
  if (received < 2) {
    return absl::InternalError("the measurement ended without a result");
  }
  return response;
}

absl::Status WorkerClient::MeasureCollectives(
    const v1::MeasureCollectivesRequest& request,
    const std::function<void(const v1::MeasureCollectivesProgress&)>&
        on_progress,
    const std::function<void()>& await_others) {
  grpc::ClientContext context;
  const Call call(&calls_, &context);
  const auto stream = stub_->MeasureCollectives(&context);
  stream->Write(request);  // A failure shows in Read and Finish.
  v1::MeasureCollectivesProgress progress;
  uint32_t done = 0;
  const uint32_t total = static_cast<uint32_t>(request.cases_size());
  while (done < total && stream->Read(&progress)) {
    done = progress.done();
    on_progress(progress);
  }
  if (done == total) await_others();
  stream->WritesDone();
  while (stream->Read(&progress)) {
  }
  const absl::Status status = cluster::FromGrpc(stream->Finish());
  if (status.ok() && done < total) {
    return absl::InternalError(absl::StrCat("the measurement ended after ",
                                            done, " of ", total, " cases"));
  }
  return status;
}

void WorkerClient::StartRun(std::function<void(v1::StepResult)> on_result,
                            std::function<void(absl::Status)> on_end) {
  on_result_ = std::move(on_result);
  on_end_ = std::move(on_end);
  cluster::SetCoordinatorId(coordinator_id_, &run_context_);
  run_ = stub_->Run(&run_context_);
  reader_ = std::thread([this] { ReadResults(); });
}

void WorkerClient::ReadResults() {
  const Call call(&calls_, &run_context_);
  v1::StepResult result;
  while (run_->Read(&result)) on_result_(std::move(result));
  on_end_(cluster::FromGrpc(run_->Finish()));
}

bool WorkerClient::Send(const v1::StepPlan& plan) { return run_->Write(plan); }

void WorkerClient::Cancel() { calls_.Cancel(); }

bool WorkerClient::Disconnected() const {
  return channel_->GetState(/*try_to_connect=*/false) != GRPC_CHANNEL_READY;
}

}  // namespace ringfleet::coordinator
