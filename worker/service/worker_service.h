// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_WORKER_SERVICE_WORKER_SERVICE_H_
#define RINGFLEET_WORKER_SERVICE_WORKER_SERVICE_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "cluster/checkpoint/checkpoint_files_service.h"
#include "cluster/recording/trace_recorder.h"
#include "cluster/rpc/active_calls.h"
#include "cluster/transport/link_transport.h"
#include "kernels/mutex.h"
#include "protos/cluster.pb.h"
#include "protos/worker.grpc.pb.h"
#include "worker/execution/expert_statistics.h"
#include "worker/execution/flight_log.h"
#include "worker/execution/loaded_shard.h"
#include "worker/execution/shard_saver.h"
#include "worker/execution/worker_epoch.h"
#include "worker/service/coordinator_fence.h"

namespace ringfleet::worker {

// Serves Worker: holds one shard and at most one epoch. Load or Connect during
// a run ends that run, because its coordinator has started over. The run's
// caller is told whose call it was. A call that is refused ends nothing, since
// calls are checked first. Calls of a coordinator that the worker is no longer
// registered with are refused. Thread-safe. Errors of the calls are described
// in worker.proto.
class WorkerService final : public v1::Worker::Service {
 public:
  // `endpoint` carries the links, and `flight` has its recorder. Both must
  // outlive the service. `memory_limit_bytes` bounds weights and cache; 0: the
  // available memory. `shard_cache` is the folder of packed shards; empty: a
  // request names it. `coordinator` is the address at which this worker reaches
  // the coordinator.
  WorkerService(cluster::CollectiveEndpoint* endpoint, FlightLog* flight,
                int default_threads, uint64_t memory_limit_bytes,
                std::string shard_cache = "", std::string coordinator = "");
  ~WorkerService() override;

  grpc::Status Load(grpc::ServerContext* context,
                    const v1::LoadRequest* request,
                    grpc::ServerWriter<v1::LoadProgress>* writer) override;
  grpc::Status Connect(grpc::ServerContext* context,
                       const v1::ConnectRequest* request,
                       v1::ConnectResponse* response) override;
  grpc::Status Run(
      grpc::ServerContext* context,
      grpc::ServerReaderWriter<v1::StepResult, v1::StepPlan>* stream) override;
  grpc::Status PrepareExperts(
      grpc::ServerContext* context, const v1::PrepareExpertsRequest* request,
      grpc::ServerWriter<v1::PrepareExpertsProgress>* writer) override;
  grpc::Status Statistics(grpc::ServerContext* context,
                          const v1::StatisticsRequest* request,
                          v1::StatisticsResponse* response) override;
  grpc::Status FlightRecords(grpc::ServerContext* context,
                             const v1::FlightRecordsRequest* request,
                             v1::FlightRecordsResponse* response) override;
  grpc::Status Trace(grpc::ServerContext* context,
                     grpc::ServerReaderWriter<v1::TraceChunk, v1::TraceRequest>*
                         stream) override;
  grpc::Status MeasureCollectives(
      grpc::ServerContext* context,
      grpc::ServerReaderWriter<v1::MeasureCollectivesProgress,
                               v1::MeasureCollectivesRequest>* stream) override;
  grpc::Status Synthesize(
      grpc::ServerContext* context, const v1::SynthesizeRequest* request,
      grpc::ServerWriter<v1::SynthesizeProgress>* writer) override;
  grpc::Status Convert(grpc::ServerContext* context,
                       const v1::LoadRequest* request,
                       grpc::ServerWriter<v1::LoadProgress>* writer) override;
  grpc::Status DescribeCheckpoint(
      grpc::ServerContext* context,
      const v1::DescribeCheckpointRequest* request,
      grpc::ServerWriter<v1::CheckpointFacts>* writer) override;
  grpc::Status FindCheckpoint(grpc::ServerContext* context,
                              const v1::FindCheckpointRequest* request,
                              v1::FindCheckpointResponse* response) override;
  grpc::Status MeasureMemory(
      grpc::ServerContext* context,
      grpc::ServerReaderWriter<v1::MeasureMemoryResponse,
                               v1::MeasureMemoryRequest>* stream) override;

  // Ends the current calls with `cause` and refuses later ones, so that the
  // server can shut down at once.
  void Abort(const absl::Status& cause);

  // Returns the latest epoch that a coordinator has asked this worker to enter;
  // 0: none so far. The worker enters later epochs only.
  uint64_t last_epoch() const { return last_epoch_; }

