// SPDX-License-Identifier: Apache-2.0
// A whole coordinator in one object: the model's description, the fleet, the
// services and their port. The daemon runs one, and so does a command that
// starts its own workers (--local).
#ifndef RINGFLEET_COORDINATOR_SERVICE_COORDINATOR_SERVER_H_
#define RINGFLEET_COORDINATOR_SERVICE_COORDINATOR_SERVER_H_

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "cluster/checkpoint/checkpoint_files_service.h"
#include "cluster/process/deadline.h"
#include "cluster/rpc/server.h"
#include "coordinator/batch/batch_endpoints.h"
#include "coordinator/batch/batches.h"
#include "coordinator/fleet/fleet.h"
#include "coordinator/fleet/membership_service.h"
#include "coordinator/fleet/served_model.h"
#include "coordinator/http/http_face.h"
#include "coordinator/service/coordinator_service.h"
#include "coordinator/service/detached_jobs.h"
#include "coordinator/service/load_notices.h"
#include "coordinator/store/store.h"
#include "protos/cluster.pb.h"

namespace ringfleet::coordinator {

// Where batches and detached jobs outlive the coordinator.
struct StateOptions {
  std::string folder;  // Empty: nowhere; there are no batches.
  // A folder that cannot be used is an error, else a warning.
  bool required = false;
};

struct CoordinatorOptions {
  FleetOptions fleet;
  cluster::ServerAddress listen = {"127.0.0.1", 0};
  bool allow_insecure = false;  // Listen on addresses that are not loopback.
  // Time in which calls end by themselves, once Shutdown has failed their jobs.
  absl::Duration shutdown_grace = absl::Seconds(2);
  std::optional<HttpOptions> http;  // Absent: no HTTP port.
  StateOptions state;
};

// Thread-safe.
class CoordinatorServer {
 public:
  // Reads the model's description and listens. Workers of this build
  // (cluster/process/build_info.h) may register from here on.
  //
  // Errors: those of ServedModel::Load, DaemonServer::Start and
  // HttpFace::Start; those of Store::Open where the state is required;
  // INVALID_ARGUMENT: an empty mesh axis, no slots, a context beyond the
  // model's, weights gathered in a mesh with several data groups, or expert
  // slots that do not fit the mesh.
  static absl::StatusOr<std::unique_ptr<CoordinatorServer>> Start(
      CoordinatorOptions options);
  ~CoordinatorServer();  // Shutdown, unless done before.

  // Threads of a store: its own two, four of batches, one of detached jobs.
  static constexpr int kStoreThreads = 7 + BatchEndpoints::kThreads;

  int port() const { return server_->port(); }
  // Null: no HTTP port.
  const HttpFace* http() const { return http_.get(); }
  v1::ClusterState state() const { return fleet_.State(); }
  // Returns LoadNotices of the model and the settings, which Start logs.
  std::vector<std::string> notices() const {
    return LoadNotices(model_->spec(), options_.fleet.settings);
  }

  // Returns why batches cannot be stored. OK: they can, or no folder was given.
  absl::Status batch_trouble() const {
    return coordinator_service_.batches().trouble();
  }

  // Waits until the fleet can generate. Errors: those of Fleet::WaitReady.
  absl::Status WaitReady(cluster::Deadline deadline,
                         const std::function<bool()>& cancelled = nullptr) {
    return fleet_.WaitReady(deadline, cancelled);
  }

  // Ends the fleet: jobs fail with `cause`, and so do later calls. Serves on.
  void EndFleet(const absl::Status& cause) { fleet_.End(cause); }

  // Refuses new answers over HTTP, and waits until all have ended, but not
  // beyond the deadline.
  void DrainHttp(cluster::Deadline deadline);

  // Fails running jobs with UNAVAILABLE, lets their calls end, and stops
  // serving. The workers stay. Later calls do nothing.
  void Shutdown();

 private:
  CoordinatorServer(CoordinatorOptions options,
                    std::unique_ptr<ServedModel> model);
  absl::Status OpenStore();

  const CoordinatorOptions options_;
  const std::unique_ptr<ServedModel> model_;
  Fleet fleet_;
  CoordinatorService coordinator_service_;
  // These end before the service, whose jobs they use.
  std::unique_ptr<Store> store_;  // Null: no batches.
  std::unique_ptr<Batches> batches_;
  std::unique_ptr<BatchEndpoints> batch_endpoints_;
  std::unique_ptr<DetachedJobs> detached_;
  MembershipService membership_service_;
  cluster::CheckpointFilesService files_service_;
  std::unique_ptr<cluster::DaemonServer> server_;
  std::unique_ptr<HttpFace> http_;
};

}  // namespace ringfleet::coordinator

#endif  // RINGFLEET_COORDINATOR_SERVICE_COORDINATOR_SERVER_H_
