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
#include "coordinator/cli/run/local_fleet.h"
#include "coordinator/cli/run/trace_call.h"
#include "protos/coordinator.grpc.pb.h"

namespace ringfleet::coordinator::cli {

// Which fleet a command talks to: --cluster or --local, and how a local one is
// made.
struct SessionOptions {
  std::string model;
  std::string cluster;
  int local = 1;
  std::string mesh;
  int expert_slots = 0;
  double expert_capacity = 0;
  std::string dtype = "int8";
  std::string cache_type;
  std::string wire = "bf16";
  std::string prefill_strategy = "auto";
  std::string transport = "auto";
  std::string collectives;
  std::string tiles;
  std::string cache_dir;
  int threads = 0;
  int context = 0;
  std::string trace;
  // Set by a verb, not options of their own.
  bool reference = false;
  uint32_t slots = 1;     // Sequences at the same time.
  bool runs_jobs = true;  // Which wait until the fleet is ready.
};

// Adds --model, --cluster, --local, --dtype, --cache-type, --wire, --mesh,
// --expert-slots, --expert-capacity, --prefill-strategy, --transport,
// --collectives, --tiles, --cache-dir, -t, -c, --trace.
void AddSessionOptions(CLI::App& app, SessionOptions& options);
// --trace alone.
CLI::Option* AddTraceOption(CLI::App& app, SessionOptions& options);

// A connection with the coordinator of a running fleet, or of one that this
// process starts and stops.
class Session {
 public:
  // Errors: INVALID_ARGUMENT for options that contradict each other, a --model
  // that is not the running fleet's, or a --trace that cannot be written;
  // UNAVAILABLE without a coordinator; else of LocalFleet and of the trace.
  static absl::StatusOr<std::unique_ptr<Session>> Open(
      const SessionOptions& options);

  v1::Coordinator::Stub& stub() { return *stub_; }

  // Writes the trace and stops a local fleet after a command that ended with
  // `status`, and passes that on, unless it was interrupted, the trace or a
  // worker failed in the end; after showing what the logs tell of an error, or
  // with the running fleet's address where its connection broke. To be called
  // before the result is printed.
  absl::Status Finish(absl::Status status);

  // The same, and prints the result, if there is one: a `status` that is OK
  // says so. What fails in the end is told after it, and the result stays the
  // command's one document. An interrupted command prints none.
  absl::Status Finish(absl::Status status, Invocation& invocation,
                      absl::FunctionRef<absl::Status()> print);

 private:
  Session() = default;
  absl::Status Connect(const SessionOptions& options);
  absl::Status StartLocally(const SessionOptions& options);

  std::unique_ptr<LocalFleet> local_;
  // Of a running fleet's coordinator.
  std::string address_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::Coordinator::Stub> stub_;
  TraceCall trace_;
};

// A channel to HOST:PORT whose connection stands, or could not be made within
// cluster::kFirstConnection.
std::shared_ptr<grpc::Channel> ConnectChannel(const std::string& address);

// The coordinator's HOST:PORT of a cluster file.
absl::StatusOr<std::string> CoordinatorAddress(const std::string& cluster_file);

}  // namespace ringfleet::coordinator::cli

#endif  // RINGFLEET_COORDINATOR_CLI_SESSION_H_
