// SPDX-License-Identifier: Apache-2.0
// An in-memory transport for ranks on threads. It keeps what the real one
// promises and nothing more: payload is read only when the receiver takes the
// frame, so memory that an algorithm changes too early fails the checksum;
// payload arrives in pieces of an odd size, so elements straddle them. Once
// warm it allocates nothing, so what an operation allocates can be counted.
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
  // Shows every frame to `script`, which is called with the network's lock
  // held and leaves the payload alone.
  void set_script(FrameScript script);

  // Runs body on one thread per rank and returns the statuses by rank.
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
    absl::Span<const char> payload;  // The sender's memory, or the body's.
    void* reference = nullptr;       // Of the sender's ledger.
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
  // [(from * world_size + to) * lanes + lane]
  std::vector<cluster::FrameQueue<Sent>> queues_ ABSL_GUARDED_BY(mu_);
};

}  // namespace ringfleet::testing

#endif  // RINGFLEET_TESTS_TESTING_FAKE_TRANSPORT_H_
