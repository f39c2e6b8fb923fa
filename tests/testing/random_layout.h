// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_TESTS_TESTING_RANDOM_LAYOUT_H_
#define RINGFLEET_TESTS_TESTING_RANDOM_LAYOUT_H_

#include <random>
#include <utility>
#include <vector>

#include "cluster/model/expert_layout.h"
#include "kernels/check.h"

namespace ringfleet::testing {

// Every expert in a place at random, and in each other one with a chance of a
// third. Places may be empty.
inline void RandomizeLayer(std::mt19937_64& random, int layer,
                           cluster::ExpertLayout* layout) {
  std::vector<std::vector<int32_t>> held(layout->num_places());
  for (int expert = 0; expert < layout->num_experts(); ++expert) {
    const size_t home = random() % held.size();
    for (size_t place = 0; place < held.size(); ++place) {
      if (place == home || random() % 3 == 0) held[place].push_back(expert);
    }
  }
  RF_CHECK(layout->SetLayer(layer, std::move(held)).ok());
}

}  // namespace ringfleet::testing

#endif  // RINGFLEET_TESTS_TESTING_RANDOM_LAYOUT_H_
