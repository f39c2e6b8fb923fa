// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_CLUSTER_RPC_HEALTH_SERVICE_H_
#define RINGFLEET_CLUSTER_RPC_HEALTH_SERVICE_H_

#include <map>
#include <string>

#include "kernels/mutex.h"
#include "protos/health.grpc.pb.h"

namespace ringfleet::cluster {

// The standard health service, with synchronous calls. gRPC's own health
// service uses the callback API, whose queue also takes connections of the
// server. Its two threads then wake for every frame of a collective on such a
// connection, and a small all-reduce takes three times as long. Thread-safe.
class HealthService final : public grpc::health::v1::Health::Service {
 public:
  // The process as a whole, service "", serves from the start.
  HealthService();

  void SetServing(const std::string& service, bool serving);

  // Reports that nothing serves any more and ends all watches. Later calls of
  // SetServing do nothing.
  void Shutdown();

  grpc::Status Check(grpc::ServerContext* context,
                     const grpc::health::v1::HealthCheckRequest* request,
                     grpc::health::v1::HealthCheckResponse* response) override;

  // Takes a thread of the server. RESOURCE_EXHAUSTED: kMaxWatches are under
  // way.
  grpc::Status Watch(grpc::ServerContext* context,
                     const grpc::health::v1::HealthCheckRequest* request,
                     grpc::ServerWriter<grpc::health::v1::HealthCheckResponse>*
                         writer) override;

 private:
  using ServingStatus = grpc::health::v1::HealthCheckResponse::ServingStatus;
  static constexpr int kMaxWatches = 32;

  ServingStatus Status(const std::string& service) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  Mutex mu_;
  CondVar changed_;
  std::map<std::string, ServingStatus> statuses_ ABSL_GUARDED_BY(mu_);
  bool shut_down_ ABSL_GUARDED_BY(mu_) = false;
  int watches_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_RPC_HEALTH_SERVICE_H_
