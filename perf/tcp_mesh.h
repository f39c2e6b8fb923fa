// SPDX-License-Identifier: Apache-2.0
// Plain TCP connections between all pairs of ranks, and the loop that sends and
// receives on all of them at once. No checksum and no framing but 16 bytes a
// message: what a collective costs when only the kernel carries it.
#ifndef RINGFLEET_PERF_TCP_MESH_H_
#define RINGFLEET_PERF_TCP_MESH_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace ringfleet::perf {

// What a rank does while no socket is ready.
enum class Waiting {
  kSpin,   // Asks again.
  kYield,  // Asks again after the other processes had the core.
  kBlock,  // Sleeps in poll().
};

struct TcpMeshOptions {
  Waiting waiting = Waiting::kSpin;
  // Of every socket; the kernel takes twice as much. 0: it grows as the kernel
  // finds fit, to megabytes, and then every byte passes through memory instead
  // of the cache: 1.8 MB between two ranks on two Zen 4 cores take 340 us with
  // 256 KiB, 550 without. A link whose bandwidth times round trip is more needs
  // more.
  int send_buffer_bytes = 0;
};

// Listens on HOST:PORT (numeric; port 0: any free one). Ends the process on
// failure.
int Listen(const std::string& address);
// HOST:PORT that a listening socket has.
std::string ListeningAddress(int listener);

// The connections of one rank. A broken connection or a message of another size
// than expected ends the process: peers are started together and agree on the
// schedule. For one thread.
class TcpMesh {
 public:
  // Connects to the lower ranks at `addresses` (by rank; peers may be late) and
  // accepts the higher ones. Owns `listener`.
  TcpMesh(int rank, int listener, const std::vector<std::string>& addresses,
          const TcpMeshOptions& options);
  ~TcpMesh();
  TcpMesh(const TcpMesh&) = delete;
  TcpMesh& operator=(const TcpMesh&) = delete;

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(links_.size()); }
  // The rank `distance` places behind this one, around the ring.
  int Neighbour(int distance) const {
    return ((rank_ + distance) % size() + size()) % size();
  }

  // Sends what fits at once, Run() the rest: `data` must keep its value until
  // then. Messages of one peer stay in order.
  void Send(int peer, const void* data, size_t bytes);
  // Names the place of the next message of `peer`. Run() calls `on_arrival`
  // with the bytes that have arrived so far whenever they became more, and once
  // for an empty message; it may send.
  void Receive(int peer, void* data, size_t bytes,
               std::function<void(size_t arrived)> on_arrival = nullptr);
  // Sends and receives until nothing is left to do.
  void Run();

  // Returns when every rank has called it.
  void Barrier();

 private:
  struct Header {
    uint64_t number;  // Of the message on its connection, from 0.
    uint64_t bytes;   // That follow.
  };
  struct Outgoing {
    Header header;
    const char* data;
    size_t sent;  // Of the header and the data.
  };
  struct Incoming {
    Header expected, header;
    char* data;
    size_t arrived;  // Of the header and the data.
    std::function<void(size_t)> on_arrival;
  };
  // The front is at an index, so that emptying a queue frees nothing.
  template <typename T>
  struct Queue {
    std::vector<T> items;
    size_t front = 0;
    bool empty() const { return front == items.size(); }
    void Pop() {
      if (++front == items.size()) {
        items.clear();
        front = 0;
      }
    }
  };
  struct Link {
    int fd = -1;
    uint64_t sent = 0, received = 0;  // Messages.
    Queue<Outgoing> outgoing;
    Queue<Incoming> incoming;
  };

  // Each moves at most one piece of a message. False: the socket is not ready.
  bool SendSome(Link& link);
  bool ReceiveSome(int peer);
  void Wait();

  const int rank_;
  const Waiting waiting_;
  std::vector<Link> links_;
};

}  // namespace ringfleet::perf

#endif  // RINGFLEET_PERF_TCP_MESH_H_
