// SPDX-License-Identifier: Apache-2.0
// One collective over generated vectors, and what its result must be: every
// rank can generate every rank's vector, so each computes by itself, block by
// block, what the others should have sent.
#ifndef RINGFLEET_WORKER_MEASURING_COLLECTIVE_CASE_H_
#define RINGFLEET_WORKER_MEASURING_COLLECTIVE_CASE_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "cluster/collectives/communicator.h"
#include "cluster/process/deadline.h"
#include "cluster/wire/frame.h"
#include "worker/measuring/bench_case.h"

namespace ringfleet::worker {

// Element `index` of rank `rank`'s vector: 24 bits of significance, magnitudes
// from 2^-30 to 1, both signs, so that the order of a sum shows in its bits.
float GeneratedElement(int rank, size_t index);

// Bytes of `count` elements as they travel, in one row.
uint64_t WireBytes(cluster::Wire wire, uint64_t count);

// Of the operations that are not fused with a product. Belongs to the thread of
// the communicator, which must outlive it.
class CollectiveCase final : public BenchCase {
 public:
  struct Spec {
    cluster::Operation operation = cluster::Operation::kAllReduce;
    // The one that will run; decides what is expected.
    cluster::Algorithm algorithm = cluster::Algorithm::kOneShot;
    cluster::Wire wire = cluster::Wire::kF32;
    // Elements of the whole vector: the sum, what is gathered, what is
    // scattered, what one rank sends to all. 0 for a barrier.
    size_t count = 0;
  };

  CollectiveCase(cluster::Communicator* communicator, const Spec& spec);

  // Memory that a case takes on each of `ranks`, with its communicator's.
  static uint64_t MemoryBytes(const Spec& spec, int ranks);

  uint64_t bytes() const override { return sizeof(float) * spec_.count; }
  void Reset() override;
  absl::Status Run(int, cluster::Deadline deadline) override {
    return Run(deadline);
  }
  absl::Status Run(cluster::Deadline deadline);

  // Bit for bit where the algorithm fixes the order of
  // the sum; where it does not (a ring starts each segment's sum elsewhere)
  // within the error bound of a sum of size() float32 terms in any order,
  // plus the rounding of the sum to the wire.
  uint64_t CountWrong() override;
  uint64_t ResultHash() const override;
  bool Replicated() const override;

  const Spec& spec() const { return spec_; }

 private:
  // Elements [begin, end) of one rank's vector, or of the sum of all.
  struct Part {
    static constexpr int kSum = -1;

    int source = kSum;
    size_t begin = 0;
    size_t end = 0;
    size_t place = 0;  // Of the first one in the result.
  };

  // What the result consists of, in order.
  std::vector<Part> Parts() const;
  absl::Span<const float> result() const;
  // The input of `rank` as others see it.
  void Contribution(int rank, size_t begin, size_t end, float* out) const;
  uint64_t CountWrongCopies(const Part& part) const;
  uint64_t CountWrongSums(const Part& part) const;
  uint64_t CountDistantSums(const Part& part) const;

  cluster::Communicator* const communicator_;
  const Spec spec_;
  const int rank_;
  const int size_;
  std::vector<uint64_t> offsets_;         // Of segments of the vector.
  std::vector<uint64_t> output_offsets_;  // Of an all_to_all.
  std::vector<float> input_;
  std::vector<float> output_;
};

}  // namespace ringfleet::worker

#endif  // RINGFLEET_WORKER_MEASURING_COLLECTIVE_CASE_H_
