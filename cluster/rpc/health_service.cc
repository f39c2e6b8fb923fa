// SPDX-License-Identifier: Apache-2.0
#include "cluster/rpc/health_service.h"

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "cluster/process/deadline.h"

namespace ringfleet::cluster {
namespace {

using ::grpc::health::v1::HealthCheckRequest;
using ::grpc::health::v1::HealthCheckResponse;

// A synchronous call learns only by asking that its client has gone.
constexpr absl::Duration kCancelTick = absl::Milliseconds(200);

}  // namespace

HealthService::HealthService() { statuses_[""] = HealthCheckResponse::SERVING; }

void HealthService::SetServing(const std::string& service, bool serving) {
  MutexLock lock(&mu_);
  if (shut_down_) return;
  statuses_[service] =
      serving ? HealthCheckResponse::SERVING : HealthCheckResponse::NOT_SERVING;
  changed_.NotifyAll();
}

void HealthService::Shutdown() {
  MutexLock lock(&mu_);
  shut_down_ = true;
  for (auto& [service, status] : statuses_) {
    status = HealthCheckResponse::NOT_SERVING;
  }
  changed_.NotifyAll();
}

HealthService::ServingStatus HealthService::Status(
    const std::string& service) const {
  const auto found = statuses_.find(service);
  return found == statuses_.end() ? HealthCheckResponse::SERVICE_UNKNOWN
                                  : found->second;
}

grpc::Status HealthService::Check(grpc::ServerContext*,
                                  const HealthCheckRequest* request,
                                  HealthCheckResponse* response) {
  MutexLock lock(&mu_);
  const ServingStatus status = Status(request->service());
  if (status == HealthCheckResponse::SERVICE_UNKNOWN) {
    return {grpc::StatusCode::NOT_FOUND,
            absl::StrCat("no service ", request->service())};
  }
  response->set_status(status);
  return grpc::Status::OK;
}

grpc::Status HealthService::Watch(
    grpc::ServerContext* context, const HealthCheckRequest* request,
    grpc::ServerWriter<HealthCheckResponse>* writer) {
  {
    MutexLock lock(&mu_);
    if (watches_ == kMaxWatches) {
      return {grpc::StatusCode::RESOURCE_EXHAUSTED,
              absl::StrCat(kMaxWatches, " health watches are under way")};
    }
    ++watches_;
  }
  ServingStatus sent = HealthCheckResponse::UNKNOWN;
  bool ending = false;
  while (!ending && !context->IsCancelled()) {
    ServingStatus status;
    {
      MutexLock lock(&mu_);
      status = Status(request->service());
      if (status == sent && !shut_down_) {
        changed_.WaitUntil(&mu_, Deadline::After(kCancelTick).when());
        status = Status(request->service());
      }
      ending = shut_down_;
    }
    if (status == sent) continue;
    HealthCheckResponse response;
    response.set_status(status);
    if (!writer->Write(response)) break;
    sent = status;
  }
  MutexLock lock(&mu_);
  --watches_;
  return {grpc::StatusCode::UNAVAILABLE, "the daemon is stopping"};
}

}  // namespace ringfleet::cluster
