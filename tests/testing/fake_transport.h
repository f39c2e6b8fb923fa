// SPDX-License-Identifier: Apache-2.0
// An in-memory transport for ranks on threads. It keeps what the real one
// promises and nothing more: payload is read only when the receiver takes the
// frame, so memory that an algorithm changes too early fails the checksum;
// payload arrives in pieces of an odd size, so elements straddle them.
#ifndef RINGFLEET_TESTS_TESTING_FAKE_TRANSPORT_H_
#define RINGFLEET_TESTS_TESTING_FAKE_TRANSPORT_H_

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cluster/transport.h"
#include "kernels/mutex.h"

namespace ringfleet::testing {

class FakeNetwork {
 public:
  // Sees every frame as it is sent and may change the header; returning false
  // loses the frame. Called with the network's lock held.
  using Tamper =
      std::function<bool(int from, int to, cluster::FrameHeader& header)>;

  explicit FakeNetwork(int world_size, size_t piece_bytes = 4093);
  ~FakeNetwork();

  int world_size() const { return world_size_; }
  cluster::Transport& transport(int rank);
  void set_tamper(Tamper tamper);

  // Runs body on one thread per rank and returns the statuses by rank.
  std::vector<absl::Status> RunOnEveryRank(
      const std::function<absl::Status(cluster::Transport&)>& body);

 private:
  class Rank;
  struct Sent {
    cluster::FrameHeader header;
    absl::Span<const char> payload;
  };

  const int world_size_;
  const size_t piece_bytes_;
  std::vector<std::unique_ptr<Rank>> ranks_;

  Mutex mu_;
  CondVar changed_;
  Tamper tamper_ ABSL_GUARDED_BY(mu_);
  absl::Status cause_ ABSL_GUARDED_BY(mu_);
  // [from * world_size + to]
  std::vector<std::deque<Sent>> queues_ ABSL_GUARDED_BY(mu_);
};

}  // namespace ringfleet::testing

#endif  // RINGFLEET_TESTS_TESTING_FAKE_TRANSPORT_H_
