// SPDX-License-Identifier: Apache-2.0
// A network of hosts inside this machine, for tests that need a link with a
// rate, or one that breaks. Every host is a network namespace; a veth pair
// joins it to a bridge in one more namespace, the switch, so that nothing of
// the machine's own network is touched.
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
  // Of every link, each way, counted as Ethernet frames without preamble: TCP
  // carries 95.6 % of it. 0: as fast as the machine copies.
  double gbit_per_second = 0;
  // What may pass at once after silence, and so is not slowed. 0: 128 us of the
  // rate, with less of which late timers cost the long transfers their rate.
  // 28 KB at 1 Gbit/s then take 143 us from host to host where the wire alone
  // would take 229; with 8192 they take 220, and a busy machine loses a fifth
  // of the rate.
  int64_t burst_bytes = 0;
};

// Removed with the object; what a crashed process left behind is removed by the
// next one. What a machine that is Available() refuses ends the process with
// its message. Use from one thread.
class TestNetwork {
 public:
  // OK where such a network can be made; else why not, to skip a test with.
  static absl::Status Available();

  explicit TestNetwork(TestNetworkOptions options);
  ~TestNetwork();
  TestNetwork(const TestNetwork&) = delete;
  TestNetwork& operator=(const TestNetwork&) = delete;

  int hosts() const { return options_.hosts; }
  std::string Address(int host) const;    // Without a port.
  std::string Namespace(int host) const;  // As `ip netns` lists it.
  // What the names of all its namespaces start with.
  const std::string& prefix() const { return prefix_; }

  // What to execute so that `command` (a path, then arguments) runs on a host;
  // the process is the command itself.
  std::vector<std::string> Command(int host,
                                   std::vector<std::string> command) const;
  // Calls `body` in a thread of its own on a host and waits for it. Sockets
  // stay on the host where they were made.
  void OnHost(int host, const std::function<void()>& body) const;

  // From here on everything that `other` sends to `host` is lost; what `host`
  // sends still arrives.
  void DropFrom(int host, int other);
  // From here on `host` answers every TCP segment of `other` with a reset.
  void ResetFrom(int host, int other);
  // Both ways.
  void Partition(int host, int other);
  // `host` takes packets of `other` again. Undoes one way of a partition.
  void Heal(int host, int other);
  void HealAll();

  // Pulls the cable of a host, and puts it back; then packets pass after a
  // while (up to a second).
  void LinkDown(int host);
  void LinkUp(int host);

 private:
  void ChangeSet(int host, int other, const std::string& change,
                 const std::string& set);

  const TestNetworkOptions options_;
  const int number_;  // Of the networks of this process.
  const std::string prefix_;
};

}  // namespace ringfleet::testing

#endif  // RINGFLEET_TESTS_TESTING_TEST_NETWORK_H_
