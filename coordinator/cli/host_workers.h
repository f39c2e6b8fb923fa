// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_COORDINATOR_CLI_HOST_WORKERS_H_
#define RINGFLEET_COORDINATOR_CLI_HOST_WORKERS_H_

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cluster/config/config.h"
#include "coordinator/cli/launcher.h"

namespace ringfleet::coordinator::cli {

// The workers of a cluster file on their hosts, without a coordinator, for as
// long as one command needs them. Every exit path stops the workers. After a
// command that was killed, `ringfleet down` ends the workers. Call from main's
// thread.
class HostWorkers {
 public:
  // Returns when all workers answer. They are idle then. `cluster_file` is the
  // path for messages.
  //
  // Errors: INVALID_ARGUMENT: a worker's port is not known before it runs.
  //   FAILED_PRECONDITION: a part of the fleet runs. UNAVAILABLE: a host cannot
  //   be reached, or a worker ends or does not answer. Errors of FleetLock and
  //   RunLaunchScript.
  static absl::StatusOr<std::unique_ptr<HostWorkers>> Start(
      const std::string& cluster_file, const cluster::ClusterConfig& config);
  ~HostWorkers();
  HostWorkers(const HostWorkers&) = delete;
  HostWorkers& operator=(const HostWorkers&) = delete;

  // Returns HOST:PORT of each rank.
  static std::vector<std::string> Addresses(
      const cluster::ClusterConfig& config);

  // Ends all workers. Later calls do nothing. Errors: those of RunLaunchScript.
  absl::Status Stop();

 private:
  HostWorkers(const cluster::ClusterConfig& config, FleetLock lock)
      : config_(config), lock_(std::move(lock)) {}

  const cluster::ClusterConfig config_;
  const FleetLock lock_;
  std::string ranks_;  // "0-3", once they may run.
};

}  // namespace ringfleet::coordinator::cli

#endif  // RINGFLEET_COORDINATOR_CLI_HOST_WORKERS_H_
