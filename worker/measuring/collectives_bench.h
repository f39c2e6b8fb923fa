// SPDX-License-Identifier: Apache-2.0
// Measures collectives as nccl-tests, OSU and gloo do: every element of a first
// result is checked, then a warm-up, then timed iterations with a barrier
// before each, and the last result is checked again. The time of an iteration
// is the mean over the ranks, each by its own clock (as OSU's), or, of a case
// that ends with the last rank, the longest time of a rank, also until a second
// barrier less the median of that where nothing is done before it; percentiles
// are over the iterations; bandwidths follow nccl-tests' doc/PERFORMANCE.md.
#ifndef RINGFLEET_WORKER_MEASURING_COLLECTIVES_BENCH_H_
#define RINGFLEET_WORKER_MEASURING_COLLECTIVES_BENCH_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "cluster/collectives/communicator.h"
#include "worker/measuring/bench_case.h"
#include "worker/measuring/collective_case.h"

namespace ringfleet::worker {

// The same on all ranks.
struct CollectiveFigures {
  int iterations = 0;
  double p50_us = 0;
  double p99_us = 0;
  // Of each way of doing it, which take turns; the first is p50_us.
  std::vector<double> way_p50_us;
  // Of one process (all its threads, system calls included) in further
  // iterations, without their barriers, the mean over the ranks, for 1e9 bytes
  // of the vector in memory; 0 without bytes.
  double cpu_seconds_per_gb = 0;
  // Over all ranks: wrong elements, and one for each rank whose result differs
  // from rank 0's where it must not, or from its own first result.
  uint64_t wrong = 0;
  // Of the result; of all ranks' results where each has its own part.
  uint64_t hash = 0;
};

// Belongs to one thread. Must outlive the transport of the communicators: after
// an error a peer may still be reading its buffers.
class CollectivesBench {
 public:
  struct Options {
    int iterations = 0;        // Timed ones; 0: as `case_time` allows.
    absl::Duration case_time;  // About what one case may take.
    absl::Duration timeout;    // Of every collective.
  };

  explicit CollectivesBench(Options options) : options_(options) {}

  // All ranks call it with equal arguments. `control` carries barriers and what
  // the ranks tell each other, `measured` the case; both may be the same.
  //
  // Errors: of the collectives.
  absl::StatusOr<CollectiveFigures> Measure(cluster::Communicator& control,
                                            cluster::Communicator& measured,
                                            const CollectiveCase::Spec& spec);
  // The same of any case, whose communicator is the one measured. It is gone
  // on return, unless there was an error.
  absl::StatusOr<CollectiveFigures> Measure(
      cluster::Communicator& control, std::unique_ptr<BenchCase> measured);

 private:
  struct Report {  // What a rank tells the others.
    uint64_t wrong = 0;
    uint64_t hash = 0;
    double seconds = 0;
  };

  cluster::Deadline Soon() const {
    return cluster::Deadline::After(options_.timeout);
  }
  // `size()` arrays of `count` values, by rank.
  template <typename T>
  absl::StatusOr<std::vector<T>> Gather(cluster::Communicator& control,
                                        const T* values, size_t count);
  // One run on fresh input, checked. `seconds`: what the run took.
  absl::StatusOr<Report> Verify(cluster::Communicator& control);
  // Iterations that fit into a share of the time at `seconds` each.
  int Fitting(double share, double seconds, int least, int most) const;
  // Fills times_ and until_last_, in us.
  absl::Status Iterate(cluster::Communicator& control, int count);
  // What the ranks' times of one way add up to, by iteration, sorted.
  absl::StatusOr<std::vector<double>> Merge(cluster::Communicator& control,
                                            const std::vector<float>& own);
  // Of one run of the first way. In runs of their own: the system call that
  // reads them takes longer than a small exchange, on each rank another time,
  // for which the others would wait within the timed part.
  absl::StatusOr<double> CpuSeconds(cluster::Communicator& control, int count);

  const Options options_;
  std::unique_ptr<BenchCase> case_;        // Under way, or the one that failed.
  std::vector<std::vector<float>> times_;  // By way, then iteration.
  // The same until a second barrier, and behind the ways that alone; empty if
  // the case does not end with the last.
  std::vector<std::vector<float>> until_last_;
  std::vector<char> gathered_;
};

}  // namespace ringfleet::worker

#endif  // RINGFLEET_WORKER_MEASURING_COLLECTIVES_BENCH_H_
