// SPDX-License-Identifier: Apache-2.0
// Measures collectives as nccl-tests, OSU and gloo do:
//   1. A first run, in which every element of the result is checked.
//   2. A warm-up.
//   3. Timed iterations with a barrier before each.
//   4. The last result is checked again.
// The time of an iteration is the mean over the ranks, each by its own clock,
// as OSU's. For a case that ends with the last rank, it is the larger of two:
// the longest time of a rank, and the time until a second barrier less the
// median time of that barrier alone. Percentiles are over iterations.
// Bandwidths follow nccl-tests' doc/PERFORMANCE.md.
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

// Results of one case, equal on all ranks.
struct CollectiveFigures {
  int iterations = 0;
  double p50_us = 0;
  double p99_us = 0;
  // Medians of the ways, which take turns. The first is p50_us.
  std::vector<double> way_p50_us;
  // CPU seconds of a process, all threads and system calls included, for 1e9
  // bytes of the vector in memory. Mean over the ranks, from further
  // iterations, without their barriers. 0: the case has no bytes.
  double cpu_seconds_per_gb = 0;
  // Wrong elements of all ranks, plus one for each rank whose result differs
  // from its own first result, or from rank 0's where they must be equal.
  uint64_t wrong = 0;
  // Hash of the result, or of all ranks' results where each has its own share.
  uint64_t hash = 0;
};

// Measures one case after the other. Belongs to one thread. Must outlive the
// transport of the communicators, because a peer may still read its buffers
// after an error.
class CollectivesBench {
 public:
  struct Options {
    int iterations = 0;        // Timed iterations; 0: as case_time allows.
    absl::Duration case_time;  // Time for one case, about.
    absl::Duration timeout;    // Time for each collective.
  };

  explicit CollectivesBench(Options options) : options_(options) {}

  // Measures a collective. All ranks call it with equal arguments. `control`
  // carries barriers and reports, `measured` the case; they may be the same.
  //
  // Errors: those of the collectives.
  absl::StatusOr<CollectiveFigures> Measure(cluster::Communicator& control,
                                            cluster::Communicator& measured,
                                            const CollectiveCase::Spec& spec);
  // Measures any case, over the case's own communicator. The case is freed on
  // success. After an error it lives as long as this object.
  absl::StatusOr<CollectiveFigures> Measure(
      cluster::Communicator& control, std::unique_ptr<BenchCase> measured);

 private:
  struct Report {  // A rank's, to all others.
    uint64_t wrong = 0;
    uint64_t hash = 0;
    double seconds = 0;
  };

  cluster::Deadline Soon() const {
    return cluster::Deadline::After(options_.timeout);
  }
  // Gathers `count` values of each rank, by rank.
  template <typename T>
  absl::StatusOr<std::vector<T>> Gather(cluster::Communicator& control,
                                        const T* values, size_t count);
  // Runs once on fresh input and checks the result. Report::seconds is the
  // run's time.
  absl::StatusOr<Report> Verify(cluster::Communicator& control);
  // Returns the iterations of `seconds` each that fit into `share` of
  // case_time.
  int Fitting(double share, double seconds, int least, int most) const;
  // Runs `count` iterations of all ways. Fills times_ and until_last_, in us.
  absl::Status Iterate(cluster::Communicator& control, int count);
  // Merges the ranks' times of one way by iteration, and sorts them.
  absl::StatusOr<std::vector<double>> Merge(cluster::Communicator& control,
                                            const std::vector<float>& own);
  // Returns the CPU seconds of one run of the first way. Uses separate runs,
  // because the system call that reads CPU time takes longer than a small
  // exchange. In timed runs, ranks would wait for each other's calls.
  absl::StatusOr<double> CpuSeconds(cluster::Communicator& control, int count);

  const Options options_;
  std::unique_ptr<BenchCase> case_;        // Running, or the one that failed.
  std::vector<std::vector<float>> times_;  // By way, then iteration.
  // Times until a second barrier, by way, then those of that barrier alone.
  // Empty unless the case ends with the last rank.
  std::vector<std::vector<float>> until_last_;
  std::vector<char> gathered_;
};

}  // namespace ringfleet::worker

#endif  // RINGFLEET_WORKER_MEASURING_COLLECTIVES_BENCH_H_
