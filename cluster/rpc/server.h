// SPDX-License-Identifier: Apache-2.0
// What the gRPC port of every daemon has in common: addresses, reflection, the
// standard health service, limits, an orderly end.
#ifndef RINGFLEET_CLUSTER_RPC_SERVER_H_
#define RINGFLEET_CLUSTER_RPC_SERVER_H_

#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>

#include <memory>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "cluster/rpc/health_service.h"
#include "cluster/rpc/host_address.h"

namespace ringfleet::cluster {

// Chooses gRPC's "poll" strategy, in which each completion queue polls its own
// sockets: under the default one, control traffic takes the poller's role away
// from the thread that spins for a collective. Lets sockets wake their reader
// when most of a frame is there, not at each packet: a third of the switches
// between threads on a slow link. Lets kReadBufferBytes count. Also silences
// gRPC's own lines on stderr; failures arrive as statuses. GRPC_POLL_STRATEGY,
// GRPC_EXPERIMENTS and GRPC_VERBOSITY of the environment win. Ends Abseil's
// search for deadlocks too, which Debian's package makes at every lock, gRPC's
// included: 1.5 of the 12 us that 4 bytes take to and from a peer. Call first
// in main: before threads and gRPC calls.
void ConfigureGrpcProcess();

// Makes SIGTERM and SIGINT pending in this thread and those it starts later,
// for WaitForSignal() to take. Call first in main.
void BlockTerminationSignals();
// Blocks until one of these signals arrives and returns its number.
int WaitForSignal();

// Writes a port into a file that appears whole, for scripts that wait for it.
// INVALID_ARGUMENT when it cannot be written.
absl::Status WritePortFile(const std::string& path, int port);

// A running gRPC server with reflection and health. Thread-safe.
class DaemonServer {
 public:
  // `register_services` adds services and completion queues to the builder
  // before the server starts; it runs at most once, after the checks of the
  // address. The services must outlive the server.
  //
  // Errors:
  //   INVALID_ARGUMENT: the host is not loopback and !allow_insecure.
  //   UNAVAILABLE: the port is in use.
  //   PERMISSION_DENIED: the port is reserved for privileged processes.
  //   INVALID_ARGUMENT: no such host, or not an address of this machine.
  static absl::StatusOr<std::unique_ptr<DaemonServer>> Start(
      const ServerAddress& listen, bool allow_insecure,
      absl::FunctionRef<void(grpc::ServerBuilder&)> register_services);

  ~DaemonServer();  // Shutdown without grace, unless done before.
  DaemonServer(const DaemonServer&) = delete;
  DaemonServer& operator=(const DaemonServer&) = delete;

  // The port that is listened on, also when 0 was asked for.
  int port() const { return port_; }

  // What the health service answers for `service`; "" is the whole process,
  // which serves from the start.
  void SetServing(const std::string& service, bool serving);

  // Reports not serving, stops accepting, waits for running calls, cancels what
  // still runs after `grace`. Completion queues of the services must be polled
  // until this returns, and are shut down and drained by their owners after it.
  // Later calls do nothing.
  void Shutdown(absl::Duration grace);

 private:
  DaemonServer(std::unique_ptr<HealthService> health,
               std::unique_ptr<grpc::Server> server, int port);

  const std::unique_ptr<HealthService> health_;  // Outlives the server.
  const std::unique_ptr<grpc::Server> server_;
  const int port_;
};

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_RPC_SERVER_H_
