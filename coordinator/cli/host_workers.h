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

// The workers of a cluster file on their hosts, without a coordinator. The
// workers live as long as one command. Every exit of the command stops the
// workers, except when the command is killed. `ringfleet down` then ends the
// workers. Call from main's thread.
class HostWorkers {
 public:
  // Starts all workers and returns when all of them answer. The workers are
  // idle then. `cluster_file` is the path for error messages.
  //
  // Errors: those of FleetLock and RunLaunchScript. INVALID_ARGUMENT: the
  // cluster file has no port for a worker. FAILED_PRECONDITION: a process of
  // the fleet runs already. UNAVAILABLE: a host cannot be reached, or a worker
  // ends or does not answer.
  static absl::StatusOr<std::unique_ptr<HostWorkers>> Start(
      const std::string& cluster_file, const cluster::ClusterConfig& config);
  ~HostWorkers();
  HostWorkers(const HostWorkers&) = delete;
  HostWorkers& operator=(const HostWorkers&) = delete;

  // Returns HOST:PORT of each rank.
  static std::vector<std::string> Addresses(
      const cluster::ClusterConfig& config);

  // Ends all workers. A second call does nothing. Errors: those of
  // RunLaunchScript.
  absl::Status Stop();

 private:
  HostWorkers(const cluster::ClusterConfig& config, FleetLock lock)
      : config_(config), lock_(std::move(lock)) {}

  const cluster::ClusterConfig config_;
  const FleetLock lock_;
  std::string ranks_;  // Ranks that may run, such as "0-3". Empty: none.
};

}  // namespace ringfleet::coordinator::cli

#endif  // RINGFLEET_COORDINATOR_CLI_HOST_WORKERS_H_
