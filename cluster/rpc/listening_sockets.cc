// SPDX-License-Identifier: Apache-2.0
#include "cluster/rpc/listening_sockets.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cluster/rpc/congestion_control.h"

namespace ringfleet::cluster {
namespace {

// gRPC's default for the connections of a server.
constexpr int kUserTimeoutMs = 20000;

absl::Status ListenError(const ServerAddress& listen, int error) {
  switch (error) {
    case EADDRINUSE:
      return absl::UnavailableError(absl::StrCat("port ", listen.port, " on ",
                                                 listen.host, " is in use"));
    case EACCES:
      return absl::PermissionDeniedError(
          absl::StrCat("port ", listen.port, " on ", listen.host,
                       " is reserved for privileged processes; want 1024 or "
                       "more"));
    case EADDRNOTAVAIL:
      return absl::InvalidArgumentError(absl::StrCat(
          "host ", listen.host, " is not an address of this machine"));
    default:
      return absl::UnavailableError(absl::StrCat(
          "cannot listen on ", FormatAddress(listen), ": ", strerror(error)));
  }
}

bool IsAny(const sockaddr* address) {
  if (address->sa_family == AF_INET) {
    return reinterpret_cast<const sockaddr_in*>(address)->sin_addr.s_addr ==
           htonl(INADDR_ANY);
  }
  return IN6_IS_ADDR_UNSPECIFIED(
      &reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr);
}

in_port_t& PortOf(sockaddr* address) {
  return address->sa_family == AF_INET
             ? reinterpret_cast<sockaddr_in*>(address)->sin_port
             : reinterpret_cast<sockaddr_in6*>(address)->sin6_port;
}

void SetOption(int fd, int level, int option, int value) {
  setsockopt(fd, level, option, &value, sizeof(value));
}

// Returns a listening socket, or minus the error number.
int Listen(const sockaddr* address, socklen_t size) {
  const int fd =
      socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return -errno;
  // Connections in TIME_WAIT do not count as use of the port.
  SetOption(fd, SOL_SOCKET, SO_REUSEADDR, 1);
  SetOption(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  SetOption(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, kUserTimeoutMs);
  if (address->sa_family == AF_INET6) {
    SetOption(fd, IPPROTO_IPV6, IPV6_V6ONLY, IsAny(address) ? 0 : 1);
  }
  SetCongestionControl(fd);
  if (bind(fd, address, size) == 0 && ::listen(fd, SOMAXCONN) == 0) return fd;
  const int error = errno;
  close(fd);
  return -error;
}

int PortOf(int fd) {
  sockaddr_storage address = {};
  socklen_t size = sizeof(address);
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    return 0;
  }
  return ntohs(PortOf(reinterpret_cast<sockaddr*>(&address)));
}

bool HaveOneAddress(const addrinfo& a, const addrinfo& b) {
  if (a.ai_family != b.ai_family) return false;
  if (a.ai_family == AF_INET) {
    const auto& one = reinterpret_cast<const sockaddr_in&>(*a.ai_addr);
    const auto& other = reinterpret_cast<const sockaddr_in&>(*b.ai_addr);
    return one.sin_addr.s_addr == other.sin_addr.s_addr;
  }
  const auto& one = reinterpret_cast<const sockaddr_in6&>(*a.ai_addr);
  const auto& other = reinterpret_cast<const sockaddr_in6&>(*b.ai_addr);
  return IN6_ARE_ADDR_EQUAL(&one.sin6_addr, &other.sin6_addr) &&
         one.sin6_scope_id == other.sin6_scope_id;
}

// Returns whether `list` has the address of `entry` before `entry`.
bool HasEarlier(const addrinfo* list, const addrinfo& entry) {
  while (list != &entry && !HaveOneAddress(*list, entry)) list = list->ai_next;
  return list != &entry;
}

}  // namespace

absl::StatusOr<ListeningSockets> ListeningSockets::Open(
    const ServerAddress& address) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(
      address.host.c_str(), absl::StrCat(address.port).c_str(), &hints, &found);
  if (error != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "host ", address.host, " does not resolve: ", gai_strerror(error)));
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(found,
                                                                 freeaddrinfo);
  ListeningSockets sockets;
  if (IsAny(found->ai_addr)) {
    sockaddr_in6 any = {};
    any.sin6_family = AF_INET6;
    any.sin6_port = htons(static_cast<in_port_t>(address.port));
    const int fd = Listen(reinterpret_cast<sockaddr*>(&any), sizeof(any));
    if (fd >= 0) {
      sockets.fds_.push_back(fd);
      sockets.port_ = PortOf(fd);
      return sockets;
    }
    if (fd == -EADDRINUSE) return ListenError(address, EADDRINUSE);
    // A machine without IPv6 listens for IPv4 below.
  }
  // One usable address is enough: "localhost" may name an IPv6 address on a
  // machine that has none. A port in use is never passed over.
  int first_error = 0;
  for (addrinfo* a = found; a != nullptr; a = a->ai_next) {
    if (a->ai_family != AF_INET && a->ai_family != AF_INET6) continue;
    // /etc/hosts may give a name the same address twice.
    if (HasEarlier(found, *a)) continue;
    if (!sockets.fds_.empty()) {
      PortOf(a->ai_addr) = htons(static_cast<in_port_t>(sockets.port_));
    }
    const int fd = Listen(a->ai_addr, a->ai_addrlen);
    if (fd == -EADDRINUSE) return ListenError(address, EADDRINUSE);
    if (fd < 0) {
      if (first_error == 0) first_error = -fd;
      continue;
    }
    sockets.fds_.push_back(fd);
    sockets.port_ = PortOf(fd);
  }
  if (sockets.fds_.empty()) return ListenError(address, first_error);
  return sockets;
}

ListeningSockets::ListeningSockets(ListeningSockets&& other) noexcept
    : fds_(std::exchange(other.fds_, {})), port_(other.port_) {}

ListeningSockets::~ListeningSockets() {
  for (const int fd : fds_) close(fd);
}

}  // namespace ringfleet::cluster
