// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_COORDINATOR_CLI_LOCAL_FLEET_H_
#define RINGFLEET_COORDINATOR_CLI_LOCAL_FLEET_H_

#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "coordinator/coordinator_server.h"

namespace ringfleet::coordinator::cli {

// A fleet that lives as long as one command: the coordinator inside this
// process and worker processes on loopback. The workers end on every exit
// path: they are stopped by the destructor, and follow this process when it is
// killed. Their logs are in a temporary folder, removed unless the command
// failed. Call from main's thread, which must outlive the fleet.
class LocalFleet {
 public:
  // Starts everything and returns when the fleet can generate. `options` says
  // what to serve; one_shot is set here, and threads to a share of the cores
  // unless given.
  //
  // Errors: of CoordinatorServer and of the workers; CANCELLED on a signal.
  static absl::StatusOr<std::unique_ptr<LocalFleet>> Start(
      FleetOptions options);
  ~LocalFleet();

  std::string address() const;  // HOST:PORT of the coordinator.

  // Stops the workers and the coordinator, at the end of a command that has
  // succeeded. Later calls do nothing.
  //
  // Errors: INTERNAL: a worker ended by itself with a signal or an exit code
  // other than 0; what it computed may be wrong.
  absl::Status Stop();

  // Keeps the logs and shows on stderr where they are and how the log of the
  // failing worker ends, unless `status` speaks for itself (bad input, bad
  // files, an interrupt).
  void Explain(const absl::Status& status);

 private:
  struct Child {
    pid_t pid = -1;
    bool exited = false;
    int wait_status = 0;
    bool killed = false;  // By this process, for taking too long.

    bool failed() const { return exited && !killed && wait_status != 0; }
  };

  LocalFleet() = default;
  absl::Status MakeFolder();
  absl::Status SpawnWorkers(int count);
  absl::Status WaitReady();
  // Notices workers that ended; the first of them, or -1.
  int ReapExited();
  // The first that failed, or -1.
  int FailedWorker() const;
  std::string LogPath(int rank) const;
  void StopWorkers();

  std::string folder_;
  bool keep_folder_ = false;
  int alive_pipe_ = -1;  // Open as long as this process lives.
  std::vector<Child> children_;
  std::unique_ptr<CoordinatorServer> coordinator_;
};

}  // namespace ringfleet::coordinator::cli

#endif  // RINGFLEET_COORDINATOR_CLI_LOCAL_FLEET_H_
