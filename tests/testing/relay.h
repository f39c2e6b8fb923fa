// SPDX-License-Identifier: Apache-2.0
// A TCP relay that adds latency to connections and does not limit their rate.
// It passes every byte on a fixed time after the byte has arrived, in both
// directions. netem does so on kernels that have it. A rate can be limited with
// tbf.
//
// The relay does not delay the handshake. It accepts a connection at once, and
// its bytes wait until the other side is connected. It does not delay
// acknowledgements, so a sender's window grows as on a short link.
#ifndef RINGFLEET_TESTS_TESTING_RELAY_H_
#define RINGFLEET_TESTS_TESTING_RELAY_H_

#include <chrono>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

namespace ringfleet::testing {

struct RelayRoute {
  std::string listen;  // HOST:PORT, numeric IPv4. Port 0: any free port.
  std::string to;      // HOST:PORT to which connections are carried.
};

struct RelayOptions {
  std::vector<RelayRoute> routes;
  std::chrono::microseconds delay{0};
  // Largest number of bytes under way in one direction of one connection. The
  // relay stops reading from the sender at this number.
  size_t buffer_bytes = size_t{64} << 20;
};

// The relay. Use from one thread. Ends the process if it cannot listen.
class Relay {
 public:
  explicit Relay(RelayOptions options);
  ~Relay();

  // Returns the addresses on which the routes listen, in the order of the
  // routes.
  std::vector<std::string> addresses() const;
  // Carries bytes until the process is killed.
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
