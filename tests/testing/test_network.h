// SPDX-License-Identifier: Apache-2.0
// A network of hosts inside this machine, for tests that need a link with a
// limited rate, or a link that breaks. Every host is a network namespace. A
// veth pair joins each host to a bridge in one more namespace, the switch. The
// machine's own network stays unchanged.
//
//   host 0 [10.x.0.1 eth0] --- [p0  switch
//   host 1 [10.x.0.2 eth0] --- [p1  br0  ]
#ifndef RINGFLEET_TESTS_TESTING_TEST_NETWORK_H_
#define RINGFLEET_TESTS_TESTING_TEST_NETWORK_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace ringfleet::testing {

struct TestNetworkOptions {
  int hosts = 2;  // At most 250.
  // Rate of every link, in each direction. The rate counts Ethernet frames
  // without preamble, so TCP payload gets 95.6 %. 0: no limit.
  double gbit_per_second = 0;
  // Number of bytes that pass at full speed after a pause. 0: the bytes of 128
  // us at the rate. With fewer bytes, late timers reduce the rate of long
  // transfers. Measured times of 28 KB at 1 Gbit/s from host to host: 143 us
  // with the default, 220 us with 8192. A real wire would take 229 us. With
  // 8192, a busy machine loses a fifth of the rate.
  int64_t burst_bytes = 0;
};

// The network. The destructor removes it. The next process removes networks
// that a crashed process has left. If Available() is OK and the system still
// refuses a step, the process prints the message and ends. Use from one thread.
class TestNetwork {
 public:
  // Returns OK if this machine can have such a network. Returns the reason
  // otherwise, so that a test skips itself.
  static absl::Status Available();

  explicit TestNetwork(TestNetworkOptions options);
  ~TestNetwork();
  TestNetwork(const TestNetwork&) = delete;
  TestNetwork& operator=(const TestNetwork&) = delete;

  int hosts() const { return options_.hosts; }
  std::string Address(int host) const;    // IPv4 address.
  std::string Namespace(int host) const;  // Name in the list of `ip netns`.
  // Returns the prefix of the names of all namespaces.
  const std::string& prefix() const { return prefix_; }

  // Returns a command that runs `command` (a path, then arguments) on a host.
  // The process that executes it becomes `command`.
  std::vector<std::string> Command(int host,
                                   std::vector<std::string> command) const;
  // Calls `body` on a new thread on a host and waits for it. A socket stays on
  // the host on which it was made.
  void OnHost(int host, const std::function<void()>& body) const;

  // Drops all packets from `other` to `host` from the call on. Packets from
  // `host` to `other` still arrive.
  void DropFrom(int host, int other);
  // Makes `host` answer every TCP segment from `other` with a reset.
  void ResetFrom(int host, int other);
  // Drops all packets between two hosts, in both directions.
  void Partition(int host, int other);
  // Lets packets from `other` to `host` pass again. A partition needs two
  // calls.
  void Heal(int host, int other);
  void HealAll();

  // Pull the cable of a host, and put it back. Packets pass within a second
  // after LinkUp.
  void LinkDown(int host);
  void LinkUp(int host);

 private:
  void ChangeSet(int host, int other, const std::string& change,
                 const std::string& set);

  const TestNetworkOptions options_;
  const int number_;  // Number of the network in this process.
  const std::string prefix_;
};

}  // namespace ringfleet::testing

#endif  // RINGFLEET_TESTS_TESTING_TEST_NETWORK_H_
