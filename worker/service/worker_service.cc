// SPDX-License-Identifier: Apache-2.0
#include "worker/service/worker_service.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "cluster/collectives/mesh_groups.h"
#include "cluster/collectives/tile_table.h"
#include "cluster/process/log.h"
#include "cluster/process/process_limits.h"
#include "cluster/process/status.h"
#include "cluster/process/status_macros.h"
#include "cluster/rpc/cancellable_calls.h"
#include "cluster/wire/frame.h"
#include "cluster/wire/op_descriptor.h"
#include "worker/execution/cancellation_watch.h"
#include "worker/execution/trace_chunks.h"
#include "worker/loading/host.h"
#include "worker/loading/synthesize.h"
#include "worker/measuring/measure_collectives.h"
#include "worker/measuring/measure_memory.h"
#include "worker/service/bounded_queue.h"

namespace ringfleet::worker {
namespace {

// Longest time that a new Load, Connect or Run waits for an old one to end.
constexpr std::chrono::seconds kTakeoverTime{10};

void LogLoad(const LoadedShard& shard, absl::Duration time) {
  if (shard.kept) {
    RF_LOG(kInfo, "kept ", shard.resident_bytes >> 20, " MiB of weights");
    return;
  }
  const double seconds = absl::ToDoubleSeconds(time);
  RF_LOG(kInfo, "loaded ", shard.resident_bytes >> 20, " MiB of weights in ",
         seconds, " s, ",
         static_cast<double>(shard.resident_bytes) / 1e9 / seconds, " GB/s ",
         shard.from_cache ? "from the packed shard" : "from the checkpoint",
         "; read ", shard.tensor_bytes_read, " bytes of tensors, ",
         shard.other_bytes_read, " of headers and samples; fetched ",
         shard.tensor_bytes_fetched, " and ", shard.other_bytes_fetched);
}

}  // namespace

class WorkerService::Exclusive {
 public:
  // kTakeOver ends an active call first; FAILED_PRECONDITION when that does not
  // give way within ten seconds. kIfIdle leaves an active call, and an epoch
  // that a run may be about to use, alone: FAILED_PRECONDITION.
  enum class Mode { kTakeOver, kIfIdle };

  Exclusive(WorkerService* service, grpc::ServerContext* context,
            Mode mode = Mode::kTakeOver)
      : service_(service) {
    const auto deadline = std::chrono::steady_clock::now() + kTakeoverTime;
    MutexLock lock(&service_->mu_);
    if (mode == Mode::kIfIdle &&
        (service_->busy_ || service_->epoch_ != nullptr)) {
      refusal_ = absl::FailedPreconditionError(
          "worker: it is loading or running a model, want it idle");
      return;
    }
    while (service_->busy_) {
      // TryCancel wakes a stream's reader, Interrupt a step or a Connect that
      // waits for peers.
      service_->holder_->TryCancel();
      service_->endpoint_->Interrupt(
          absl::CancelledError("another call took this worker over"));
      if (!service_->idle_.WaitUntil(&service_->mu_, deadline) &&
          std::chrono::steady_clock::now() >= deadline) {
        refusal_ = absl::FailedPreconditionError(
            "worker: another load or run has not ended");
        return;
      }
    }
    service_->busy_ = true;
    service_->holder_ = context;
  }
  ~Exclusive() {
    if (!refusal_.ok()) return;
    MutexLock lock(&service_->mu_);
    service_->busy_ = false;
    service_->holder_ = nullptr;
    service_->idle_.NotifyAll();
  }
  Exclusive(const Exclusive&) = delete;
  Exclusive& operator=(const Exclusive&) = delete;

  const absl::Status& status() const { return refusal_; }

