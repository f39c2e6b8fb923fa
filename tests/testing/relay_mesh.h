// SPDX-License-Identifier: Apache-2.0
// Relays in processes of their own, between the ranks of a test.
#ifndef RINGFLEET_TESTS_TESTING_RELAY_MESH_H_
#define RINGFLEET_TESTS_TESTING_RELAY_MESH_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "tests/testing/process.h"
#include "tests/testing/relay.h"

namespace ringfleet::testing {

// One process that carries several routes. Ends with its object; aborts when it
// cannot listen.
class RelayProcess {
 public:
  struct Options {
    std::vector<RelayRoute> routes;
    absl::Duration delay;
    int buffer_mib = 64;  // See RelayOptions.
    // Goes in front of the command, as TestNetwork::Command(host, {}) does to
    // run the relay on a host. Beside the host that is connected to, so that
    // bytes have crossed the link when they are delayed.
    std::vector<std::string> launcher;
  };
  explicit RelayProcess(const Options& options);
  ~RelayProcess();

  // Where the routes listen, in their order.
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
  // `addresses` by rank, of servers that listen or will.
  RelayMesh(const std::vector<std::string>& addresses, absl::Duration delay);

  // The addresses that `rank` is given: its own, and the relays to all others.
  // Every rank has another list.
  const std::vector<std::string>& AddressesFor(int rank) const {
    return by_rank_[rank];
  }

 private:
  std::unique_ptr<RelayProcess> process_;
  std::vector<std::vector<std::string>> by_rank_;
};

}  // namespace ringfleet::testing

#endif  // RINGFLEET_TESTS_TESTING_RELAY_MESH_H_
