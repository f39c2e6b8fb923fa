// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_WORKER_MEASURING_BENCH_CASE_H_
#define RINGFLEET_WORKER_MEASURING_BENCH_CASE_H_

#include <cstdint>

#include "absl/status/status.h"
#include "cluster/process/deadline.h"

namespace ringfleet::worker {

// Something that all ranks do together on generated input, with a result that
// each can check by itself. Belongs to the thread of its communicator.
class BenchCase {
 public:
  virtual ~BenchCase() = default;

  // Of the whole vector or matrix as float32 in memory.
  virtual uint64_t bytes() const = 0;
  // Ways of doing it that are timed beside each other; way 0 is the one that is
  // checked.
  virtual int num_ways() const { return 1; }
  // What the time of one run of all ranks is: the mean over the ranks, or,
  // where a rank does not wait for the others in every way, from the first
  // one's beginning until the last one is done. The mean of ranks that share a
  // CPU is less than that: some have finished before others get it.
  virtual bool EndsWithTheLast() const { return false; }

  // Generates the input anew and spoils the output. A run may overwrite its
  // input.
  virtual void Reset() = 0;
  virtual absl::Status Run(int way, cluster::Deadline deadline) = 0;

  // Elements of this rank's result that are not what they must be, after one
  // run of way 0 on a Reset case.
  virtual uint64_t CountWrong() = 0;
  // Of this rank's result.
  virtual uint64_t ResultHash() const = 0;
  // Whether all ranks must have the same result.
  virtual bool Replicated() const = 0;
};

}  // namespace ringfleet::worker

#endif  // RINGFLEET_WORKER_MEASURING_BENCH_CASE_H_