 private:
  WorkerService* const service_;
  absl::Status refusal_;
};

WorkerService::WorkerService(cluster::CollectiveEndpoint* endpoint,
                             FlightLog* flight, int default_threads,
                             uint64_t memory_limit_bytes,
                             std::string shard_cache, std::string coordinator)
    : endpoint_(endpoint),
      flight_(flight),
      default_threads_(default_threads),
      memory_limit_bytes_(memory_limit_bytes),
      shard_cache_(std::move(shard_cache)),
      coordinator_(std::move(coordinator)) {}

WorkerService::~WorkerService() = default;

LoadSettings WorkerService::SettingsNow() const {
  return {.threads = default_threads_,
          .memory_limit_bytes = memory_limit_bytes_,
          .shard_cache = shard_cache_,
          .available_memory_bytes = std::min(
              AvailableMemoryBytes(), cluster::AvailableAddressSpaceBytes()),
          .coordinator = coordinator_};
}

bool WorkerService::stopping() {
  MutexLock lock(&mu_);
  return stopping_;
}

grpc::Status WorkerService::Load(grpc::ServerContext* context,
                                 const v1::LoadRequest* request,
                                 grpc::ServerWriter<v1::LoadProgress>* writer) {
  const cluster::ActiveCalls::Scope scope(&calls_);
  const Exclusive exclusive(this, context);
  absl::Status status = exclusive.status();
  if (status.ok()) status = LoadExclusive(context, *request, writer);
  if (!status.ok()) RF_LOG(kError, "load failed: ", status.message());
  return cluster::ToGrpc(status);
}

absl::Status WorkerService::LoadExclusive(
    grpc::ServerContext* context, const v1::LoadRequest& request,
    grpc::ServerWriter<v1::LoadProgress>* writer) {
  const bool was_saving = saver_.busy();
  saver_.End();
  std::shared_ptr<LoadedShard> held;
  {
    std::shared_ptr<WorkerEpoch> old_epoch;  // Ends outside the lock.
    MutexLock lock(&mu_);
    old_epoch.swap(epoch_);
    held.swap(shard_);
  }
  RF_LOG(kInfo, "loading ", request.model_path(), " as rank ",
         request.layout().rank());
  const auto report = [&](const v1::LoadProgress& progress) -> absl::Status {
    if (context->IsCancelled() || !writer->Write(progress)) {
      return absl::CancelledError("load: the coordinator went away");
    }
    return absl::OkStatus();
  };
  LoadSettings settings = SettingsNow();
  // A source that answers slowly must not delay the call that takes over.
  cluster::CancellableCalls fetching;
  std::optional<CancellationWatch> watch;
  if (request.sources_size() > 0) {
    settings.fetching = &fetching;
    watch.emplace(context, [&fetching] { fetching.Cancel(); });
  }
  const absl::Time begun = absl::Now();
  std::shared_ptr<LoadedShard> loaded;
  bool save = was_saving;
  // A call that prepares a move of experts in the old epoch is told of its end,
  // but may be in the middle of a read.
  const auto released = std::chrono::steady_clock::now() + kTakeoverTime;
  while (held.use_count() > 1 && std::chrono::steady_clock::now() < released) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  if (held != nullptr && held.use_count() == 1) {
    RF_ASSIGN_OR_RETURN(const bool kept,
                        KeepShard(request, settings, held.get()));
    if (kept) loaded = held;
  }
  // The old weights are freed before the new ones are loaded.
  held.reset();
  if (loaded == nullptr) {
    RF_ASSIGN_OR_RETURN(loaded, LoadShardFor(request, settings, report));
    save = loaded->unsaved.has_value();
  }
  LogLoad(*loaded, absl::Now() - begun);
  const v1::LoadProgress done = DoneMessage(*loaded);
  if (save) saver_.Start(loaded);
  {
    MutexLock lock(&mu_);
    shard_ = std::move(loaded);
    if (!shard_->kept) statistics_ = std::make_shared<ExpertStatistics>();
  }
  return report(done);
}

grpc::Status WorkerService::Connect(grpc::ServerContext* context,
                                    const v1::ConnectRequest* request,
                                    v1::ConnectResponse* response) {
  const cluster::ActiveCalls::Scope scope(&calls_);
  const Exclusive exclusive(this, context);
  absl::Status status = exclusive.status();
  if (status.ok()) status = ConnectExclusive(context, *request, response);
  if (!status.ok()) RF_LOG(kError, "connect failed: ", status.message());
  return cluster::ToGrpc(status);
}

absl::Status WorkerService::ConnectExclusive(grpc::ServerContext* context,
                                             const v1::ConnectRequest& request,
                                             v1::ConnectResponse* response) {
  std::shared_ptr<LoadedShard> shard;
  std::shared_ptr<ExpertStatistics> statistics;
  {
    std::shared_ptr<WorkerEpoch> old;
    MutexLock lock(&mu_);
    old.swap(epoch_);
    shard = shard_;
    statistics = statistics_;
  }
  if (shard == nullptr) {
    return absl::FailedPreconditionError("connect: no weights are loaded");
  }
  const int world = shard->plan.mesh.world_size();
  if (request.addresses_size() != world) {
    return absl::InvalidArgumentError(absl::StrCat(
        "connect: ", request.addresses_size(), " addresses, want ", world));
  }
  if (request.context() < 1 ||
      request.context() > static_cast<uint32_t>(shard->context)) {
    return absl::InvalidArgumentError(
        absl::StrCat("connect: context of ", request.context(),
                     " positions, want 1 to ", shard->context));
  }
  if (shard->plan.mesh.data > 1 &&
      request.prefill_strategy() == v1::PREFILL_STRATEGY_WEIGHT_GATHER) {
    return absl::InvalidArgumentError(
        absl::StrCat("connect: weights are gathered within one data group, "
                     "want 1, there are ",
                     shard->plan.mesh.data));
  }
  RF_ASSIGN_OR_RETURN(const cluster::Wire wire,
                      cluster::WireFromProto(request.wire()));
  cluster::AlgorithmTable table = cluster::AlgorithmTable::Default();
  if (!request.algorithm_table().empty()) {
    RF_ASSIGN_OR_RETURN(
        table, cluster::AlgorithmTable::FromJson(request.algorithm_table()));
  }
  cluster::TileTable tiles;
  if (!request.tile_table().empty()) {
    RF_ASSIGN_OR_RETURN(tiles,
                        cluster::TileTable::FromJson(request.tile_table()));
  }
  if (!(request.expert_capacity() >= 0)) {
    return absl::InvalidArgumentError(absl::StrCat("connect: expert capacity ",
                                                   request.expert_capacity(),
                                                   ", want 0 or more"));
  }
  if (request.epoch() < 1 || request.epoch() > cluster::kMaxEpoch) {
    return absl::InvalidArgumentError(
        absl::StrCat("connect: epoch ", request.epoch(), ", want 1 to ",
                     cluster::kMaxEpoch));
  }
  cluster::CollectiveEndpoint::World peers{
      .addresses = {request.addresses().begin(), request.addresses().end()},
      .rings = {cluster::DataGroupOf(shard->plan.mesh, shard->plan.rank).ranks,
                cluster::DataAxisOf(shard->plan.mesh, shard->plan.rank).ranks},
      .transport = cluster::TransportFromProto(request.transport()),
      .config_hash = request.config_hash()};
  endpoint_->SetRanksOnHost(static_cast<int>(request.ranks_on_host()));
  // Set before the epoch is entered. A registration meanwhile must report it.
  last_epoch_ = std::max<uint64_t>(last_epoch_, request.epoch());
  const CancellationWatch watch(context, [this] {
    endpoint_->Interrupt(
        absl::CancelledError("connect: the coordinator went away"));
  });
  RF_ASSIGN_OR_RETURN(
      std::unique_ptr<cluster::Transport> transport,
      endpoint_->Connect(
          request.epoch(), shard->plan.rank, peers,
          cluster::Deadline::After(absl::Milliseconds(request.timeout_ms()))));
  const EpochSettings settings = {
      .model = {.wire = wire,
                .expert_capacity = request.expert_capacity(),
                .tiles = TunedTiles(std::move(tiles), CpuModel())},
      .prefill_strategy = request.prefill_strategy(),
      .collective_timeout = absl::Milliseconds(request.collective_timeout_ms()),
      .context = static_cast<int>(request.context())};
  RF_ASSIGN_OR_RETURN(
      std::shared_ptr<WorkerEpoch> epoch,
      WorkerEpoch::Create(request.epoch(), shard, statistics,
                          std::move(transport), std::move(table),
                          endpoint_->recorder(), &trace_, settings));
  response->set_cache_bytes(epoch->cache_bytes());
  RF_LOG(kInfo, "connected with ", world - 1, " peers in epoch ",
         request.epoch());
  MutexLock lock(&mu_);
  epoch_ = std::move(epoch);
  return absl::OkStatus();
}

grpc::Status WorkerService::Run(
    grpc::ServerContext* context,
    grpc::ServerReaderWriter<v1::StepResult, v1::StepPlan>* stream) {
  const cluster::ActiveCalls::Scope scope(&calls_);
  const Exclusive exclusive(this, context);
  if (!exclusive.status().ok()) return cluster::ToGrpc(exclusive.status());
  std::shared_ptr<WorkerEpoch> epoch;
  {
    MutexLock lock(&mu_);
    epoch = epoch_;
  }
  if (epoch == nullptr) {
    return cluster::ToGrpc(
        absl::FailedPreconditionError("run: no epoch is connected"));
  }
  BoundedQueue<v1::StepPlan> plans;
  // Handing a result to the stream takes 0.1 to 0.2 ms, while the next step
  // computes. Where every CPU has a thread of the step, the writer must not
  // share the executor's CPU, because all other threads would wait.
  BoundedQueue<v1::StepResult> results;
  std::thread writer([&] {
    std::optional<ScopedCpuPin> pin;
    if (epoch->pinned()) pin.emplace(1);
    v1::StepResult result;
    while (results.Pop(&result)) {
      if (!stream->Write(result)) results.Close();
    }
  });
  std::thread executor([&] {
    std::optional<ScopedCpuPin> pin;
    if (epoch->pinned()) pin.emplace(0);
    v1::StepPlan plan;
    while (plans.Pop(&plan)) {
      v1::StepResult result;
      const absl::Status status = epoch->Step(plan, &result);
      if (!status.ok()) {
        RF_LOG(kError, "step ", plan.step(), " failed: ", status.ToString());
        flight_->Report(status);
        result.set_epoch(plan.epoch());
        result.set_step(plan.step());
        result.mutable_error()->set_code(static_cast<uint32_t>(status.code()));
        result.mutable_error()->set_message(std::string(status.message()));
        MutexLock lock(&mu_);
        result.mutable_error()->set_stopping(stopping_);
      }
      if (!results.Push(std::move(result)) || !status.ok()) break;
    }
    results.Finish();
    plans.Close();
  });
  v1::StepPlan plan;
  while (stream->Read(&plan)) {
    // After a failed step the queue is closed; the coordinator ends the
    // stream once it has read the error.
    plans.Push(std::move(plan));
  }
  plans.Close();
  epoch->Abort(absl::CancelledError("the coordinator ended the epoch"));
  executor.join();
  writer.join();
  MutexLock lock(&mu_);
  if (epoch_ == epoch) epoch_ = nullptr;
  return grpc::Status::OK;
}

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
  v1::TraceRequest request;
  if (!stream->Read(&request)) {
    return cluster::ToGrpc(
        absl::InvalidArgumentError("trace: no request, want one"));
  }
  const absl::Status started = trace_.Start(
      request.max_events() == 0 ? cluster::TraceRecorder::kDefaultEvents
                                : request.max_events());
  if (!started.ok()) return cluster::ToGrpc(started);
  {
    MutexLock lock(&mu_);
    tracing_ = context;
    if (stopping_) context->TryCancel();
  }
  stream->Write(v1::TraceChunk());
  while (stream->Read(&request)) {  // Until the caller ends its side.
  }
  {
    MutexLock lock(&mu_);
    tracing_ = nullptr;
  }
  const cluster::TraceRecorder::Trace trace = trace_.Stop();
  if (!context->IsCancelled()) {
    SendTrace(trace, [stream](const v1::TraceChunk& chunk) {
      return stream->Write(chunk);
    });
  }
  return grpc::Status::OK;
}

