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
#include "cluster/process/log.h"
#include "cluster/process/process_limits.h"
#include "cluster/process/status.h"
#include "cluster/process/status_macros.h"
#include "cluster/rpc/cancellable_calls.h"
#include "cluster/rpc/host_address.h"
#include "cluster/wire/frame.h"
#include "cluster/wire/op_descriptor.h"
#include "worker/execution/cancellation_watch.h"
#include "worker/loading/host.h"
#include "worker/loading/synthesize.h"
#include "worker/measuring/measure_collectives.h"
#include "worker/service/bounded_queue.h"
#include "worker/service/connection_terms.h"

namespace ringfleet::worker {
namespace {

// Longest time that a new Load, Connect or Run waits for an old one to end.
constexpr std::chrono::seconds kTakeoverTime{10};
// Time in which the caller of a run ends it, once it is told who takes over.
constexpr std::chrono::seconds kGoodbyeTime{1};

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
  // give way within ten seconds. kIfFree leaves an active call alone, and
  // kIfIdle also an epoch that a run may be about to use: FAILED_PRECONDITION.
  enum class Mode { kTakeOver, kIfFree, kIfIdle };

  // `name` is that of the call.
  Exclusive(WorkerService* service, grpc::ServerContext* context, Mode mode,
            absl::string_view name)
      : service_(service) {
    MutexLock lock(&service_->mu_);
    if (mode == Mode::kIfIdle &&
        (service_->busy_ || service_->epoch_ != nullptr)) {
      refusal_ = absl::FailedPreconditionError(
          "worker: it is loading or running a model, want it idle");
      return;
    }
    if (mode == Mode::kIfFree && service_->busy_) {
      refusal_ = absl::FailedPreconditionError(
          "worker: another load or run is under way");
      return;
    }
    refusal_ = TakeOver(*context, absl::CancelledError(absl::StrCat(
                                      "a ", name, " from ",
                                      cluster::NumericAddress(context->peer()),
                                      " took this worker over")));
    if (!refusal_.ok()) return;
    service_->busy_ = true;
    service_->holder_ = context;
    ++service_->holders_;
  }
  ~Exclusive() {
    if (!refusal_.ok()) return;
    MutexLock lock(&service_->mu_);
    service_->busy_ = false;
    service_->holder_ = nullptr;
    service_->take_over_ = nullptr;
    service_->idle_.NotifyAll();
  }
  Exclusive(const Exclusive&) = delete;
  Exclusive& operator=(const Exclusive&) = delete;

  const absl::Status& status() const { return refusal_; }

 private:
  // A call whose caller has gone or is not the worker's coordinator takes
  // nothing over.
  absl::Status TakeOver(const grpc::ServerContext& context,
                        const absl::Status& cause)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(service_->mu_) {
    const auto deadline = std::chrono::steady_clock::now() + kTakeoverTime;
    auto cancel_at = deadline;
    uint64_t told = 0;
    const auto left = [this, &context]() -> absl::Status {
      RF_RETURN_IF_ERROR(service_->fence_.CheckNow(context));
      return context.IsCancelled()
                 ? absl::CancelledError("worker: the caller has left")
                 : absl::OkStatus();
    };
    while (service_->busy_) {
      RF_RETURN_IF_ERROR(left());
      const auto now = std::chrono::steady_clock::now();
      if (now >= deadline) {
        return absl::FailedPreconditionError(
            "worker: another load or run has not ended");
      }
      if (told != service_->holders_) {
        told = service_->holders_;
        cancel_at = now;
        if (service_->take_over_ != nullptr) {
          service_->take_over_(cause);
          cancel_at += kGoodbyeTime;
        }
      }
      // Wakes a stream's reader.
      if (now >= cancel_at) service_->holder_->TryCancel();
      // Wakes a step or a Connect that waits for peers.
      service_->endpoint_->Interrupt(cause);
      service_->idle_.WaitUntil(
          &service_->mu_,
          now >= cancel_at ? deadline : std::min(cancel_at, deadline));
    }
    return left();
  }

