// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_TESTS_TESTING_RANDOM_LAYOUT_H_
#define RINGFLEET_TESTS_TESTING_RANDOM_LAYOUT_H_

#include <random>
#include <utility>
#include <vector>

#include "cluster/model/expert_layout.h"
#include "kernels/check.h"

namespace ringfleet::testing {

// Sets a layer of `layout` to random coordinates. Each expert has one random
// coordinate, and each other coordinate with a probability of 1/3. A coordinate
// may have no expert.
inline void RandomizeLayer(std::mt19937_64& random, int layer,
                           cluster::ExpertLayout* layout) {
  std::vector<std::vector<int32_t>> held(layout->num_coordinates());
  for (int expert = 0; expert < layout->num_experts(); ++expert) {
    const size_t home = random() % held.size();
    for (size_t coordinate = 0; coordinate < held.size(); ++coordinate) {
      if (coordinate == home || random() % 3 == 0) {
        held[coordinate].push_back(expert);
      }
    }
  }
  RF_CHECK(layout->SetLayer(layer, std::move(held)).ok());
}

}  // namespace ringfleet::testing

#endif  // RINGFLEET_TESTS_TESTING_RANDOM_LAYOUT_H_
