// SPDX-License-Identifier: Apache-2.0
// IPv4 sockets for tests and for the relay. Addresses are numeric HOST:PORT.
// Port 0 is any free port. A failure prints its message and ends the process.
#ifndef RINGFLEET_TESTS_TESTING_SOCKETS_H_
#define RINGFLEET_TESTS_TESTING_SOCKETS_H_

#include <netinet/in.h>

#include <cstdint>
#include <string>
#include <utility>

namespace ringfleet::testing {

// A file descriptor. The destructor closes it.
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
// Returns the address to which a socket is bound.
std::string LocalAddress(const Socket& socket);

// Returns a socket that is bound to `address`. `type` is SOCK_STREAM or
// SOCK_DGRAM, perhaps with SOCK_NONBLOCK. A SOCK_STREAM socket also listens.
Socket BoundSocket(const std::string& address, int type);
// Return a connection without Nagle's delay. Both functions block.
Socket ConnectTo(const std::string& address);
Socket AcceptFrom(const Socket& listener);
void SetNoDelay(int fd);

// Returns the number of packets with data that all TCP sockets of this process
// have sent so far.
uint64_t DataPacketsSent();

}  // namespace ringfleet::testing

#endif  // RINGFLEET_TESTS_TESTING_SOCKETS_H_
