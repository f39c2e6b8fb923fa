// SPDX-License-Identifier: Apache-2.0
// Moves experts while a fleet serves. The ranks at a coordinate load the
// replicas of the next layout while they serve with the replicas of the present
// layout. Between two steps, the next replicas replace the present ones.
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

// An expert that the ranks at a coordinate must load.
struct MissingExpert {
  int layer = 0;
  int expert = 0;
  bool operator==(const MissingExpert&) const = default;
};

// Returns the experts that `coordinate` holds in layout `next` and not in
// layout `now`. Sorts them by layer, then expert.
std::vector<MissingExpert> MissingExperts(const cluster::ExpertLayout& now,
                                          const cluster::ExpertLayout& next,
                                          int coordinate);

// Experts that the ranks at a coordinate have loaded for the next layout and do
// not use yet, for one set of weights.
struct StagedExperts {
  cluster::ExpertLayout layout;        // The next layout.
  std::vector<MissingExpert> missing;  // In the order of MissingExperts.
  std::vector<MlpWeights> loaded;      // By index in `missing`.
  uint64_t bytes() const;              // Sum over `loaded`.
};

// Moves the staged experts into `weights`, which has the experts of
// `coordinate` by layout `now`. Frees the experts that `coordinate` does not
// hold in the next layout. Updates Weights::bytes. Copies no weights.
void SwitchExperts(const cluster::ExpertLayout& now, int coordinate,
                   StagedExperts staged, Weights* weights);

}  // namespace ringfleet::worker

#endif  // RINGFLEET_WORKER_EXECUTION_EXPERT_MIGRATION_H_
