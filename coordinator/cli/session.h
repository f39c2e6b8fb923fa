// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_COORDINATOR_CLI_SESSION_H_
#define RINGFLEET_COORDINATOR_CLI_SESSION_H_

#include <CLI/CLI.hpp>
#include <memory>
#include <optional>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "coordinator/cli/command.h"
#include "coordinator/cli/fleet_choice.h"
#include "coordinator/cli/local_fleet.h"
#include "coordinator/cli/trace_call.h"
#include "coordinator/service/setting_flags.h"
#include "protos/coordinator.grpc.pb.h"
#include "protos/fleet_settings.pb.h"

namespace ringfleet::coordinator::cli {

// Options that choose the fleet of a command: a running fleet or a local fleet
// (--local) with its settings.
struct SessionOptions {
  SettingFlags flags;
  FleetChoice fleet;
  int local = 1;  // Number of workers of a local fleet. 0: none may be used.
  std::string trace;  // Path of the trace. Empty: no trace.
  // Settings of the verb, which override `flags`. The default of `parallel`
  // is 1.
  v1::FleetSettings settings;
  std::optional<HttpOptions> http;  // A local fleet has this port, too.
  StateOptions state;               // And batches, if this names a folder.
  bool runs_jobs = true;  // The verb's jobs wait until the fleet is ready.
  bool samples = false;   // The model's sampling defaults matter.
};

// Adds --cluster, --coordinator, --local, --trace and the flags of a fleet's
// settings. Leaves out --parallel and --reference, because each verb decides
// about both. Leaves out --threads unless `with_threads`. Returns the flags of
// the running fleet.
FleetFlags AddSessionOptions(CLI::App& app, SessionOptions& options,
                             bool with_threads = true);
// Adds --trace alone.
CLI::Option* AddTraceOption(CLI::App& app, SessionOptions& options);

// A connection with the coordinator of a running fleet, or of a local fleet
// that this process starts and stops.
class Session {
 public:
  // Connects with the running fleet or starts a local fleet, and starts the
  // trace.
  // Errors: those of LocalFleet and TraceCall. INVALID_ARGUMENT: options
  // contradict each other, or the running fleet is not that of the cluster file
  // or of --model. UNAVAILABLE: no coordinator answers.
  static absl::StatusOr<std::unique_ptr<Session>> Open(
      const SessionOptions& options);

  v1::Coordinator::Stub& stub() { return *stub_; }
  // Waits for the connection with the coordinator, at most for `time`. Returns
  // true when it stands. gRPC reads a connection only while something waits for
  // it: calls that fail at once, with pauses between them, never connect again.
  bool AwaitConnection(absl::Duration time);
  // Null: a running fleet.
  LocalFleet* local() { return local_.get(); }

  // Ends the session of a command that ended with `status`: writes the trace
  // and stops a local fleet. Call Finish before the result is printed. Returns
  // CANCELLED after an interrupt, else `status`. If `status` is OK, returns the
  // error of the trace, or of a worker that failed at its end. For a local
  // fleet, shows the workers' logs before it returns an error. For a running
  // fleet whose connection broke, adds the coordinator's address to the error.
  absl::Status Finish(absl::Status status);

  // Calls Finish. Then calls `print` if `status` is OK and there was no
  // interrupt. Returns the error of Finish only after `print`, and clears
  // invocation.json, so the result stays the only document on stdout.
  absl::Status Finish(absl::Status status, Invocation& invocation,
                      absl::FunctionRef<absl::Status()> print);

 private:
  Session() = default;
  absl::Status Connect(const SessionOptions& options);
  absl::Status StartLocally(const SessionOptions& options);

  std::unique_ptr<LocalFleet> local_;
  // HOST:PORT of a running fleet's coordinator.
  std::string address_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::Coordinator::Stub> stub_;
  TraceCall trace_;
};

// Opens a channel to HOST:PORT. Waits for the connection, at most
// cluster::kFirstConnection.
std::shared_ptr<grpc::Channel> ConnectChannel(const std::string& address);

// Asks the coordinator at `address` for the fleet's state. Errors: no
// coordinator answers.
absl::StatusOr<v1::ClusterState> DescribeFleet(const std::string& address);

}  // namespace ringfleet::coordinator::cli

#endif  // RINGFLEET_COORDINATOR_CLI_SESSION_H_
