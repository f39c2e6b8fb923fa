// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_CLUSTER_RECORDING_ROUND_TRIPS_H_
#define RINGFLEET_CLUSTER_RECORDING_ROUND_TRIPS_H_

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace ringfleet::cluster {

// The times of messages to the peers of an epoch and back. A time includes the
// wait until both processes read their messages, so the shortest one is close
// to the network's. Note and Clear must not run in two threads at once. Any
// thread may call Shortest.
class RoundTrips {
 public:
  static constexpr int kPeers = 64;
  // Number of latest times that Shortest looks at.
  static constexpr size_t kWindow = 32;

  // Notes one time. Ignores peers from kPeers on.
  void Note(int peer, uint64_t ns) {
    if (peer < 0 || peer >= kPeers) return;
    Peer& of = peers_[peer];
    of.latest[of.count++ % kWindow] = ns;
    const size_t kept = std::min(of.count, kWindow);
    of.shortest.store(
        *std::min_element(of.latest.begin(), of.latest.begin() + kept),
        std::memory_order_relaxed);
  }

  // Forgets all times, for a new epoch.
  void Clear() {
    for (Peer& peer : peers_) {
      peer.count = 0;
      peer.shortest.store(0, std::memory_order_relaxed);
    }
  }

  // Returns the shortest of the latest times in nanoseconds. 0: none so far.
  uint64_t Shortest(int peer) const {
    return peers_[peer].shortest.load(std::memory_order_relaxed);
  }

 private:
  struct Peer {
    std::array<uint64_t, kWindow> latest = {};
    size_t count = 0;
    std::atomic<uint64_t> shortest{0};
  };
  std::array<Peer, kPeers> peers_;
};

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_RECORDING_ROUND_TRIPS_H_
