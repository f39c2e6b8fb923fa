// SPDX-License-Identifier: Apache-2.0
// The Coordinator service, which turns users' calls into requests of the fleet.
#ifndef RINGFLEET_COORDINATOR_SERVICE_COORDINATOR_SERVICE_H_
#define RINGFLEET_COORDINATOR_SERVICE_COORDINATOR_SERVICE_H_

#include <memory>

#include "absl/status/statusor.h"
#include "cluster/rpc/active_calls.h"
#include "coordinator/fleet/fleet.h"
#include "coordinator/fleet/served_model.h"
#include "coordinator/jobs/job.h"
#include "coordinator/scheduling/request.h"
#include "coordinator/service/batch_calls.h"
#include "coordinator/service/detached_jobs.h"
#include "coordinator/service/fleet_jobs.h"
#include "coordinator/service/job_stream.h"
#include "protos/coordinator.grpc.pb.h"

namespace ringfleet::coordinator {

// Generate, Score and WatchJob hold no thread while their job waits or runs.
// Other calls hold one each. A call other than these that arrives before the
// fleet is ready waits until its own deadline, at most ten minutes. It fails at
// once when the fleet has failed for good. Thread-safe.
class CoordinatorService final
    : public v1::Coordinator::WithCallbackMethod_Generate<
          v1::Coordinator::WithCallbackMethod_Score<
              v1::Coordinator::WithCallbackMethod_WatchJob<
                  v1::Coordinator::Service>>> {
 public:
  // `settings` are the fleet's, which say what the workers hold. Both pointers
  // must outlive the service.
  CoordinatorService(const ServedModel* model, Fleet* fleet,
                     const v1::FleetSettings& settings);

  grpc::ServerWriteReactor<v1::GenerateEvent>* Generate(
      grpc::CallbackServerContext* context,
      const v1::GenerateRequest* request) override;
  grpc::ServerWriteReactor<v1::ScoreEvent>* Score(
      grpc::CallbackServerContext* context,
      const v1::ScoreRequest* request) override;
  grpc::ServerWriteReactor<v1::GenerateEvent>* WatchJob(
      grpc::CallbackServerContext* context,
      const v1::WatchJobRequest* request) override;
  grpc::Status ListJobs(grpc::ServerContext* context,
                        const v1::ListJobsRequest* request,
                        v1::ListJobsResponse* response) override;
  grpc::Status GetJob(grpc::ServerContext* context,
                      const v1::GetJobRequest* request,
                      v1::GetJobResponse* response) override;
  grpc::Status CancelJob(grpc::ServerContext* context,
                         const v1::CancelJobRequest* request,
                         v1::CancelJobResponse* response) override;
  grpc::Status SubmitBatch(grpc::ServerContext* context,
                           grpc::ServerReader<v1::SubmitBatchRequest>* reader,
                           v1::GetJobResponse* response) override;
  grpc::Status StreamResults(
      grpc::ServerContext* context, const v1::StreamResultsRequest* request,
      grpc::ServerWriter<v1::StreamResultsResponse>* writer) override;
  grpc::Status Tokenize(grpc::ServerContext* context,
                        const v1::TokenizeRequest* request,
                        v1::TokenizeResponse* response) override;
  grpc::Status Detokenize(grpc::ServerContext* context,
                          const v1::DetokenizeRequest* request,
                          v1::DetokenizeResponse* response) override;
  grpc::Status DescribeCluster(grpc::ServerContext* context,
                               const v1::DescribeClusterRequest* request,
                               v1::ClusterState* response) override;
  grpc::Status DescribeExperts(grpc::ServerContext* context,
                               const v1::DescribeExpertsRequest* request,
                               v1::DescribeExpertsResponse* response) override;
  grpc::Status Bench(grpc::ServerContext* context,
                     const v1::BenchRequest* request,
                     grpc::ServerWriter<v1::BenchProgress>* writer) override;
  grpc::Status Rebalance(
      grpc::ServerContext* context, const v1::RebalanceRequest* request,
      grpc::ServerWriter<v1::RebalanceProgress>* writer) override;
  grpc::Status Trace(
      grpc::ServerContext* context,
      grpc::ServerReaderWriter<v1::TraceProgress, v1::TraceRequest>* stream)
      override;

  // The jobs of this service and of others.
  FleetJobs& jobs() { return jobs_; }
  // Calls about batches fail until they are set, before the first call.
  BatchCalls& batches() { return batches_; }
  const BatchCalls& batches() const { return batches_; }
  // Keeps detached jobs from here on, and goes on with those that the store
  // has, before the first call. `detached` must outlive the service.
  void KeepDetached(DetachedJobs* detached);
  // The streams in service.
  cluster::ActiveCalls& calls() { return calls_; }

 private:
  // Also adds what the prompt says about the text.
  absl::StatusOr<Request> GenerateRequestOf(const v1::GenerateRequest& wanted,
                                            TextRules* rules);
  absl::StatusOr<Request> ScoreRequestOf(const v1::ScoreRequest& wanted);
  // Makes a job and hands it to the fleet. Errors: those of the functions above
  // and of Fleet::Submit.
  absl::StatusOr<std::shared_ptr<Job>> Submit(
      const v1::GenerateRequest& wanted);
  absl::StatusOr<std::shared_ptr<Job>> Submit(const v1::ScoreRequest& wanted);
  TextRules RulesOf(const v1::GenerateRequest& wanted) const;
  // Adds a job that the store has.
  absl::Status Restore(DetachedJobs::Kept kept);
  // Sends a job's events, or its error. `owner`: the job ends with its caller
  // unless it is kept.
  template <typename Event>
  grpc::ServerWriteReactor<Event>* Stream(
      absl::StatusOr<std::shared_ptr<Job>> job,
      std::unique_ptr<JobEvents<Event>> events, bool owner);

  const ServedModel* const model_;
  Fleet* const fleet_;
  const bool reference_;    // The workers hold a float32 copy.
  const bool without_mtp_;  // The workers leave out prediction layers.
  const std::string served_model_;
  FleetJobs jobs_;
  BatchCalls batches_;
  DetachedJobs* detached_ = nullptr;  // Null: they end with the coordinator.
  cluster::ActiveCalls calls_;
};

}  // namespace ringfleet::coordinator

#endif  // RINGFLEET_COORDINATOR_SERVICE_COORDINATOR_SERVICE_H_