  WorkerService* const service_;
  absl::Status refusal_;
};

struct WorkerService::Connection {
  std::shared_ptr<LoadedShard> shard;
  std::shared_ptr<ExpertStatistics> statistics;
  ConnectionTerms terms;
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
  const absl::Status status = CheckedLoad(context, *request, writer);
  if (!status.ok()) RF_LOG(kError, "load failed: ", status.message());
  return cluster::ToGrpc(status);
}

absl::Status WorkerService::CheckedLoad(
    grpc::ServerContext* context, const v1::LoadRequest& request,
    grpc::ServerWriter<v1::LoadProgress>* writer) {
  RF_RETURN_IF_ERROR(fence_.Check(*context));
  LoadSettings settings = SettingsNow();
  {
    MutexLock lock(&mu_);
    if (shard_ != nullptr) settings.held_bytes += shard_->resident_bytes;
    if (epoch_ != nullptr) settings.held_bytes += epoch_->cache_bytes();
    // A load is under way: nobody knows how much it holds.
    if (busy_ && shard_ == nullptr) settings.held_bytes = ~uint64_t{0};
  }
  // A source that answers slowly must not delay the call that takes over.
  cluster::CancellableCalls fetching;
  std::optional<CancellationWatch> watch;
  if (request.sources_size() > 0) {
    settings.fetching = &fetching;
    watch.emplace(context, [&fetching] { fetching.Cancel(); });
  }
  RF_ASSIGN_OR_RETURN(PlannedLoad planned, PlanLoad(request, settings));
  const Exclusive exclusive(this, context, Exclusive::Mode::kTakeOver, "Load");
  RF_RETURN_IF_ERROR(exclusive.status());
  return LoadExclusive(
      request, settings, std::move(planned),
      [&](const v1::LoadProgress& progress) -> absl::Status {
        if (context->IsCancelled() || !writer->Write(progress)) {
          return absl::CancelledError("load: the coordinator went away");
        }
        return absl::OkStatus();
      });
}

absl::Status WorkerService::LoadExclusive(
    const v1::LoadRequest& request, LoadSettings settings, PlannedLoad planned,
    const std::function<absl::Status(const v1::LoadProgress&)>& report) {
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
  const absl::Time begun = absl::Now();
  std::shared_ptr<LoadedShard> loaded;
  bool save = was_saving;
  // A call that prepares a move of experts in the old epoch is told of its end,
  // but may be in the middle of a read.
  const auto released = std::chrono::steady_clock::now() + kTakeoverTime;
  while (held.use_count() > 1 && std::chrono::steady_clock::now() < released) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  settings.available_memory_bytes = SettingsNow().available_memory_bytes;
  std::string reload_cause;
  if (held != nullptr) {
    reload_cause = "a call still uses them";
    if (held.use_count() == 1) {
      RF_ASSIGN_OR_RETURN(reload_cause,
                          KeepShard(request, settings, planned, held.get()));
    }
    if (reload_cause.empty()) {
      loaded = held;
    } else {
      RF_LOG(kInfo, "the weights load again: ", reload_cause);
    }
  }
  // The old weights are freed before the new ones are loaded.
  held.reset();
  const auto report_cause = [&](v1::LoadProgress progress) {
    progress.set_reload_cause(reload_cause);
    return report(progress);
  };
  if (loaded == nullptr) {
    settings.available_memory_bytes = SettingsNow().available_memory_bytes;
    RF_ASSIGN_OR_RETURN(loaded, LoadPlanned(request, settings,
                                            std::move(planned), report_cause));
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
  return report_cause(done);
}

grpc::Status WorkerService::Connect(grpc::ServerContext* context,
                                    const v1::ConnectRequest* request,
                                    v1::ConnectResponse* response) {
  const cluster::ActiveCalls::Scope scope(&calls_);
  absl::Status status = fence_.Check(*context);
  if (status.ok()) status = CheckConnection(*request).status();
  if (status.ok()) {
    const Exclusive exclusive(this, context, Exclusive::Mode::kTakeOver,
                              "Connect");
    status = exclusive.status();
    if (status.ok()) status = ConnectExclusive(context, *request, response);
  }
  if (!status.ok()) RF_LOG(kError, "connect failed: ", status.message());
  return cluster::ToGrpc(status);
}

absl::StatusOr<WorkerService::Connection> WorkerService::CheckConnection(
    const v1::ConnectRequest& request) {
  Connection connection;
  {
    MutexLock lock(&mu_);
    connection.shard = shard_;
    connection.statistics = statistics_;
  }
  if (connection.shard == nullptr) {
    return absl::FailedPreconditionError("connect: no weights are loaded");
  }
  RF_ASSIGN_OR_RETURN(connection.terms, CheckTerms(request, *connection.shard));
  if (request.epoch() <= last_epoch_) {
    return absl::FailedPreconditionError(absl::StrCat(
        "connect: epoch ", request.epoch(),
        " is over: this worker was asked into epoch ", last_epoch_.load()));
  }
  return connection;
}

absl::Status WorkerService::ConnectExclusive(grpc::ServerContext* context,
                                             const v1::ConnectRequest& request,
                                             v1::ConnectResponse* response) {
  // Another load may have ended since the first check.
  RF_ASSIGN_OR_RETURN(Connection connection, CheckConnection(request));
  {
    std::shared_ptr<WorkerEpoch> old;  // Ends outside the lock.
    MutexLock lock(&mu_);
    old.swap(epoch_);
  }
  const LoadedShard& shard = *connection.shard;
  cluster::CollectiveEndpoint::World peers{
      .addresses = {request.addresses().begin(), request.addresses().end()},
      .rings = {cluster::DataGroupOf(shard.plan.mesh, shard.plan.rank).ranks,
                cluster::DataAxisOf(shard.plan.mesh, shard.plan.rank).ranks},
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
          request.epoch(), shard.plan.rank, peers,
          cluster::Deadline::After(absl::Milliseconds(request.timeout_ms()))));
  const EpochSettings settings = {
      .model = {.wire = connection.terms.wire,
                .expert_capacity = request.expert_capacity(),
                .reproducible = request.reproducible(),
                .tiles =
                    TunedTiles(std::move(connection.terms.tiles), CpuModel())},
      .prefill_strategy = request.prefill_strategy(),
      .collective_timeout = absl::Milliseconds(request.collective_timeout_ms()),
      .context = static_cast<int>(request.context()),
      .cache_blocks = connection.terms.cache_blocks};
  RF_ASSIGN_OR_RETURN(
      std::shared_ptr<WorkerEpoch> epoch,
      WorkerEpoch::Create(request.epoch(), connection.shard,
                          connection.statistics, std::move(transport),
                          std::move(connection.terms.table),
                          endpoint_->recorder(), &trace_, settings));
  response->set_cache_bytes(epoch->cache_bytes());
  RF_LOG(kInfo, "connected with ", request.addresses_size() - 1,
         " peers in epoch ", request.epoch());
  MutexLock lock(&mu_);
  epoch_ = std::move(epoch);
  return absl::OkStatus();
}

grpc::Status WorkerService::Run(
    grpc::ServerContext* context,
    grpc::ServerReaderWriter<v1::StepResult, v1::StepPlan>* stream) {
  const cluster::ActiveCalls::Scope scope(&calls_);
  if (const absl::Status fenced = fence_.Check(*context); !fenced.ok()) {
    return cluster::ToGrpc(fenced);
  }
  const Exclusive exclusive(this, context, Exclusive::Mode::kIfFree, "Run");
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
  Mutex taken_mu;
  absl::Status taken_over;  // By another call, which it names.
  const auto why_taken = [&] {
    MutexLock lock(&taken_mu);
    return taken_over;
  };
  {
    MutexLock lock(&mu_);
    take_over_ = [&](const absl::Status& cause) {
      MutexLock taken_lock(&taken_mu);
      if (taken_over.ok()) taken_over = cause;
      plans.Close();
    };
  }
  const auto report = [&](absl::Status status, v1::StepResult result) {
    // The code is no CANCELLED, which a coordinator counts least of all.
    const absl::Status taken = why_taken();
    if (!taken.ok()) {
      status = cluster::IsSuperseded(taken)
                   ? taken
                   : absl::UnavailableError(taken.message());
    }
    flight_->Report(status);
    result.mutable_error()->set_superseded(cluster::IsSuperseded(status));
    result.mutable_error()->set_code(static_cast<uint32_t>(status.code()));
    result.mutable_error()->set_message(std::string(status.message()));
    {
      MutexLock lock(&mu_);
      result.mutable_error()->set_stopping(stopping_);
    }
    results.Push(std::move(result));
  };
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
    absl::Status status;
    while (status.ok() && plans.Pop(&plan)) {
      v1::StepResult result;
      status = epoch->Step(plan, &result);
      if (status.ok()) {
        if (!results.Push(std::move(result))) break;
        continue;
      }
      RF_LOG(kError, "step ", plan.step(), " failed: ", status.ToString());
      result.set_epoch(plan.epoch());
      result.set_step(plan.step());
      report(status, std::move(result));
    }
    if (status.ok() && !why_taken().ok()) report(status, v1::StepResult());
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
  take_over_ = nullptr;
  if (epoch_ == epoch) epoch_ = nullptr;
  if (on_run_end_ != nullptr) on_run_end_();
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
  const Exclusive exclusive(this, context, Exclusive::Mode::kIfIdle, "");
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
  const Exclusive exclusive(this, context, Exclusive::Mode::kIfIdle, "");
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
  const Exclusive exclusive(this, context, Exclusive::Mode::kIfIdle, "");
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

void WorkerService::Abort(const absl::Status& cause) {
  saver_.Stop();
  MutexLock lock(&mu_);
  stopping_ = true;
  if (tracing_ != nullptr) tracing_->TryCancel();
  endpoint_->Interrupt(cause);
}

}  // namespace ringfleet::worker
