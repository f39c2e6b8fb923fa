// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_WORKER_EXECUTION_EXPERT_STATISTICS_H_
#define RINGFLEET_WORKER_EXECUTION_EXPERT_STATISTICS_H_

#include <cstdint>
#include <vector>

#include "kernels/mutex.h"
#include "protos/worker.pb.h"

namespace ringfleet::worker {

// Counts the tokens of each expert. Keeps totals since the last reset, and
// exponential averages per step. Thread-safe.
class ExpertStatistics {
 public:
  // Adds the counts of one step and sets both arguments to zero. Ignores a step
  // in which no expert had tokens.
  //   counts [layer][expert]: number of tokens; empty for dense layers
  //   dropped [layer]: number of routes that ExpertDispatch::LimitRoutes
  //     dropped
  void AddStep(std::vector<std::vector<uint64_t>>& counts,
               std::vector<uint64_t>& dropped);

  // Appends the statistics of each layer with experts to `response`, by
  // ascending layer. Then sets the totals to zero if `reset` is true.
  void Read(bool reset, v1::StatisticsResponse* response);

 private:
  // Factor of the old average in each step. An average then covers about the
  // last hundred steps.
  static constexpr float kDecay = 0.99f;

  Mutex mu_;
  uint64_t steps_ ABSL_GUARDED_BY(mu_) = 0;
  std::vector<std::vector<uint64_t>> totals_ ABSL_GUARDED_BY(mu_);
  std::vector<std::vector<float>> averages_ ABSL_GUARDED_BY(mu_);
  std::vector<uint64_t> dropped_ ABSL_GUARDED_BY(mu_);  // By layer.
};

}  // namespace ringfleet::worker

#endif  // RINGFLEET_WORKER_EXECUTION_EXPERT_STATISTICS_H_
