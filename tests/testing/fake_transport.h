// SPDX-License-Identifier: Apache-2.0
// An in-memory transport for ranks on threads. It keeps the promises of the
// real transport and no others. Payload is read when the receiver takes the
// frame, so memory that an algorithm changes too early fails the checksum.
// Payload arrives in pieces of an odd size, so elements straddle pieces. A warm
// transport allocates nothing, so a test can count the allocations of an
// operation.
#ifndef RINGFLEET_TESTS_TESTING_FAKE_TRANSPORT_H_
#define RINGFLEET_TESTS_TESTING_FAKE_TRANSPORT_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cluster/transport/frame_queue.h"
#include "cluster/transport/transport.h"
#include "kernels/mutex.h"
#include "tests/testing/scripted_transport.h"

namespace ringfleet::testing {

class FakeNetwork {
 public:
  explicit FakeNetwork(int world_size, size_t piece_bytes = 4093);
  ~FakeNetwork();

  int world_size() const { return world_size_; }
  cluster::Transport& transport(int rank);
  // Calls `script` for every frame, with the network's lock held. The script
  // must not change the payload.
  void set_script(FrameScript script);

  // Runs `body` on one thread per rank. Returns the statuses by rank.
  std::vector<absl::Status> RunOnEveryRank(
      const std::function<absl::Status(cluster::Transport&)>& body);

 private:
  class Rank;

  // The memory of received or forwarded frames.
  class Body : public cluster::FrameBody {
   public:
    void Recycle() override { network->bodies_.Return(this); }

    FakeNetwork* network = nullptr;
    std::vector<char> memory;
  };

  struct Sent {
    cluster::FrameHeader header;
    absl::Span<const char> payload;  // Memory of the sender, or of `body`.
    void* reference = nullptr;       // Reference of the sender's ledger.
    cluster::ReceivedFrame body;
  };

  const int world_size_;
  const size_t piece_bytes_;
  cluster::FramePool<Body> bodies_;
  std::vector<std::unique_ptr<Rank>> ranks_;

  Mutex mu_;
  CondVar changed_;
  FrameScript script_ ABSL_GUARDED_BY(mu_);
  absl::Status cause_ ABSL_GUARDED_BY(mu_);
  // Queues by (from * world_size + to) * lanes + lane.
  std::vector<cluster::FrameQueue<Sent>> queues_ ABSL_GUARDED_BY(mu_);
};

}  // namespace ringfleet::testing

#endif  // RINGFLEET_TESTS_TESTING_FAKE_TRANSPORT_H_
