// SPDX-License-Identifier: Apache-2.0
// The gRPC port of a daemon: addresses, reflection, the standard health
// service, limits, an orderly end.
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

class Acceptor;

// Sets gRPC up for collectives. Call first in main, before threads and gRPC
// calls. The environment's GRPC_POLL_STRATEGY, GRPC_EXPERIMENTS and
// GRPC_VERBOSITY win.
//   - Each completion queue polls its own sockets (strategy "poll"). Under the
//     default strategy, control traffic takes the poller's role away from the
//     thread that spins for a collective.
//   - Sockets wake their reader when most of a frame is there, not at each
//     packet. A slow link then causes a third of the switches between threads.
//   - Connections read into buffers of kReadBufferBytes.
//   - gRPC prints no lines on stderr. Failures arrive as statuses.
//   - Abseil's search for deadlocks is off. Debian's package searches at every
//     lock, gRPC's included. The search takes 1.5 of the 12 us in which 4 bytes
//     go to a peer and back.
void ConfigureGrpcProcess();

// Blocks SIGTERM and SIGINT in this thread and its later threads, so that they
// wait for WaitForSignal(). Call first in main.
void BlockTerminationSignals();
// Waits for one of these signals and returns its number.
int WaitForSignal();

// Returns true if a host's name or number is known and stands for addresses of
// other machines only.
bool IsAnotherMachine(const std::string& host);

// Writes a port into a file for scripts that wait for the file. The file
// appears whole. INVALID_ARGUMENT: the file cannot be written.
absl::Status WritePortFile(const std::string& path, int port);

// A running gRPC server with reflection and health. Thread-safe.
class DaemonServer {
 public:
  // `register_services` adds services and completion queues to the builder. It
  // runs at most once, after the checks of the address. The services must
  // outlive the server. Connections are those of an Acceptor. One that does not
  // begin as HTTP/2 does is closed after 10 seconds.
  //
  // Errors:
  //   INVALID_ARGUMENT: the host is not loopback and !allow_insecure.
  //   UNAVAILABLE: the port is in use.
  //   PERMISSION_DENIED: the port is reserved for privileged processes.
  //   INVALID_ARGUMENT: no such host, or not an address of this machine.
  static absl::StatusOr<std::unique_ptr<DaemonServer>> Start(
      const ServerAddress& listen, bool allow_insecure,
      absl::FunctionRef<void(grpc::ServerBuilder&)> register_services);

  ~DaemonServer();  // Calls Shutdown without grace.
  DaemonServer(const DaemonServer&) = delete;
  DaemonServer& operator=(const DaemonServer&) = delete;

  // Returns the real port, also for port 0.
  int port() const { return port_; }

  // Sets the answer of the health service for `service`. The whole process, "",
  // serves from the start.
  void SetServing(const std::string& service, bool serving);

  // Reports not serving, stops accepting, waits for running calls, and cancels
  // the calls that still run after `grace`. Completion queues of the services
  // must be polled until Shutdown returns. Their owners shut them down and
  // drain them afterwards. Later calls do nothing.
  void Shutdown(absl::Duration grace);

 private:
  DaemonServer(std::unique_ptr<HealthService> health,
               std::unique_ptr<grpc::Server> server, int port);

  const std::unique_ptr<HealthService> health_;  // Outlives the server.
  const std::unique_ptr<grpc::Server> server_;
  const int port_;
  std::unique_ptr<Acceptor> acceptor_;  // Null after Shutdown.
};

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_RPC_SERVER_H_
