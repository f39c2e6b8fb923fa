// SPDX-License-Identifier: Apache-2.0
// Moves experts while a fleet serves. The next replicas of a coordinate are
// loaded beside its present replicas, and replace the present replicas between
// two steps.
#ifndef RINGFLEET_WORKER_EXECUTION_EXPERT_MIGRATION_H_
#define RINGFLEET_WORKER_EXECUTION_EXPERT_MIGRATION_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cluster/model/expert_layout.h"
#include "worker/model/weights.h"

namespace ringfleet::worker {

// An expert that a coordinate lacks.
struct MissingExpert {
  int layer = 0;
  int expert = 0;
  bool operator==(const MissingExpert&) const = default;
};

// Returns the experts that `coordinate` must load to get from `now` to `next`,
// by layer, then expert.
std::vector<MissingExpert> MissingExperts(const cluster::ExpertLayout& now,
                                          const cluster::ExpertLayout& next,
                                          int coordinate);

// Experts that are staged for one set of weights: the next layout, and the
// experts that this coordinate lacks for the next layout.
struct StagedExperts {
  cluster::ExpertLayout layout;
  std::vector<MissingExpert> missing;  // In the order of MissingExperts.
  std::vector<MlpWeights> loaded;      // By index in `missing`.
  uint64_t bytes() const;              // Sum over `loaded`.
};

// Moves the staged experts into the weights of `coordinate`, which has the
// experts of layout `now`. Frees the experts that the next layout does not have
// there. Updates Weights::bytes. Copies no weights.
void SwitchExperts(const cluster::ExpertLayout& now, int coordinate,
                   StagedExperts staged, Weights* weights);

}  // namespace ringfleet::worker

#endif  // RINGFLEET_WORKER_EXECUTION_EXPERT_MIGRATION_H_
