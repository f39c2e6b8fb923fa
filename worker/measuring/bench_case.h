// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_WORKER_MEASURING_BENCH_CASE_H_
#define RINGFLEET_WORKER_MEASURING_BENCH_CASE_H_

#include <cstdint>

#include "absl/status/status.h"
#include "cluster/process/deadline.h"

namespace ringfleet::worker {

// An operation that all ranks run together on generated input. Each rank can
// check its result alone. Belongs to the thread of its communicator.
class BenchCase {
 public:
  virtual ~BenchCase() = default;

  // Bytes of the whole vector or matrix as float32 in memory.
  virtual uint64_t bytes() const = 0;
  // Number of ways to run the operation, which are timed in turns. Way 0 is
  // checked.
  virtual int num_ways() const { return 1; }
  // Returns how the ranks' times of one run make one time. False: their mean.
  // True: from the first rank's start to the last rank's end, for cases in
  // which ranks do not wait for each other in every way. Where ranks share a
  // CPU, the mean would be too small, because some finish before others get the
  // CPU.
  virtual bool EndsWithTheLast() const { return false; }

  // Generates the input again, because a run may overwrite it, and spoils the
  // output.
  virtual void Reset() = 0;
  // Errors: those of the collectives.
  virtual absl::Status Run(int way, cluster::Deadline deadline) = 0;

  // Counts the wrong elements of this rank's result. Requires one run of way 0
  // after Reset.
  virtual uint64_t CountWrong() = 0;
  // Returns a hash of this rank's result.
  virtual uint64_t ResultHash() const = 0;
  // Returns whether all ranks must have equal results.
  virtual bool Replicated() const = 0;
};

}  // namespace ringfleet::worker

#endif  // RINGFLEET_WORKER_MEASURING_BENCH_CASE_H_
