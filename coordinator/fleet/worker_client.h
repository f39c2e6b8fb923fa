// SPDX-License-Identifier: Apache-2.0
// The coordinator's connection to one worker for the length of one epoch.
#ifndef RINGFLEET_COORDINATOR_FLEET_WORKER_CLIENT_H_
#define RINGFLEET_COORDINATOR_FLEET_WORKER_CLIENT_H_

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "cluster/process/deadline.h"
#include "cluster/rpc/cancellable_calls.h"
#include "protos/host.grpc.pb.h"
#include "protos/worker.grpc.pb.h"

namespace ringfleet::coordinator {

// Time for WorkerClient::Statistics if the caller sets no deadline.
inline constexpr absl::Duration kStatisticsTimeout = absl::Seconds(30);

// Calls block their thread. All functions may be called from any thread,
// except that one thread at a time sends plans.
class WorkerClient {
 public:
  // Calls carry `coordinator_id`, unless it is empty.
  explicit WorkerClient(const std::string& address,
                        std::string coordinator_id = "");
  ~WorkerClient();  // Cancels running calls and waits for them.
  WorkerClient(const WorkerClient&) = delete;
  WorkerClient& operator=(const WorkerClient&) = delete;

  // Calls `on_progress` for each message, in this thread. Returns the message
  // that says `done`.
  absl::StatusOr<v1::LoadProgress> Load(
      const v1::LoadRequest& request, cluster::Deadline deadline,
      const std::function<void(const v1::LoadProgress&)>& on_progress);

  absl::StatusOr<v1::FindCheckpointResponse> FindCheckpoint(
      const v1::FindCheckpointRequest& request, cluster::Deadline deadline);

  // Returns all messages, joined.
  absl::StatusOr<v1::CheckpointFacts> DescribeCheckpoint(
      const v1::DescribeCheckpointRequest& request, cluster::Deadline deadline);

  absl::StatusOr<v1::ConnectResponse> Connect(const v1::ConnectRequest& request,
                                              cluster::Deadline deadline);

  // Calls `on_bytes` with the bytes loaded so far, in this thread. If
  // `on_bytes` returns false, the call ends with CANCELLED.
  absl::Status PrepareExperts(const v1::PrepareExpertsRequest& request,
                              cluster::Deadline deadline,
                              const std::function<bool(uint64_t)>& on_bytes);

  absl::StatusOr<v1::StatisticsResponse> Statistics(
      const v1::StatisticsRequest& request, cluster::Deadline deadline);

  absl::StatusOr<v1::ClockReading> ReadClock(cluster::Deadline deadline);

  // Calls `await_end` once the worker records. The worker stops when
  // `await_end` returns. Then calls `on_chunk` for each message. CANCELLED:
  // `await_end` has returned false. The first error of `on_chunk` ends the
  // call.
  absl::Status Trace(
      const v1::TraceRequest& request, const std::function<bool()>& await_end,
      const std::function<absl::Status(v1::TraceChunk)>& on_chunk);

  // Calls `await_others` when the worker is ready. The worker measures when
  // `await_others` returns.
  absl::StatusOr<v1::MeasureMemoryResponse> MeasureMemory(
      const v1::MeasureMemoryRequest& request, cluster::Deadline deadline,
      const std::function<void()>& await_others);

  // Calls `on_progress` for each message, in this thread, and `await_others`
  // when this rank has done all cases. The rank leaves the epoch when
  // `await_others` returns. OK only after the last case.
  absl::Status MeasureCollectives(
      const v1::MeasureCollectivesRequest& request,
      const std::function<void(const v1::MeasureCollectivesProgress&)>&
          on_progress,
      const std::function<void()>& await_others);

  // Opens the Run stream. A thread of this object calls `on_result` for each
  // result and, last, `on_end` with the reason for the stream's end. OK: the
  // worker ended it in order. The stream has no deadline: the caller watches
  // each step and cancels. Call at most once.
  void StartRun(std::function<void(v1::StepResult)> on_result,
                std::function<void(absl::Status)> on_end);

  // Sends a plan. Returns false if the stream has ended; `on_end` tells why.
  // Requires StartRun.
  bool Send(const v1::StepPlan& plan);

  // Ends running calls with CANCELLED, and every later call at once.
  void Cancel();

  // Returns true if the connection is down. After UNAVAILABLE, the answer tells
  // apart a process that has gone and one that reports another's loss.
  bool Disconnected() const;

 private:
  // Begins every call but streams without a deadline.
  void Prepare(grpc::ClientContext& context, cluster::Deadline deadline);
  void ReadResults();

  const std::string coordinator_id_;
  const std::shared_ptr<grpc::Channel> channel_;
  std::once_flag first_call_;
  const std::unique_ptr<v1::Worker::Stub> stub_;
  const std::unique_ptr<v1::Host::Stub> host_;
  grpc::ClientContext run_context_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::StepPlan, v1::StepResult>> run_;
  std::function<void(v1::StepResult)> on_result_;
  std::function<void(absl::Status)> on_end_;
  std::thread reader_;
  cluster::CancellableCalls calls_;
};

}  // namespace ringfleet::coordinator

#endif  // RINGFLEET_COORDINATOR_FLEET_WORKER_CLIENT_H_
