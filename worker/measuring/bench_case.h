// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_WORKER_MEASURING_BENCH_CASE_H_
#define RINGFLEET_WORKER_MEASURING_BENCH_CASE_H_

#include <cstdint>

#include "absl/status/status.h"
#include "cluster/process/deadline.h"

namespace ringfleet::worker {

// An operation that all ranks run together on generated input. Each rank can
// check its own result without the other ranks. Belongs to the thread of its
// communicator.
class BenchCase {
 public:
  virtual ~BenchCase() = default;

  // Returns the bytes of the whole vector or matrix as float32 in memory.
  virtual uint64_t bytes() const = 0;
  // Returns the number of ways to run the operation. Ways count from 0 and are
  // timed in turns. Only the result of way 0 is checked.
  virtual int num_ways() const { return 1; }
  // Returns how the times of all ranks for one run make one time. False: the
  // mean of the times. True: the time from the first rank's start to the last
  // rank's end. True is for cases with a way in which ranks do not wait for
  // each other. If such ranks share a CPU, their mean time is too small,
  // because some ranks finish before others get the CPU.
  virtual bool EndsWithTheLast() const { return false; }

  // Generates the input again, because a run may overwrite the input. Fills the
  // output with wrong values.
  virtual void Reset() = 0;
  // Runs the operation once, in way `way`. Errors: those of the collectives.
  virtual absl::Status Run(int way, cluster::Deadline deadline) = 0;

  // Returns the number of wrong elements in this rank's result. Requires one
  // run of way 0 after Reset.
  virtual uint64_t CountWrong() = 0;
  // Returns a hash of this rank's result.
  virtual uint64_t ResultHash() const = 0;
  // Returns whether all ranks must have equal results.
  virtual bool Replicated() const = 0;
};

}  // namespace ringfleet::worker

#endif  // RINGFLEET_WORKER_MEASURING_BENCH_CASE_H_
