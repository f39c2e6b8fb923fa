// SPDX-License-Identifier: Apache-2.0
// One collective over generated vectors, with its expected result. Every rank
// can generate the vectors of all ranks. A rank computes the expected result
// from them, block by block, without the other ranks.
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

// Returns element `index` of the vector of `rank`. Elements have 24 significant
// bits, both signs and magnitudes from 2^-30 to 1, so a sum in another order
// has other bits.
float GeneratedElement(int rank, size_t index);

// Returns the bytes of `count` elements of one row on the wire.
uint64_t WireBytes(cluster::Wire wire, uint64_t count);

// A case of an operation that is not fused with a product. The communicator
// must outlive the case.
class CollectiveCase final : public BenchCase {
 public:
  struct Spec {
    cluster::Operation operation = cluster::Operation::kAllReduce;
    // The algorithm that the communicator uses. The expected bits depend on the
    // algorithm.
    cluster::Algorithm algorithm = cluster::Algorithm::kOneShot;
    cluster::Wire wire = cluster::Wire::kF32;
    // Number of elements of the whole vector that is reduced, gathered,
    // scattered or broadcast, or that one rank sends in an all-to-all. 0 for a
    // barrier.
    size_t count = 0;
  };

  CollectiveCase(cluster::Communicator* communicator, const Spec& spec);

  // Returns the bytes that the case and its communicator take on each of
  // `ranks` ranks.
  static uint64_t MemoryBytes(const Spec& spec, int ranks);

  uint64_t bytes() const override { return sizeof(float) * spec_.count; }
  void Reset() override;
  absl::Status Run(int, cluster::Deadline deadline) override {
    return Run(deadline);
  }
  absl::Status Run(cluster::Deadline deadline);

  // Compares bit for bit if the algorithm fixes the order of every sum. The
  // order on a ring differs from share to share. The results of a ring may
  // differ by the error bound of a sum of one float32 term per rank in any
  // order, plus the rounding of the sum to the wire.
  uint64_t CountWrong() override;
  uint64_t ResultHash() const override;
  bool Replicated() const override;

  const Spec& spec() const { return spec_; }

 private:
  // Elements [begin, end) of one rank's vector, or of the sum of all vectors.
  struct Part {
    static constexpr int kSum = -1;

    int source = kSum;  // Rank, or kSum.
    size_t begin = 0;
    size_t end = 0;
    size_t first = 0;  // Index of element `begin` in the result.
  };

  // Returns the parts of the result, in the order of the result's elements.
  std::vector<Part> Parts() const;
  absl::Span<const float> result() const;
  // Generates elements [begin, end) of the input of `rank` as other ranks
  // receive them, rounded to the wire.
  void Contribution(int rank, size_t begin, size_t end, float* out) const;
  uint64_t CountWrongCopies(const Part& part) const;
  uint64_t CountWrongSums(const Part& part) const;
  uint64_t CountDistantSums(const Part& part) const;

  cluster::Communicator* const communicator_;
  const Spec spec_;
  const int rank_;
  const int size_;
  std::vector<uint64_t> offsets_;         // [size + 1] bounds of the shares.
  std::vector<uint64_t> output_offsets_;  // [size + 1], for an all-to-all.
  std::vector<float> input_;
  std::vector<float> output_;
};

}  // namespace ringfleet::worker

#endif  // RINGFLEET_WORKER_MEASURING_COLLECTIVE_CASE_H_