grpc::Status WorkerService::Statistics(grpc::ServerContext* context,
                                       const v1::StatisticsRequest* request,
                                       v1::StatisticsResponse* response) {
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

grpc::Status WorkerService::MeasureCollectives(
    grpc::ServerContext* context,
    grpc::ServerReaderWriter<v1::MeasureCollectivesProgress,
                             v1::MeasureCollectivesRequest>* stream) {
  const cluster::ActiveCalls::Scope scope(&calls_);
  v1::MeasureCollectivesRequest request;
  if (!stream->Read(&request)) {
    return cluster::ToGrpc(
        absl::InvalidArgumentError("collectives: no request, want one"));
  }
  const Exclusive exclusive(this, context, Exclusive::Mode::kIfIdle);
  absl::Status status = exclusive.status();
  if (status.ok()) {
    if (request.epoch() <= cluster::kMaxEpoch) {
      last_epoch_ = std::max<uint64_t>(last_epoch_, request.epoch());
    }
    const CancellationWatch watch(context, [this] {
      endpoint_->Interrupt(
          absl::CancelledError("collectives: the caller went away"));
    });
    status = worker::MeasureCollectives(
        request, AvailableMemoryBytes(), *endpoint_,
        [stream](const v1::MeasureCollectivesProgress& progress) {
          return stream->Write(progress)
                     ? absl::OkStatus()
                     : absl::CancelledError("collectives: the caller left");
        },
        [stream] {
          // Waits until the caller has heard from all ranks, or has gone.
          v1::MeasureCollectivesRequest ignored;
          while (stream->Read(&ignored)) {
          }
        });
  }
  if (!status.ok()) {
    RF_LOG(kError, "collectives failed: ", status.message());
    flight_->Report(status);
  }
  return cluster::ToGrpc(status);
}

grpc::Status WorkerService::Synthesize(
    grpc::ServerContext* context, const v1::SynthesizeRequest* request,
    grpc::ServerWriter<v1::SynthesizeProgress>* writer) {
  const cluster::ActiveCalls::Scope scope(&calls_);
  const Exclusive exclusive(this, context, Exclusive::Mode::kIfIdle);
  absl::Status status = exclusive.status();
  if (status.ok()) {
    RF_LOG(kInfo, "writing ", request->model(), " into ", request->folder());
    status = worker::Synthesize(
        *request, default_threads_,
        [&](const v1::SynthesizeProgress& progress) -> absl::Status {
          if (stopping()) {
            return absl::UnavailableError("the worker was stopped");
          }
          if (context->IsCancelled() || !writer->Write(progress)) {
            return absl::CancelledError("synth: the caller went away");
          }
          return absl::OkStatus();
        });
  }
  if (!status.ok()) RF_LOG(kError, "synth failed: ", status.message());
  return cluster::ToGrpc(status);
}

grpc::Status WorkerService::Convert(
    grpc::ServerContext* context, const v1::LoadRequest* request,
    grpc::ServerWriter<v1::LoadProgress>* writer) {
  const cluster::ActiveCalls::Scope scope(&calls_);
  const Exclusive exclusive(this, context, Exclusive::Mode::kIfIdle);
  if (!exclusive.status().ok()) return cluster::ToGrpc(exclusive.status());
  RF_LOG(kInfo, "packing ", request->model_path(), " for rank ",
         request->layout().rank());
  LoadSettings settings = SettingsNow();
  cluster::CancellableCalls fetching;
  settings.fetching = &fetching;
  const CancellationWatch watch(context, [&fetching] { fetching.Cancel(); });
  const absl::Status status = PackShard(
      *request, settings,
      [&](const v1::LoadProgress& progress) -> absl::Status {
        if (stopping()) {
          return absl::UnavailableError("the worker was stopped");
        }
        if (context->IsCancelled() || !writer->Write(progress)) {
          return absl::CancelledError("convert: the caller went away");
        }
        return absl::OkStatus();
      });
  if (!status.ok()) RF_LOG(kError, "convert failed: ", status.message());
  return cluster::ToGrpc(status);
}

grpc::Status WorkerService::MeasureMemory(
    grpc::ServerContext* context,
    grpc::ServerReaderWriter<v1::MeasureMemoryResponse,
                             v1::MeasureMemoryRequest>* stream) {
  const cluster::ActiveCalls::Scope scope(&calls_);
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

void WorkerService::Abort(const absl::Status& cause) {
  saver_.Stop();
  MutexLock lock(&mu_);
  stopping_ = true;
  if (tracing_ != nullptr) tracing_->TryCancel();
  endpoint_->Interrupt(cause);
}

}  // namespace ringfleet::worker
