// SPDX-License-Identifier: Apache-2.0
// A TCP relay that makes a connection slow to arrive, not slow to carry: every
// byte is passed on a fixed time after it came in, in both directions. What
// netem does where the kernel has it; a rate is tbf's job.
//
// The handshake is not delayed: a connection is accepted at once, and its bytes
// wait until the other side is connected. Neither are acknowledgements, so that
// a sender's window grows as on a short link.
#ifndef RINGFLEET_TESTS_TESTING_RELAY_H_
#define RINGFLEET_TESTS_TESTING_RELAY_H_

#include <chrono>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

namespace ringfleet::testing {

struct RelayRoute {
  std::string listen;  // HOST:PORT, numeric IPv4; port 0: any free one.
  std::string to;      // HOST:PORT that every connection is carried to.
};

struct RelayOptions {
  std::vector<RelayRoute> routes;
  std::chrono::microseconds delay{0};
  // Bytes of one direction of one connection that are under way. Beyond this
  // the sender is no longer read.
  size_t buffer_bytes = size_t{64} << 20;
};

// For one thread. Ends the process when it cannot listen.
class Relay {
 public:
  explicit Relay(RelayOptions options);
  ~Relay();

  // Where the routes listen, in their order.
  std::vector<std::string> addresses() const;
  // Carries until the process is killed.
  [[noreturn]] void Run();

 private:
  class Connection;
  struct Listener;

  void Accept(const Listener& listener);

  const RelayOptions options_;
  int epoll_ = -1;
  std::vector<std::unique_ptr<Listener>> listeners_;
  std::vector<std::unique_ptr<Connection>> connections_;
};

}  // namespace ringfleet::testing

#endif  // RINGFLEET_TESTS_TESTING_RELAY_H_
