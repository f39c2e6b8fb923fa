// SPDX-License-Identifier: Apache-2.0
#include "cluster/rpc/server.h"

#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/resource_quota.h>
#include <netdb.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "cluster/process/process_limits.h"
#include "cluster/process/status_macros.h"
#include "cluster/rpc/acceptor.h"
#include "cluster/rpc/listening_sockets.h"
#include "kernels/check.h"

namespace ringfleet::cluster {
namespace {

// A frame of a collective carries at most 1 MiB, the largest plan some MiB.
constexpr int kMaxReceiveBytes = 8 << 20;
// Half of the interval at which peers ping, so that no ping counts as abuse.
constexpr int kMinPingIntervalMs = 5000;
// From the first byte of a connection to its HTTP/2 settings.
constexpr int kHandshakeTimeoutMs = 10000;
// Threads of synchronous calls: half of those that the user may have, as the
// process must be able to start its own.
constexpr size_t kMinCallThreads = 8;
constexpr size_t kMaxCallThreads = 2048;

sigset_t TerminationSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  return signals;
}

}  // namespace

void ConfigureGrpcProcess() {
  setenv("GRPC_POLL_STRATEGY", "poll", /*overwrite=*/0);
  setenv("GRPC_VERBOSITY", "NONE", /*overwrite=*/0);
  setenv("GRPC_EXPERIMENTS",
         "tcp_frame_size_tuning,tcp_rcv_lowat,-tcp_read_chunks",
         /*overwrite=*/0);
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
}

void BlockTerminationSignals() {
  const sigset_t signals = TerminationSignals();
  RF_CHECK(pthread_sigmask(SIG_BLOCK, &signals, nullptr) == 0);
}

int WaitForSignal() {
  const sigset_t signals = TerminationSignals();
  int received = 0;
  RF_CHECK(sigwait(&signals, &received) == 0);
  return received;
}

bool IsAnotherMachine(const std::string& host) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(host.c_str(), nullptr, &hints, &found) != 0) return false;
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(found,
                                                                 freeaddrinfo);
  // Only an address of this machine can be bound.
  for (const addrinfo* a = found; a != nullptr; a = a->ai_next) {
    const int fd = socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC, 0);
    const bool foreign = fd >= 0 && bind(fd, a->ai_addr, a->ai_addrlen) != 0 &&
                         errno == EADDRNOTAVAIL;
    if (fd >= 0) close(fd);
    if (!foreign) return false;
  }
  return true;
}

absl::Status WritePortFile(const std::string& path, int port) {
  const std::string temporary = absl::StrCat(path, ".", getpid());
  std::ofstream file(temporary);
  file << port << "\n";
  file.close();
  if (!file || std::rename(temporary.c_str(), path.c_str()) != 0) {
    const int error = errno;
    std::remove(temporary.c_str());
    return absl::InvalidArgumentError(absl::StrCat(
        "--port-file ", path, ": cannot be written: ", std::strerror(error)));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<DaemonServer>> DaemonServer::Start(
    const ServerAddress& listen, bool allow_insecure,
    absl::FunctionRef<void(grpc::ServerBuilder&)> register_services) {
  if (!allow_insecure && !IsLoopback(listen.host)) {
    return absl::InvalidArgumentError(
        absl::StrCat("binding ", listen.host,
                     " needs --insecure: there is no encryption or "
                     "authentication"));
  }
  RF_ASSIGN_OR_RETURN(ListeningSockets sockets, ListeningSockets::Open(listen));
  const int port = sockets.port();

  // Acts on every builder of the process and may be repeated.
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();

  grpc::ServerBuilder builder;
  std::shared_ptr<grpc::experimental::ExternalConnectionAcceptor> connections =
      builder.experimental().AddExternalConnectionAcceptor(
          grpc::ServerBuilder::experimental_type::ExternalConnectionType::
              FROM_FD,
          grpc::InsecureServerCredentials());
  builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS,
                             kHandshakeTimeoutMs);
  builder.AddChannelArgument(
      GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
      kMinPingIntervalMs);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PING_STRIKES, 0);
  builder.SetMaxReceiveMessageSize(kMaxReceiveBytes);
  using Option = grpc::ServerBuilder::SyncServerOption;
  builder.SetSyncServerOption(Option::NUM_CQS, 1);
  builder.SetSyncServerOption(Option::MIN_POLLERS, 1);
  builder.SetSyncServerOption(Option::MAX_POLLERS, 2);
  grpc::ResourceQuota quota("daemon");
  quota.SetMaxThreads(static_cast<int>(
      std::clamp(ThreadLimit() / 2, kMinCallThreads, kMaxCallThreads)));
  builder.SetResourceQuota(quota);
  auto health = std::make_unique<HealthService>();
  builder.RegisterService(health.get());
  register_services(builder);

  std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server == nullptr) {
    return absl::InternalError(
        absl::StrCat("gRPC cannot serve on ", FormatAddress(listen)));
  }
  std::unique_ptr<DaemonServer> daemon(
      new DaemonServer(std::move(health), std::move(server), port));
  RF_ASSIGN_OR_RETURN(
      daemon->acceptor_,
      Acceptor::Start(std::move(sockets), Acceptor::Options(),
                      [connections](int fd) {
                        grpc::experimental::ExternalConnectionAcceptor::
                            NewConnectionParameters connection;
                        connection.listener_fd = -1;
                        connection.fd = fd;
                        connections->HandleNewConnection(&connection);
                      }));
  return daemon;
}

DaemonServer::DaemonServer(std::unique_ptr<HealthService> health,
                           std::unique_ptr<grpc::Server> server, int port)
    : health_(std::move(health)), server_(std::move(server)), port_(port) {}

DaemonServer::~DaemonServer() { Shutdown(absl::ZeroDuration()); }

void DaemonServer::SetServing(const std::string& service, bool serving) {
  health_->SetServing(service, serving);
}

void DaemonServer::Shutdown(absl::Duration grace) {
  health_->Shutdown();
  acceptor_.reset();
  server_->Shutdown(
      std::chrono::system_clock::now() +
      absl::ToChronoMicroseconds(std::min(grace, absl::Hours(1))));
  server_->Wait();
}

}  // namespace ringfleet::cluster
