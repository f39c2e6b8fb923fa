// SPDX-License-Identifier: Apache-2.0
// The HTTP port of a coordinator in one object: server, access, endpoints.
#ifndef RINGFLEET_COORDINATOR_HTTP_HTTP_FACE_H_
#define RINGFLEET_COORDINATOR_HTTP_HTTP_FACE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "cluster/process/deadline.h"
#include "cluster/rpc/host_address.h"
#include "coordinator/fleet/served_model.h"
#include "coordinator/http/access.h"
#include "coordinator/http/answer.h"
#include "coordinator/http/api.h"
#include "coordinator/http/http_metrics.h"
#include "coordinator/http/http_routes.h"
#include "coordinator/http/http_server.h"
#include "coordinator/http/job_source.h"
#include "coordinator/http/key_loads.h"
#include "coordinator/http/work_pool.h"

namespace ringfleet::coordinator {

struct HttpOptions {
  cluster::ServerAddress listen = {"127.0.0.1", 8080};
  // Listen on other addresses without TLS and keys.
  bool allow_insecure = false;
  std::string alias;  // Name of the model; empty: that of its folder.
  AccessOptions access;
  HttpRoutes* routes = nullptr;        // Further endpoints; null: none.
  uint32_t default_max_tokens = 4096;  // A chat may ask for another limit.
  size_t most_jobs = 1024;             // Choices that wait or run.
  KeyLimits key_limits;
  // A request's answer ends within this time after its last byte.
  absl::Duration request_timeout = absl::InfiniteDuration();
  HttpLimits limits;
};

// Returns the name under which a model is served: the alias, or else that of
// the model's folder.
std::string ServedName(const std::string& alias, absl::string_view model_dir);

// Thread-safe, but for Stop.
class HttpFace {
 public:
  // Threads beside those of a coordinator: I/O, work, and a look at files.
  static constexpr int kThreads = 4;

  // Listens and answers. `model`, `jobs` and `options.routes` must outlive this
  // object.
  //
  // Errors: those of Access::Open and HttpServer::Listen. INVALID_ARGUMENT: the
  // host is not loopback, and TLS or keys are missing, and !allow_insecure.
  static absl::StatusOr<std::unique_ptr<HttpFace>> Start(
      const HttpOptions& options, const ServedModel* model,
      const std::string& model_dir, JobSource* jobs);
  ~HttpFace();  // Stop without grace.

  int port() const { return server_->port(); }
  std::string url() const;  // "http://127.0.0.1:8080"

  // Refuses new jobs, and waits until none runs. Returns false if the deadline
  // passes first. Not beside Stop.
  bool Drain(cluster::Deadline deadline);
  // Sends what is queued for at most `grace`, and ends. Later calls do nothing.
  void Stop(absl::Duration grace);

 private:
  HttpFace() = default;

  cluster::ServerAddress address_;
  std::unique_ptr<Access> access_;
  HttpMetrics metrics_;
  AnswerHost host_;
  HttpRoutes* routes_ = nullptr;
  std::unique_ptr<Api> api_;
  std::unique_ptr<HttpServer> server_;
  std::unique_ptr<WorkPool> pool_;  // Ends before the server.
};

}  // namespace ringfleet::coordinator

#endif  // RINGFLEET_COORDINATOR_HTTP_HTTP_FACE_H_
