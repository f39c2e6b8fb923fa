// SPDX-License-Identifier: Apache-2.0
// IPv4 sockets for tests and for the relay between them. Addresses are
// HOST:PORT, numeric; port 0 is any free one. What cannot be done ends the
// process with its message.
#ifndef RINGFLEET_TESTS_TESTING_SOCKETS_H_
#define RINGFLEET_TESTS_TESTING_SOCKETS_H_

#include <netinet/in.h>

#include <cstdint>
#include <string>
#include <utility>

namespace ringfleet::testing {

// A file descriptor that is closed with its object.
class Socket {
 public:
  explicit Socket(int fd = -1) : fd_(fd) {}
  Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Socket& operator=(Socket&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Socket();

  int fd() const { return fd_; }

 private:
  int fd_;
};

sockaddr_in ParseAddress(const std::string& address);
// Where a socket is bound.
std::string LocalAddress(const Socket& socket);

// `type` is SOCK_STREAM, which also listens, or SOCK_DGRAM; with SOCK_NONBLOCK
// if wanted.
Socket BoundSocket(const std::string& address, int type);
// Blocking, without Nagle's delay.
Socket ConnectTo(const std::string& address);
Socket AcceptFrom(const Socket& listener);
void SetNoDelay(int fd);

// Packets with data that all TCP sockets of this process have sent so far.
uint64_t DataPacketsSent();

}  // namespace ringfleet::testing

#endif  // RINGFLEET_TESTS_TESTING_SOCKETS_H_
