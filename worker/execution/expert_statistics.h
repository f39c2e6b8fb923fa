// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_WORKER_EXECUTION_EXPERT_STATISTICS_H_
#define RINGFLEET_WORKER_EXECUTION_EXPERT_STATISTICS_H_

#include <cstdint>
#include <vector>

#include "kernels/mutex.h"
#include "protos/worker.pb.h"

namespace ringfleet::worker {

// How many tokens each expert got: exact totals since a reset, and an
// exponential average per step. Thread-safe: the executor adds, any thread
// reads.
class ExpertStatistics {
 public:
  // `counts` [layer][expert] of one step; empty for dense layers; `dropped`
  // [layer] of these. Zeroes both.
  void AddStep(std::vector<std::vector<uint64_t>>& counts,
               std::vector<uint64_t>& dropped);

  // Appends the MoE layers, ascending; then zeroes the totals if asked.
  void Read(bool reset, v1::StatisticsResponse* response);

 private:
  // About the last hundred steps.
  static constexpr float kDecay = 0.99f;

  Mutex mu_;
  uint64_t steps_ ABSL_GUARDED_BY(mu_) = 0;
  std::vector<std::vector<uint64_t>> totals_ ABSL_GUARDED_BY(mu_);
  std::vector<std::vector<float>> averages_ ABSL_GUARDED_BY(mu_);
  std::vector<uint64_t> dropped_ ABSL_GUARDED_BY(mu_);  // By layer.
};

}  // namespace ringfleet::worker

#endif  // RINGFLEET_WORKER_EXECUTION_EXPERT_STATISTICS_H_
