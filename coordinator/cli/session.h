// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_COORDINATOR_CLI_SESSION_H_
#define RINGFLEET_COORDINATOR_CLI_SESSION_H_

#include <CLI/CLI.hpp>
#include <memory>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "coordinator/cli/command.h"
#include "coordinator/cli/local_fleet.h"
#include "coordinator/cli/trace_call.h"
#include "coordinator/service/setting_flags.h"
#include "protos/coordinator.grpc.pb.h"
#include "protos/fleet_settings.pb.h"

namespace ringfleet::coordinator::cli {

// The fleet that a command talks to, --cluster or --local, and the settings of
// a local one.
struct SessionOptions {
  SettingFlags flags;
  std::string cluster;
  int local = 1;
  std::string trace;
  // Set by a verb, beside and above `flags`; one sequence at a time unless set.
  v1::FleetSettings settings;
  bool runs_jobs = true;  // Jobs wait until the fleet is ready.
};

// Adds --cluster, --local, --trace and the flags of a fleet's settings, without
// --parallel and --reference, which verbs decide.
void AddSessionOptions(CLI::App& app, SessionOptions& options,
                       bool with_threads = true);
// Adds --trace alone.
CLI::Option* AddTraceOption(CLI::App& app, SessionOptions& options);

// A connection with the coordinator of a running fleet, or of a fleet that this
// process starts and stops.
class Session {
 public:
  // Errors: INVALID_ARGUMENT: options contradict each other, --model is not the
  // running fleet's, or --trace cannot be written. UNAVAILABLE: there is no
  // coordinator. Those of LocalFleet and of the trace.
  static absl::StatusOr<std::unique_ptr<Session>> Open(
      const SessionOptions& options);

  v1::Coordinator::Stub& stub() { return *stub_; }

  // Writes the trace and stops a local fleet after a command that ended with
  // `status`. Call before the result is printed. Returns `status`, or the
  // interrupt, or the failure of the trace or of a worker at the end. An error
  // is returned after the logs of local workers are shown. If the connection to
  // a running fleet broke, the error has the fleet's address.
  absl::Status Finish(absl::Status status);

  // Calls Finish, then prints the result if `status` is OK. A failure at the
  // end is told after the result, so the result stays the command's one
  // document. An interrupted command prints no result.
  absl::Status Finish(absl::Status status, Invocation& invocation,
                      absl::FunctionRef<absl::Status()> print);

 private:
  Session() = default;
  absl::Status Connect(const SessionOptions& options);
  absl::Status StartLocally(const SessionOptions& options);

  std::unique_ptr<LocalFleet> local_;
  // Address of a running fleet's coordinator.
  std::string address_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::Coordinator::Stub> stub_;
  TraceCall trace_;
};

// Opens a channel to HOST:PORT and waits for its connection, at most
// cluster::kFirstConnection.
std::shared_ptr<grpc::Channel> ConnectChannel(const std::string& address);

// Reads the coordinator's HOST:PORT from a cluster file.
absl::StatusOr<std::string> CoordinatorAddress(const std::string& cluster_file);

}  // namespace ringfleet::coordinator::cli

#endif  // RINGFLEET_COORDINATOR_CLI_SESSION_H_
