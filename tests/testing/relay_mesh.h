// SPDX-License-Identifier: Apache-2.0
// Relays between the ranks of a test, in processes of their own.
#ifndef RINGFLEET_TESTS_TESTING_RELAY_MESH_H_
#define RINGFLEET_TESTS_TESTING_RELAY_MESH_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "tests/testing/process.h"
#include "tests/testing/relay.h"

namespace ringfleet::testing {

// A process that carries several routes. The destructor ends it. The process
// aborts if it cannot listen.
class RelayProcess {
 public:
  struct Options {
    std::vector<RelayRoute> routes;
    absl::Duration delay;
    int buffer_mib = 64;  // RelayOptions::buffer_bytes in MiB.
    // Words before the command, such as TestNetwork::Command(host, {}), which
    // runs the relay on a host of a test network. Use the host that the route
    // leads to, so that bytes cross the link before the relay delays them.
    std::vector<std::string> launcher;
  };
  explicit RelayProcess(const Options& options);
  ~RelayProcess();

  // Returns the addresses on which the routes listen, in the order of the
  // routes.
  const std::vector<std::string>& addresses() const { return addresses_; }
  pid_t pid() const { return process_->pid(); }

 private:
  const std::string folder_;
  std::unique_ptr<Process> process_;
  std::vector<std::string> addresses_;
};

// A route on loopback for every ordered pair of ranks.
class RelayMesh {
 public:
  // `addresses` are the servers' addresses, by rank. The servers may start
  // later.
  RelayMesh(const std::vector<std::string>& addresses, absl::Duration delay);

  // Returns the addresses for `rank`, by rank: its own address, and the relays
  // to all other ranks. Lists differ between ranks.
  const std::vector<std::string>& AddressesFor(int rank) const {
    return by_rank_[rank];
  }

 private:
  std::unique_ptr<RelayProcess> process_;
  std::vector<std::vector<std::string>> by_rank_;
};

}  // namespace ringfleet::testing

#endif  // RINGFLEET_TESTS_TESTING_RELAY_MESH_H_
