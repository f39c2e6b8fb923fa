// SPDX-License-Identifier: Apache-2.0
#include "tests/testing/sockets.h"

#include <arpa/inet.h>
#include <linux/tcp.h>  // glibc's tcp_info ends before what is counted here.
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>

namespace ringfleet::testing {
namespace {

[[noreturn]] void Fail(const std::string& what) {
  std::fprintf(stderr, "%s: %s\n", what.c_str(), std::strerror(errno));
  std::exit(1);
}

}  // namespace

Socket::~Socket() {
  if (fd_ >= 0) close(fd_);
}

sockaddr_in ParseAddress(const std::string& address) {
  sockaddr_in parsed = {};
  parsed.sin_family = AF_INET;
  const size_t colon = address.rfind(':');
  if (colon == std::string::npos ||
      inet_pton(AF_INET, address.substr(0, colon).c_str(), &parsed.sin_addr) !=
          1) {
    errno = EINVAL;
    Fail(address + ": want a numeric HOST:PORT");
  }
  parsed.sin_port = htons(std::atoi(address.c_str() + colon + 1));
  return parsed;
}

std::string LocalAddress(const Socket& socket) {
  sockaddr_in at = {};
  socklen_t size = sizeof(at);
  if (getsockname(socket.fd(), reinterpret_cast<sockaddr*>(&at), &size) != 0) {
    Fail("getsockname");
  }
  char host[INET_ADDRSTRLEN];
  inet_ntop(AF_INET, &at.sin_addr, host, sizeof(host));
  return std::string(host) + ":" + std::to_string(ntohs(at.sin_port));
}

Socket BoundSocket(const std::string& address, int type) {
  Socket bound(socket(AF_INET, type | SOCK_CLOEXEC, 0));
  const int on = 1;
  setsockopt(bound.fd(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  const sockaddr_in at = ParseAddress(address);
  if (bind(bound.fd(), reinterpret_cast<const sockaddr*>(&at), sizeof(at)) !=
          0 ||
      ((type & SOCK_STREAM) != 0 && listen(bound.fd(), 256) != 0)) {
    Fail("listen on " + address);
  }
  return bound;
}

Socket ConnectTo(const std::string& address) {
  Socket connected(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  SetNoDelay(connected.fd());
  const sockaddr_in to = ParseAddress(address);
  if (connect(connected.fd(), reinterpret_cast<const sockaddr*>(&to),
              sizeof(to)) != 0) {
    Fail("connect to " + address);
  }
  return connected;
}

Socket AcceptFrom(const Socket& listener) {
  Socket accepted(accept4(listener.fd(), nullptr, nullptr, SOCK_CLOEXEC));
  if (accepted.fd() < 0) Fail("accept");
  SetNoDelay(accepted.fd());
  return accepted;
}

void SetNoDelay(int fd) {
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

uint64_t DataPacketsSent() {
  uint64_t packets = 0;
  const std::filesystem::directory_iterator files("/proc/self/fd");
  for (const auto& file : files) {
    tcp_info info = {};
    socklen_t size = sizeof(info);
    if (getsockopt(std::stoi(file.path().filename()), IPPROTO_TCP, TCP_INFO,
                   &info, &size) == 0) {
      packets += info.tcpi_data_segs_out;
    }
  }
  return packets;
}

}  // namespace ringfleet::testing
