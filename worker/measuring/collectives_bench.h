// SPDX-License-Identifier: Apache-2.0
// Measures collectives in the way of nccl-tests, OSU and gloo:
//   1. Run once and check every element of the result.
//   2. Warm up.
//   3. Time iterations, with a barrier before each.
//   4. Run once more and check every element again.
// The time of an iteration is the mean of the times that the ranks measure with
// their own clocks, as in OSU. A case that ends with the last rank
// (BenchCase::EndsWithTheLast) has a second barrier after each run. Its time is
// the larger of two: the longest time of a rank, and the longest time until the
// end of the second barrier less the median time of such a barrier alone.
// Percentiles are over iterations. Bandwidths follow nccl-tests'
// doc/PERFORMANCE.md.
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

// Results of one case. All ranks get equal results.
struct CollectiveFigures {
  int iterations = 0;  // Timed iterations.
  double p50_us = 0;
  double p99_us = 0;
  // Median of each way, by way. Element 0 is p50_us.
  std::vector<double> way_p50_us;
  // CPU seconds of one rank's process for 1e9 bytes of the vector in memory,
  // with all threads and system calls, without barriers. Mean over the ranks,
  // from iterations of their own. 0: the case has no bytes.
  double cpu_seconds_per_gb = 0;
  // Number of wrong elements on all ranks. A rank whose result differs from
  // rank 0's result adds 1 if all results must be equal. A hash of the last run
  // that differs from the hash of the first run adds 1.
  uint64_t wrong = 0;
  // Hash of the result if all ranks have equal results. Otherwise a hash over
  // the results of all ranks.
  uint64_t hash = 0;
};

// Measures one case after the other. Belongs to one thread. Must outlive the
// transport of the communicators, because after an error a peer may still read
// the buffers of the case.
class CollectivesBench {
 public:
  struct Options {
    int iterations = 0;        // Timed iterations; 0: as case_time allows.
    absl::Duration case_time;  // Approximate time for one case.
    absl::Duration timeout;    // Longest time for one collective.
  };

  explicit CollectivesBench(Options options) : options_(options) {}

  // Measures a collective. All ranks call Measure with equal arguments.
  // `control` carries barriers and reports; `measured` carries the case. Both
  // may be one communicator.
  //
  // Errors: those of the collectives.
  absl::StatusOr<CollectiveFigures> Measure(cluster::Communicator& control,
                                            cluster::Communicator& measured,
                                            const CollectiveCase::Spec& spec);
  // Measures any case over the case's own communicator. Frees the case on
  // success. After an error, the case lives as long as this object.
  absl::StatusOr<CollectiveFigures> Measure(
      cluster::Communicator& control, std::unique_ptr<BenchCase> measured);

 private:
  struct Report {  // From each rank to all others.
    uint64_t wrong = 0;
    uint64_t hash = 0;
    double seconds = 0;
  };

  cluster::Deadline Soon() const {
    return cluster::Deadline::After(options_.timeout);
  }
  // Returns `count` values of each rank, by rank.
  template <typename T>
  absl::StatusOr<std::vector<T>> Gather(cluster::Communicator& control,
                                        const T* values, size_t count);
  // Runs way 0 once on fresh input and checks the result. Returns the merged
  // report of all ranks. Report::seconds is the longest time of a rank.
  absl::StatusOr<Report> Verify(cluster::Communicator& control);
  // Returns the number of iterations of `seconds` each that fit into the
  // fraction `share` of case_time, from `least` to `most`.
  int Fitting(double share, double seconds, int least, int most) const;
  // Runs `count` iterations of all ways. Fills times_ and until_last_, in
  // microseconds.
  absl::Status Iterate(cluster::Communicator& control, int count);
  // Merges the ranks' times of each iteration of one way into one time
  // (BenchCase::EndsWithTheLast). Returns the times sorted.
  absl::StatusOr<std::vector<double>> Merge(cluster::Communicator& control,
                                            const std::vector<float>& own);
  // Returns the CPU seconds of one run of way 0, as a mean over `count` runs.
  // These runs are not timed, because the system call that reads CPU time takes
  // longer than a small exchange, and ranks would wait for each other's system
  // calls.
  absl::StatusOr<double> CpuSeconds(cluster::Communicator& control, int count);

  const Options options_;
  std::unique_ptr<BenchCase> case_;        // The case that runs or failed.
  std::vector<std::vector<float>> times_;  // By way, then iteration.
  // Times until the end of the second barrier, by way, then iteration. The last
  // element has the times of a second barrier alone. Empty unless the case ends
  // with the last rank.
  std::vector<std::vector<float>> until_last_;
  std::vector<char> gathered_;
};

}  // namespace ringfleet::worker

#endif  // RINGFLEET_WORKER_MEASURING_COLLECTIVES_BENCH_H_
