// SPDX-License-Identifier: Apache-2.0
#include "cluster/rpc/congestion_control.h"

#include <grpc/support/sync.h>
#include <grpcpp/version_info.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <memory>
#include <mutex>

#include "absl/strings/match.h"
#include "cluster/process/log.h"

// gRPC hands its sockets to a "socket mutator" before it connects or listens.
// The public headers name the type and take it
// (ChannelArguments::SetSocketMutator) but do not define it
// (https://github.com/grpc/grpc/issues/18989): these are the definitions of
// gRPC 1.51. With another version nothing is set.
extern "C" {
struct grpc_socket_mutator_vtable {
  // Sets a channel's socket. False: the connection fails.
  bool (*mutate_fd)(int fd, grpc_socket_mutator* mutator);
  int (*compare)(grpc_socket_mutator* a, grpc_socket_mutator* b);
  void (*destroy)(grpc_socket_mutator* mutator);
  // Instead of mutate_fd, also for accepted sockets; null: none.
  bool (*mutate_fd_2)(const void* info, grpc_socket_mutator* mutator);
};
struct grpc_socket_mutator {
  const grpc_socket_mutator_vtable* vtable;
  gpr_refcount refcount;
};
}

namespace ringfleet::cluster {
namespace {

constexpr char kVariable[] = "RINGFLEET_CONGESTION_CONTROL";

std::string SystemsChoice(int fd) {
  char name[16] = {};  // TCP_CA_NAME_MAX.
  socklen_t size = sizeof(name) - 1;
  // Not a TCP socket: a Unix one, for example.
  if (getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, &size) != 0) return "";
  return name;
}

bool MutateSocket(int fd, grpc_socket_mutator*) {
  SetCongestionControl(fd);
  return true;  // The system's is slower, not wrong.
}

int CompareAddresses(grpc_socket_mutator* a, grpc_socket_mutator* b) {
  return std::less<>()(a, b) ? -1 : a == b ? 0 : 1;
}

void KeepForever(grpc_socket_mutator*) {}

// One reference of the only one.
grpc_socket_mutator* NewReference() {
  static constexpr grpc_socket_mutator_vtable kTable = {
      &MutateSocket, &CompareAddresses, &KeepForever, nullptr};
  static grpc_socket_mutator* const mutator = [] {
    static grpc_socket_mutator only = {&kTable, {}};
    gpr_ref_init(&only.refcount, 1);
    return &only;
  }();
  gpr_ref(&mutator->refcount);
  return mutator;
}

}  // namespace

std::vector<std::string> CongestionControls(absl::string_view system,
                                            absl::string_view wanted) {
  if (wanted == "system") return {};
  if (!wanted.empty()) return {std::string(wanted)};
  if (absl::StartsWith(system, "bbr")) return {"cubic", "reno"};
  return {};
}

void SetCongestionControl(int fd) {
  const std::string system = SystemsChoice(fd);
  if (system.empty()) return;
  const char* const variable = std::getenv(kVariable);
  const absl::string_view wanted = variable == nullptr ? "" : variable;
  const std::vector<std::string> names = CongestionControls(system, wanted);
  const bool set =
      std::any_of(names.begin(), names.end(), [fd](const std::string& name) {
        return setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name.data(),
                          static_cast<socklen_t>(name.size())) == 0;
      });
  if (!set && !names.empty() && !wanted.empty()) {
    static std::once_flag said;
    std::call_once(said, [&] {
      RF_LOG(kWarning, kVariable, "=", wanted.substr(0, 64),
             ": not available here, want one of the system's "
             "net.ipv4.tcp_allowed_congestion_control, or system; connections "
             "keep ",
             system);
    });
  }
}

void SetCongestionControl(grpc::ChannelArguments& arguments) {
  if constexpr (GRPC_CPP_VERSION_MAJOR == 1 && GRPC_CPP_VERSION_MINOR == 51) {
    arguments.SetSocketMutator(NewReference());
  }
}

}  // namespace ringfleet::cluster
