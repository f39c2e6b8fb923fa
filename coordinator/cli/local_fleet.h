// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_COORDINATOR_CLI_LOCAL_FLEET_H_
#define RINGFLEET_COORDINATOR_CLI_LOCAL_FLEET_H_

#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "coordinator/cli/local_workers.h"
#include "coordinator/service/coordinator_server.h"

namespace ringfleet::coordinator::cli {

// A fleet that lives as long as one command: a coordinator in this process, and
// LocalWorkers. A worker that dies once the fleet was ready starts again, and
// running jobs go on. A worker that dies too often ends the fleet: jobs and
// later calls get the error of LocalWorkers::KeepRunning. Call from main's
// thread, which must outlive the fleet.
class LocalFleet {
 public:
  // Starts workers and coordinator, and returns when the fleet can generate.
  // Sets start_once. Gives each worker an equal part of the cores unless
  // `options` sets threads. `http`: the coordinator has an HTTP port, too.
  // `state`: and batches, if it names a folder.
  // Prints CoordinatorServer::notices and the workers' warnings on stderr.
  //
  // Errors: those of CoordinatorServer and of the workers. CANCELLED: an
  // interrupt.
  static absl::StatusOr<std::unique_ptr<LocalFleet>> Start(
      FleetOptions options, std::optional<HttpOptions> http = std::nullopt,
      StateOptions state = {});
  ~LocalFleet();

  std::string address() const;  // HOST:PORT of the coordinator.

  // Stops workers and coordinator after a command that has succeeded. A second
  // call does nothing. Errors: those of LocalWorkers::Stop.
  absl::Status Stop();

  // Returns the coordinator of this fleet.
  CoordinatorServer& coordinator() { return *coordinator_; }
  // Calls LocalWorkers::CheckRunning.
  absl::Status CheckRunning() { return workers_->CheckRunning(); }
  // Calls LocalWorkers::Explain.
  void Explain(const absl::Status& status) { workers_->Explain(status); }

 private:
  LocalFleet() = default;
  absl::Status WaitReady();

  std::unique_ptr<LocalWorkers> workers_;
  std::unique_ptr<CoordinatorServer> coordinator_;
};

}  // namespace ringfleet::coordinator::cli

#endif  // RINGFLEET_COORDINATOR_CLI_LOCAL_FLEET_H_
