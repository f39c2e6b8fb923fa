// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_WORKER_EXECUTION_EXPERT_STATISTICS_H_
#define RINGFLEET_WORKER_EXECUTION_EXPERT_STATISTICS_H_

#include <cstdint>
#include <vector>

#include "kernels/mutex.h"
#include "protos/worker.pb.h"

namespace ringfleet::worker {

// Counts the tokens of each expert: exact totals since a reset, and exponential
// averages per step. Thread-safe.
class ExpertStatistics {
 public:
  // Adds one step and zeroes both arguments.
  //   counts [layer][expert]: tokens; empty for dense layers
  //   dropped [layer]: routes that no coordinate took
  void AddStep(std::vector<std::vector<uint64_t>>& counts,
               std::vector<uint64_t>& dropped);

  // Appends the layers with experts in ascending order. Then zeroes the totals
  // if `reset`.
  void Read(bool reset, v1::StatisticsResponse* response);

 private:
  // Weight of the old average in each step: about the last hundred steps count.
  static constexpr float kDecay = 0.99f;

  Mutex mu_;
  uint64_t steps_ ABSL_GUARDED_BY(mu_) = 0;
  std::vector<std::vector<uint64_t>> totals_ ABSL_GUARDED_BY(mu_);
  std::vector<std::vector<float>> averages_ ABSL_GUARDED_BY(mu_);
  std::vector<uint64_t> dropped_ ABSL_GUARDED_BY(mu_);  // By layer.
};

}  // namespace ringfleet::worker

#endif  // RINGFLEET_WORKER_EXECUTION_EXPERT_STATISTICS_H_
