// SPDX-License-Identifier: Apache-2.0
// The schedules of the collectives, on float32 over plain TCP. Segment r of a
// vector of n elements is [n r / N, n (r + 1) / N).
//
//   one_shot  Every rank sends its whole vector (all_gather: its segment,
//             reduce_scatter: segment j to rank j) to all others and reduces
//             what arrives in rank order.
//   two_shot  all_reduce only: the reduce_scatter above, then every rank sends
//             its reduced segment to all others, in chunks as they get ready.
//   ring      A reduce_scatter, then an all_gather around the ring; a chunk is
//             sent on as soon as it has arrived. Segment r is summed in the
//             order r + 1, r + 2, ..., r.
//   bidirectional_ring
//             The same on the two halves of every segment, in opposite
//             directions. With two ranks it is the ring.
#ifndef RINGFLEET_PERF_TWIN_SCHEDULES_H_
#define RINGFLEET_PERF_TWIN_SCHEDULES_H_

#include <cstddef>
#include <string>
#include <vector>

#include "perf/tcp_mesh.h"

namespace ringfleet::perf {

enum class TwinOp { kAllReduce, kAllGather, kReduceScatter };

// Runs one operation again and again. For one thread.
class TwinCollective {
 public:
  // Whether there is such a schedule.
  static bool Exists(TwinOp op, const std::string& algo);

  // `count` elements in all; messages of a ring and of a two_shot's second
  // phase have at most `chunk` of them.
  TwinCollective(TcpMesh& mesh, TwinOp op, const std::string& algo,
                 size_t count, size_t chunk);

  // input [count]: not changed; an all_gather reads the own segment only.
  // output [count]: a reduce_scatter leaves its result in the own segment.
  std::vector<float>& input() { return input_; }
  const std::vector<float>& output() const { return output_; }
  void ClearOutput() { output_.assign(count_, -1.0f); }

  // All ranks call it. Requires Exists(op, algo).
  void Run();

 private:
  size_t Begin(int segment) const;
  size_t Size(int segment) const { return Begin(segment + 1) - Begin(segment); }

  void SendSegments();
  // Takes the contributions of all ranks to `count` elements from `begin` and
  // leaves their sum in the output. send_reduced: as in a two_shot's second
  // phase.
  void ReduceDirectly(size_t begin, size_t count, bool send_reduced);
  void OnContribution(int from, size_t bytes);
  void GatherDirectly();
  // Posts what the ring in `direction` (1 or -1) does with one of `parts` parts
  // of every segment.
  void StartRing(int direction, size_t part, size_t parts);

  TcpMesh& mesh_;
  const TwinOp op_;
  const std::string algo_;
  const size_t count_, chunk_;
  std::vector<float> input_, output_;
  std::vector<std::vector<float>> received_;  // By rank; ring: by part.
  // The reduction under way.
  std::vector<const float*> sources_;  // By rank.
  std::vector<size_t> arrived_;        // Elements, by rank.
  float* sum_ = nullptr;
  size_t to_reduce_ = 0, reduced_ = 0, sent_ = 0;
  bool send_reduced_ = false;
};

}  // namespace ringfleet::perf

#endif  // RINGFLEET_PERF_TWIN_SCHEDULES_H_
