// SPDX-License-Identifier: Apache-2.0
// Moving experts while a fleet serves: what a place is to hold next is loaded
// beside what it holds, and changes places with it between two steps.
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

// An expert that a place lacks.
struct MissingExpert {
  int layer = 0;
  int expert = 0;
  bool operator==(const MissingExpert&) const = default;
};

// What `place` has to load to get from one layout to another, by layer and
// expert.
std::vector<MissingExpert> MissingExperts(const cluster::ExpertLayout& now,
                                          const cluster::ExpertLayout& next,
                                          int place);

// The layout to come, with what this place lacks for it. Of one set of weights.
struct StagedExperts {
  cluster::ExpertLayout layout;
  std::vector<MissingExpert> missing;  // As MissingExperts has them.
  std::vector<MlpWeights> loaded;      // In the same order.
  uint64_t bytes() const;              // Of them.
};

// Puts them into the weights of `place`, whose experts are those of `now`, and
// drops what the layout to come has no place for. `bytes` of the weights
// follow. Takes no time to speak of but for giving memory back.
void SwitchExperts(const cluster::ExpertLayout& now, int place,
                   StagedExperts staged, Weights* weights);

}  // namespace ringfleet::worker

#endif  // RINGFLEET_WORKER_EXECUTION_EXPERT_MIGRATION_H_
