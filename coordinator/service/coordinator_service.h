// SPDX-License-Identifier: Apache-2.0
// The Coordinator service, which turns users' calls into requests of the fleet.
#ifndef RINGFLEET_COORDINATOR_SERVICE_COORDINATOR_SERVICE_H_
#define RINGFLEET_COORDINATOR_SERVICE_COORDINATOR_SERVICE_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "cluster/process/deadline.h"
#include "cluster/rpc/active_calls.h"
#include "coordinator/fleet/fleet.h"
#include "coordinator/fleet/served_model.h"
#include "coordinator/scheduling/event_buffer.h"
#include "protos/coordinator.grpc.pb.h"

namespace ringfleet::coordinator {

// A call that arrives before the fleet is ready waits until its own deadline,
// at most ten minutes. The call fails at once when the fleet has failed for
// good. Thread-safe; one thread per running call.
class CoordinatorService final : public v1::Coordinator::Service {
 public:
  // `reference` says that the workers hold a float32 copy to compare scores
  // with. Both pointers must outlive the service.
  CoordinatorService(const ServedModel* model, Fleet* fleet, bool reference);

  grpc::Status Generate(grpc::ServerContext* context,
                        const v1::GenerateRequest* request,
                        grpc::ServerWriter<v1::GenerateEvent>* writer) override;
  grpc::Status Score(grpc::ServerContext* context,
                     const v1::ScoreRequest* request,
                     grpc::ServerWriter<v1::ScoreEvent>* writer) override;
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
  grpc::Status Cancel(grpc::ServerContext* context,
                      const v1::CancelRequest* request,
                      v1::CancelResponse* response) override;
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

  // The streams in service.
  cluster::ActiveCalls& calls() { return calls_; }

 private:
  // Makes a request with an id, whose events go into `events`.
  std::shared_ptr<Request> NewRequest(std::shared_ptr<EventBuffer> events);
  absl::Status RunGenerate(grpc::ServerContext* context,
                           const v1::GenerateRequest& request,
                           grpc::ServerWriter<v1::GenerateEvent>* writer);
  absl::Status RunScore(grpc::ServerContext* context,
                        const v1::ScoreRequest& request,
                        grpc::ServerWriter<v1::ScoreEvent>* writer);
  // Waits for the fleet, lets `prepare` complete the request for the fleet's
  // context, and submits the request.
  absl::Status Submit(grpc::ServerContext* context,
                      std::shared_ptr<Request> request,
                      const std::function<absl::Status(uint32_t)>& prepare);
  // Hands the request's events to `on_event` until the request has ended, and
  // returns its status. `on_event` returns false when the caller has gone. The
  // request is then cancelled, unless `detach` lets it run on.
  absl::Status Follow(grpc::ServerContext* context, const Request& request,
                      EventBuffer& events, bool detach,
                      const std::function<bool(EventBuffer::Event&)>& on_event);

  const ServedModel* const model_;
  Fleet* const fleet_;
  const bool reference_;
  const std::string id_prefix_;  // Random, so that ids differ after a restart.
  std::atomic<uint32_t> next_id_{1};
  cluster::ActiveCalls calls_;
};

}  // namespace ringfleet::coordinator

#endif  // RINGFLEET_COORDINATOR_SERVICE_COORDINATOR_SERVICE_H_
