// SPDX-License-Identifier: Apache-2.0
// A reproducible stream of random collectives, and what each must result in.
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

// What every rank draws alike for one place in the stream.
struct DrawnOperation {
  cluster::Operation operation = cluster::Operation::kBarrier;
  bool bytes = false;  // An all-gather of bytes, not of floats.
  int table = 0;       // Which communicator carries it.
  cluster::Wire wire = cluster::Wire::kF32;
  size_t count =
      0;  // Elements of the whole, or of an all-to-all's largest part.
  size_t row_elements = 0;
  int root = 0;
  bool in_place = false;
  uint64_t values = 0;  // Seed of the values.
};

// Runs operations over one transport: every operation by every algorithm on
// every wire, empty and long vectors, even, uneven and empty shares. Values
// are small integers, whose sums are exact in any order, so that every result
// is known bit for bit.
class OperationStream {
 public:
  // Must outlive the transport's use of payload: destroy the transport first.
  OperationStream(cluster::Transport* transport,
                  cluster::FlightRecorder* recorder);

  static DrawnOperation Draw(uint64_t seed, int index, int ranks);
  static std::string Describe(const DrawnOperation& drawn);

  // Runs the operation `index` of a stream, and compares every element.
  // `misshapen`: with one element more than all others have. UNKNOWN when the
  // operation succeeds with a wrong result, else its own status.
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
  // The sum of all ranks' values, as `drawn`'s algorithm rounds it on the way.
  std::vector<float> Sum(const DrawnOperation& drawn) const;

  const int rank_;
  const int ranks_;
  std::vector<cluster::AlgorithmTable> tables_;
  std::vector<std::unique_ptr<cluster::GroupCommunicator>> communicators_;
  // Of the last operation; peers may still read from them when it failed.
  std::vector<float> input_;
  std::vector<float> output_;
  std::string input_bytes_;
  std::string output_bytes_;
};

}  // namespace ringfleet::testing

#endif  // RINGFLEET_TESTS_TESTING_OPERATION_STREAM_H_