  // Begins a registration: adds the last epoch and the weights that the worker
  // holds. EndRegistration must follow.
  void BeginRegistration(v1::RegisterRequest* request) ABSL_LOCKS_EXCLUDED(mu_);
  // Ends a registration with the coordinator of this id, whose calls are served
  // from here on. An active call of an earlier coordinator ends. Empty: the
  // registration has failed, and changes nothing.
  void EndRegistration(const std::string& coordinator_id)
      ABSL_LOCKS_EXCLUDED(mu_);
  // `on_end` is called at the end of each Run, with a lock of this object held.
  // Null: nothing is called.
  void SetOnRunEnd(std::function<void()> on_end) ABSL_LOCKS_EXCLUDED(mu_);

  // Adds the worker's last epoch and figures, and each expert's recent tokens.
  void AddFigures(bool with_experts, v1::HeartbeatRequest* heartbeat)
      ABSL_LOCKS_EXCLUDED(mu_);

  // Serves the files that FindCheckpoint has found. Register it beside this
  // service.
  cluster::CheckpointFilesService& checkpoint_files() { return files_; }

  // Returns the open streams.
  cluster::ActiveCalls& calls() { return calls_; }

 private:
  // Scope of an exclusive call. Load, Connect, Run, MeasureCollectives,
  // Synthesize and Convert exclude each other.
  class Exclusive;

  // A Connect request that is checked.
  struct Connection;

  absl::Status CheckedLoad(grpc::ServerContext* context,
                           const v1::LoadRequest& request,
                           grpc::ServerWriter<v1::LoadProgress>* writer);
  absl::Status LoadExclusive(
      const v1::LoadRequest& request, LoadSettings settings,
      PlannedLoad planned,
      const std::function<absl::Status(const v1::LoadProgress&)>& report);
  absl::Status PrepareInEpoch(
      grpc::ServerContext* context, const v1::PrepareExpertsRequest& request,
      grpc::ServerWriter<v1::PrepareExpertsProgress>* writer);
  absl::StatusOr<Connection> CheckConnection(const v1::ConnectRequest& request)
      ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status ConnectExclusive(grpc::ServerContext* context,
                                const v1::ConnectRequest& request,
                                v1::ConnectResponse* response);
  // Records and sends the only trace.
  absl::Status TraceAlone(
      grpc::ServerContext* context, v1::TraceRequest request,
      grpc::ServerReaderWriter<v1::TraceChunk, v1::TraceRequest>* stream);
  LoadSettings SettingsNow() const;
  bool stopping();

  cluster::CollectiveEndpoint* const endpoint_;
  FlightLog* const flight_;
  const int default_threads_;
  const uint64_t memory_limit_bytes_;  // 0: the available memory.
  const std::string shard_cache_;      // Empty: a request names it.
  const std::string coordinator_;
  cluster::CheckpointFilesService files_;
  cluster::ActiveCalls calls_;
  CoordinatorFence fence_;
  std::atomic<uint64_t> last_epoch_{0};  // The exclusive call writes it.
  std::atomic<bool> measures_memory_{false};
  std::atomic<bool> prepares_experts_{false};
  cluster::TraceRecorder trace_;  // One for all epochs.

  Mutex mu_;
  CondVar idle_;
  bool busy_ ABSL_GUARDED_BY(mu_) = false;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  // The exclusive call, and the function that tells its caller who takes over.
  // Null: the call is cancelled instead.
  grpc::ServerContext* holder_ ABSL_GUARDED_BY(mu_) = nullptr;
  std::function<void(const absl::Status&)> take_over_ ABSL_GUARDED_BY(mu_);
  uint64_t holders_ ABSL_GUARDED_BY(mu_) = 0;  // So far.
  std::function<void()> on_run_end_ ABSL_GUARDED_BY(mu_);
  grpc::ServerContext* tracing_ ABSL_GUARDED_BY(mu_) = nullptr;
  std::shared_ptr<LoadedShard> shard_ ABSL_GUARDED_BY(mu_);
  std::shared_ptr<ExpertStatistics> statistics_ ABSL_GUARDED_BY(mu_);
  std::shared_ptr<WorkerEpoch> epoch_ ABSL_GUARDED_BY(mu_);

  ShardSaver saver_;  // The exclusive call starts and ends it.
};

}  // namespace ringfleet::worker

#endif  // RINGFLEET_WORKER_SERVICE_WORKER_SERVICE_H_
