// SPDX-License-Identifier: Apache-2.0
// A reproducible stream of random collectives, with their expected results.
#ifndef RINGFLEET_TESTS_TESTING_OPERATION_STREAM_H_
#define RINGFLEET_TESTS_TESTING_OPERATION_STREAM_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "cluster/collectives/group_communicator.h"
#include "cluster/recording/flight_recorder.h"
#include "cluster/transport/transport.h"

namespace ringfleet::testing {

// One operation of the stream. Every rank draws an equal operation for an
// index.
struct DrawnOperation {
  cluster::Operation operation = cluster::Operation::kBarrier;
  bool bytes = false;  // True: an all-gather of bytes, not of floats.
  int table = 0;       // Index of the communicator that carries the operation.
  cluster::Wire wire = cluster::Wire::kF32;
  // Number of elements of the whole vector, or of the largest part of an
  // all-to-all.
  size_t count = 0;
  size_t row_elements = 0;
  int root = 0;
  bool in_place = false;
  uint64_t values = 0;  // Seed of the values.
};

// Runs operations over one transport: every operation by every algorithm on
// every wire, with empty and long vectors, and with even, uneven and empty
// shares. Values are small integers. Their sums are exact in any order, so
// every bit of a result is known.
class OperationStream {
 public:
  // Destroy the transport before this object, because the transport reads
  // payload of this object.
  OperationStream(cluster::Transport* transport,
                  cluster::FlightRecorder* recorder);

  static DrawnOperation Draw(uint64_t seed, int index, int ranks);
  static std::string Describe(const DrawnOperation& drawn);

  // Runs operation `index` of the stream `seed`, and compares every element. If
  // `misshapen`, this rank has one element more than the other ranks. Returns
  // UNKNOWN if the operation succeeds with a wrong result, else the operation's
  // status.
  absl::Status Run(uint64_t seed, int index, bool misshapen,
                   cluster::Deadline deadline);

 private:
  absl::Status RunOne(const DrawnOperation& drawn, cluster::Deadline deadline);
  absl::Status AllReduce(const DrawnOperation& drawn, cluster::Deadline);
  absl::Status AllGather(const DrawnOperation& drawn, cluster::Deadline);
  absl::Status GatherBytes(const DrawnOperation& drawn, cluster::Deadline);
  absl::Status ReduceScatter(const DrawnOperation& drawn, cluster::Deadline);
  absl::Status AllToAll(const DrawnOperation& drawn, cluster::Deadline);
  absl::Status Broadcast(const DrawnOperation& drawn, cluster::Deadline);

  cluster::Algorithm AlgorithmOf(const DrawnOperation& drawn) const;
  // Returns the sum of all ranks' values, with the roundings of the algorithm
  // of `drawn`.
  std::vector<float> Sum(const DrawnOperation& drawn) const;

  const int rank_;
  const int ranks_;
  std::vector<cluster::AlgorithmTable> tables_;
  std::vector<std::unique_ptr<cluster::GroupCommunicator>> communicators_;
  // Buffers of the last operation. Peers may still read the buffers after a
  // failure.
  std::vector<float> input_;
  std::vector<float> output_;
  std::string input_bytes_;
  std::string output_bytes_;
};

}  // namespace ringfleet::testing

#endif  // RINGFLEET_TESTS_TESTING_OPERATION_STREAM_H_
